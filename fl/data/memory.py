"""How much memory there is for data: asked before it is used, because Linux kills what uses too much."""

import os
import resource
from pathlib import Path


def available() -> int | None:
    """Bytes that this process may still use; None where the system does not say."""
    found = [x for x in (_free(), _left_of_limit()) if x is not None]
    return min(found) if found else None


def check(num_bytes: int, what: str) -> None:
    """ValueError where `what` needs more bytes than there are."""
    there = available()
    if there is not None and num_bytes > there:
        needed, left = f"{num_bytes / 1e9:,.1f} GB", f"{there / 1e9:,.1f} GB"
        raise ValueError(f"expected {what} to fit into memory, got {needed} with {left} free")


def _free() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def _left_of_limit() -> int | None:
    """Return how many bytes `ulimit -v` leaves; None without a limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        used = 0
    return max(limit - used, 0)
