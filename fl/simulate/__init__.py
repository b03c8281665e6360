"""Schedules without training: how long rounds take, for up to millions of clients."""
