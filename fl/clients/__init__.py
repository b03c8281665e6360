"""What clients keep between rounds."""
