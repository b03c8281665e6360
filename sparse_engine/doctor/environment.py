"""What this installation and this machine are, for `sparsefl doctor` and bug reports. No host names."""

import ctypes
import importlib.util
import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from sparse_engine.choice import plan
from sparse_engine.hardware import cpu_model
from sparse_engine.program.gpu import cards
from sparsefl.kernels import native, registry, settings

PACKAGES = ("sparsefl", "torch", "triton", "numpy", "scipy")


def environment() -> dict[str, str]:
    """Return {fact: its text} in the order to print them."""
    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "commit": commit() or "none (not a checkout)",
        "cpu": cpu_model(),
        "cores": str(os.cpu_count()),
        "instruction sets": ", ".join(native.isas()) or "none: the native kernels are not built",
        "instruction set in use": native.isa() if native.isas() else "none",
        "threads": str(native.num_threads()),
        **_gpus(),
        "backends": ", ".join(registry.variants()),
        "overrides": ", ".join(_overrides()) or "none",
    }


def _gpus() -> dict[str, str]:
    """GPUs with architecture and memory, why one cannot be used; the driver and NVML."""
    found = cards.found()
    if not found:
        return {"gpu": f"none: {cards.absent()}", "driver": _driver(), "nvml": _nvml()}
    facts = {}
    for card in found:
        problem = cards.unfit(card) or cards.without_triton()
        fits = "" if problem is None else f"; cannot be used: {problem}"
        key = "gpu" if len(found) == 1 else f"gpu {card.device}"
        facts[key] = f"{card.name}, {card.arch}, {card.memory / 2**30:.0f} GB{fits}"
    return facts | {"cuda of torch": torch.version.cuda or "none", "driver": _driver(), "nvml": _nvml()}


def _driver() -> str:
    """The version of NVIDIA's driver."""
    try:
        line = cards.DRIVER.read_text().splitlines()[0]
    except (OSError, IndexError):
        return f"none ({cards.DRIVER} is missing)"
    found = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", line)
    return found[0] if found else line


def _nvml() -> str:
    """Whether joules of boards can be read."""
    if importlib.util.find_spec("pynvml") is None:
        return "none: nvidia-ml-py is not installed (sparsefl[energy])"
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return "nvidia-ml-py without a driver's library (libnvidia-ml.so.1)"
    return f"nvidia-ml-py {_version('nvidia-ml-py')}"


def check_settings() -> None:
    """Raise a SettingError if an environment variable asks for what is not there; return nothing otherwise.

    >>> import sparse_engine as se
    >>> se.check_settings()
    """
    native.wanted_isa()
    registry.backend_for("cpu")
    plan.current()


def unknown_settings() -> list[str]:
    """Return the environment variables that start with SPARSE_ and mean nothing."""
    known = (*settings.VARIABLES, "SPARSE_DATA")
    return sorted(name for name in os.environ if name.startswith("SPARSE_") and name not in known)


def numerics() -> dict[str, str]:
    """Return what the bits of a result depend on, beside its inputs. The number of threads is not among it.

    Computations give the same bits wherever these facts are the same. The instruction set is one that
    `use_isa` takes, or "none (REASON)" if no native kernel runs. The tile is how many outputs of a
    convolution are summed together; with AVX-512 it depends on the processor's first cache.

    >>> import sparse_engine as se
    >>> list(se.numerics())
    ['instruction set', 'tile', 'plan', 'torch', 'numpy', 'sparsefl']
    """
    return {
        "instruction set": _instruction_set(),
        "tile": _tile(),
        "plan": plan.current().identity(),
        **{name: _version(name) for name in ("torch", "numpy", "sparsefl")},
    }


def has_bf16() -> bool:
    """Return whether products of bfloat16 have an instruction of their own here (AVX512_BF16).

    >>> import sparse_engine as se
    >>> se.has_bf16() in (True, False)
    True
    """
    return native.built() and native.bf16_dot()


def _instruction_set() -> str:
    backend = registry.backend_for("cpu")
    if backend != "cpu":
        return f"none (backend {backend})"
    return native.isa() if native.isas() else "none (not built)"


def _tile() -> str:
    native_runs = registry.backend_for("cpu") == "cpu" and native.isas()
    return f"{native.extension().conv_halo_tile()} floats" if native_runs else "none"


def commit() -> str | None:
    """Return the commit of this checkout, marked if files differ from it; None for an installed copy."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():  # site-packages may lie inside a checkout of something else
        return None
    try:
        return _git(root, "rev-parse", "--short=12", "HEAD") + _changes(root)
    except (OSError, subprocess.CalledProcessError):
        return None


def _overrides() -> list[str]:
    return [f"{name}={os.environ[name]}" for name in sorted(settings.VARIABLES) if os.environ.get(name)]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _changes(root: Path) -> str:
    return "+changes" if _git(root, "status", "--porcelain", "--untracked-files=no") else ""


def _git(root: Path, *args: str) -> str:
    done = subprocess.run(["git", *args], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()
