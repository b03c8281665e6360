"""Which kernel runs a layer."""
