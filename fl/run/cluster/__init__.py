"""Clients on several machines, through Ray: executor.py is what a run sees, docs/cluster.md what users do."""
