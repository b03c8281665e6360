"""Entry points of pytest-benchmark: `make bench-regress`."""
