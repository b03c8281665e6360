"""Clients and rounds of decentralized federated learning: data, topology, schedule, algorithms, runs."""
