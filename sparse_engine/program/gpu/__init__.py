"""Programs on a GPU: a captured network trained for a group of clients, every step a short list of launches."""
