"""The world around clients: who can talk to whom, who waits for whom, and how fast devices are."""
