"""Programs on a GPU: a captured network trained for a group of clients, a step as a list of launches."""
