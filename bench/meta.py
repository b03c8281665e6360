"""Where a result comes from: hardware, versions, commit. Part of every result file; no host names."""

import os
import platform
import subprocess
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from kernels import native


def meta(threads: int, **more: Any) -> dict[str, Any]:
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "instruction_set": native.isa(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": threads,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("torch", "triton", "numpy", "scipy", "sparsefl")},
        **more,
    }


def commit() -> str:
    """The commit of this checkout, marked where files differ from it."""
    try:
        changed = _git("status", "--porcelain", "--untracked-files=no")
        return _git("rev-parse", "--short=12", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown (not a git checkout)"


def _git(*args: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *args]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
