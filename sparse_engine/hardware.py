"""The processor of this machine and its cores. No host names."""

import os
import platform
from pathlib import Path


def cpu_model() -> str:
    """Return the processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def cpu_family() -> tuple[str, int] | None:
    """Return the processor's vendor and family, such as ("AuthenticAMD", 25); None where unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    facts = dict(line.split(":", 1) for line in lines[:30] if ":" in line)
    told = {key.strip(): value.strip() for key, value in facts.items()}
    family = told.get("cpu family", "")
    return (told.get("vendor_id", ""), int(family)) if family.isdigit() else None


def cores() -> int:
    """Return how many cores this process may use; all of the machine's if the system does not say."""
    if hasattr(os, "sched_getaffinity"):  # Linux, not macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
