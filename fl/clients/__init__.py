"""What clients keep between rounds: the population (base.py), and where it is kept."""
