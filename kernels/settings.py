"""Environment variables: read and checked here alone, once, when the first of them is asked for.

SPARSE_BACKEND     reference, cpu or triton: every operation runs there (kernels/registry.py)
SPARSE_ISA         the instruction set of the native kernels, one that the machine has (kernels/native.py)
SPARSE_THREADS     threads that a native kernel may use
SPARSE_PLAN        which kernel runs a layer: off, measure, or a file (sparse_engine/choice/plan.py)
TRITON_INTERPRET   1: Triton kernels take CPU tensors

Set to nothing is not set. `use_backend`, `use_isa`, `use_threads` and `use_plan` overrule them for a while.
"""

import os
import re
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from sparsefl.kernels.errors import SettingError

BACKENDS = ("reference", "cpu", "triton")
MOST_THREADS = 1024
VARIABLES = ("SPARSE_BACKEND", "SPARSE_ISA", "SPARSE_THREADS", "SPARSE_PLAN", "TRITON_INTERPRET")


class Settings(NamedTuple):
    """What the variables ask for; None: not set."""

    backend: str | None
    isa: str | None
    threads: int | None
    plan: str | None
    interpret: bool


def read(variables: Mapping[str, str]) -> Settings:
    """The settings in `variables`; SettingError names the one that is wrong."""
    backend, isa, threads, plan = (variables.get(name) or None for name in VARIABLES[:4])
    interpret = variables.get("TRITON_INTERPRET") == "1"
    return Settings(backend and _backend(backend), isa, _threads(threads), plan, interpret)


@cache
def current() -> Settings:
    """The settings of this process."""
    return read(os.environ)


def _backend(text: str) -> str:
    if text in BACKENDS:
        return text
    more = "; SPARSE_ISA names the instruction set" if text.startswith("cpu:") else ""
    raise SettingError(f"expected SPARSE_BACKEND to be one of {', '.join(BACKENDS)}, got {text!r}{more}")


def _threads(text: str | None) -> int | None:
    if text is None:
        return None
    if re.fullmatch("[0-9]{1,9}", text) and 1 <= int(text) <= MOST_THREADS:
        return int(text)
    raise SettingError(f"expected SPARSE_THREADS to be a whole number from 1 to {MOST_THREADS}, got {text!r}")
