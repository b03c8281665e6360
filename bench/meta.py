"""Where a result comes from: hardware, versions, commit. Part of every result file; no host names."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import torch

from sparse_engine.doctor.environment import PACKAGES, commit
from sparse_engine.hardware import cpu_model
from sparsefl.kernels import native


def meta(threads: int, **more: Any) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit() or "none (not a checkout)",
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "instruction_set": native.isa(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": threads,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        **more,
    }
