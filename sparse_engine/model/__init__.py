"""A model at rest, and what pruning, growing and averaging do to it. Knows no nn.Module."""
