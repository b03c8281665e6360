"""One run: the loop, its directory, checkpoints, metrics and who is told of them."""
