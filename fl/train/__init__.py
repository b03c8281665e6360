"""A client's local training: the worker that does it, its network, and what it costs."""
