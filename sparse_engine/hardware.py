"""What this machine is. No host names."""

import os
import platform
from pathlib import Path


def cpu_model() -> str:
    """The processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def cores() -> int:
    """How many cores this process may use; all of the machine's where the system does not say."""
    if hasattr(os, "sched_getaffinity"):  # Linux, not macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
