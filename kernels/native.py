"""The compiled extension: loading it, which instruction set it runs, how many threads it takes.

The extension takes raw pointers and sizes, so every `_cpu.py` goes through `pointer`, which checks what the
native code relies on. Threads are torch's own team (csrc/core/parallel.cpp), so that the two never share a
core; the count is a context variable, so that one worker thread's choice never reaches another.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sparsefl.kernels import settings
from sparsefl.kernels.errors import NotBuilt, SettingError
from sparsefl.kernels.layout import Bitmap, Packed, Segments

_extension: ModuleType | None
try:
    _extension = importlib.import_module("sparsefl.kernels._native")
except ModuleNotFoundError as missing:  # not built; built but broken raises ImportError and is not caught
    if missing.name != "sparsefl.kernels._native":
        raise
    _extension = None

_threads: ContextVar[int | None] = ContextVar("threads", default=None)
_isa_is_set = False  # to what SPARSE_ISA names: when the module is first asked for


def extension() -> ModuleType:
    """The compiled module, on the instruction set that SPARSE_ISA names; NotBuilt says how to get it."""
    global _isa_is_set
    if _extension is None:
        raise NotBuilt("the native kernels are not built: run `pip install -e .` (or `make venv`)")
    if not _isa_is_set:
        if (name := wanted_isa()) is not None:
            _extension.set_isa(name)
        _isa_is_set = True
    return _extension


def wanted_isa() -> str | None:
    """What SPARSE_ISA names: one of `isas()`."""
    name = settings.current().isa
    if name is not None and _extension is not None and name not in isas():
        here = ", ".join(isas())
        raise SettingError(f"expected SPARSE_ISA to be one that this machine runs ({here}), got {name!r}")
    return name


def built() -> bool:
    """Is there a compiled module?"""
    return _extension is not None


def isas() -> list[str]:
    """Instruction sets that this binary holds and this machine runs, slowest first; empty when not built."""
    return list(_extension.isas()) if _extension else []


def isa() -> str:
    """The instruction set in use: the best one, or what SPARSE_ISA names."""
    return extension().isa()


@contextmanager
def use_isa(name: str) -> Iterator[None]:
    """A context in which the native kernels run on one instruction set, such as "avx2".

    It holds for the whole process: meant for tests and benchmarks.

    >>> import sparse_engine as se
    >>> with se.use_isa("baseline"):
    ...     print(se.numerics()["instruction set"])
    baseline
    """
    before = isa()
    extension().set_isa(name)
    try:
        yield
    finally:
        extension().set_isa(before)


class on:
    """A context in which this thread's native calls run on an instruction set of their own; "": as before.

    What is prepared for a kernel (planes, orders, sizes of tiles) depends on it, too: prepare it inside.
    """

    def __init__(self, name: str) -> None:
        self._table = table(name)

    def __enter__(self) -> None:
        self._before = self._table and extension().choose_here(self._table)

    def __exit__(self, *failure: object) -> None:
        if self._table:
            extension().choose_here(self._before)


@cache
def table(name: str) -> int:
    """The address of an instruction set's table of operations; 0 for ""."""
    return extension().table(name) if name else 0


_without_dot: ContextVar[bool] = ContextVar("without_dot", default=False)


def bf16_dot() -> bool:
    """Is there an instruction for products of bfloat16 pairs (AVX512_BF16), in the instruction set in use?"""
    return extension().bf16_dot() and not _without_dot.get()


@cache
def fast_bf16_dot() -> bool:
    """Does that instruction, where it is there, make twice the products of a multiply-add? So on Zen 4 (AMD's
    family 25), not on Zen 5, whose multiply-adds are twice as wide."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return False
    said = dict(line.replace("\t", "").split(": ", 1) for line in lines if ": " in line)
    return (said.get("vendor_id"), said.get("cpu family")) == ("AuthenticAMD", "25")


@contextmanager
def without_bf16_dot() -> Iterator[None]:
    """A context in which bfloat16 kernels do without that instruction: for tests and benchmarks."""
    token = _without_dot.set(True)
    try:
        yield
    finally:
        _without_dot.reset(token)


def num_threads() -> int:
    """Threads a native kernel may use: `use_threads`, else SPARSE_THREADS, else as many as torch uses."""
    return _threads.get() or settings.current().threads or torch.get_num_threads()


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """A context in which native kernels use `count` threads. Results do not depend on it.

    >>> import torch, sparse_engine as se
    >>> net = se.sparsify(torch.nn.Linear(20, 50), density=0.1)
    >>> with se.use_threads(1):
    ...     y = net(torch.randn(3, 20))
    """
    if count < 1:
        raise ValueError(f"expected at least 1 thread, got {count}")
    if count > settings.MOST_THREADS:
        raise ValueError(f"expected at most {settings.MOST_THREADS} threads, got {count}")
    token = _threads.set(count)
    try:
        yield
    finally:
        _threads.reset(token)


def pointer(x: torch.Tensor, dtype: torch.dtype = torch.float32) -> int:
    """The address of a contiguous CPU tensor of this dtype: what the native code takes."""
    if x.dtype != dtype or not x.is_cpu or not x.is_contiguous():
        raise ValueError(
            f"native kernels take contiguous CPU tensors of {dtype}, "
            f"got {x.dtype} on {x.device} with strides {x.stride()}"
            "; other float types run with use_backend('reference')"
        )
    return x.data_ptr()


def address(data: NDArray, dtype: type = np.uint8) -> int:
    """The address of a contiguous array of this dtype, which may be read-only."""
    if data.dtype != dtype or not data.flags.c_contiguous:
        wanted = f"contiguous arrays of {np.dtype(dtype)}"
        raise ValueError(f"native kernels take {wanted}, got {data.dtype}, strides {data.strides}")
    return data.__array_interface__["data"][0]


def placement(segments: Segments) -> Any:
    """The structure Segments of the native code: where the tensors of a model lie. Made once for each."""
    return segments.derived.of("native", lambda: _placement(segments))


def _placement(segments: Segments) -> Any:
    return extension().Segments(
        count=len(segments),
        starts=pointer(segments.starts, torch.int64),
        dense=pointer(segments.dense, torch.int64),
    )


def structure(bitmap: Bitmap) -> tuple[int, int, Any]:
    """A bitmap as the native code takes it: words, packed offsets, placement."""
    words, offsets = pointer(bitmap.words, torch.int64), pointer(bitmap.offsets, torch.int64)
    return words, offsets, placement(bitmap.segments)


def packed(model: Packed) -> Any:
    """The structure Packed of the native code: the words and values of a model."""
    bitmap, values = model
    return extension().Packed(
        words=pointer(bitmap.words, torch.int64), values=pointer(values), nnz=values.numel()
    )
