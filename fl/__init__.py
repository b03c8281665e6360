"""Clients and rounds of decentralized federated learning. So far: the command line."""
