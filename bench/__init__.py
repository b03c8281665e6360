"""Measures everything, imported by nothing. A benchmark checks a result before it prints a time."""
