"""A run that was recorded: read back, as figures, as a page."""
