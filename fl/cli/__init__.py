"""The command `sparsefl`: options, terminal, exit codes."""
