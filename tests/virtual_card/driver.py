"""A driver for Triton that launches on the virtual card: what the run time compiles, specialises and
passes is its own.

Only for processes without Triton's interpreter; the variant triton:ptx launches what was compiled ahead of
time instead.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.compiler import CompiledKernel

from sparsefl.kernels import aot
from virtual_card.card import Card
from virtual_card.compiled import Binary
from virtual_card.launch import launch
from virtual_card.tensors import CUDA

SHARED = 101376  # bytes per program of an RTX 4090


class Driver(DriverBase):
    """One RTX 4090."""

    def __init__(self, card: Card) -> None:
        self.utils = self
        self.launcher_cls = lambda source, metadata: _Launcher(card, source.signature, metadata.shared)

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", aot.ARCH, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return CUDA

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": SHARED, "multiprocessor_count": 128, "max_num_regs": 65536, "warpSize": 32}

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple:
        return name, None, 0, 0, 1024  # module, function, registers, spills, threads

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_benchmarker(self) -> Any:
        raise NotImplementedError("nothing is timed on the virtual card")


class _Launcher:
    def __init__(self, card: Card, signature: dict[str, str], shared: int) -> None:
        self.card, self.types, self.shared = card, list(signature.values()), shared

    def __call__(self, x: int, y: int, z: int, stream: int, ptx: str, *rest: Any) -> None:
        arguments = rest[-len(self.types) :]
        given = [(kind, arg) for kind, arg in zip(self.types, arguments, strict=True) if kind != "constexpr"]
        kinds, values = zip(*given, strict=True)
        launch(self.card, Binary(ptx, self.shared), (x, y, z), list(kinds), values)


@contextmanager
def driving(card: Card) -> Iterator[None]:
    """Triton launches on `card`."""
    assert not triton.knobs.runtime.interpret, "kernels that are interpreted are not launched"
    load = CompiledKernel._init_handles

    def load_text(kernel: CompiledKernel) -> None:
        load(kernel)
        kernel.function = kernel.asm["ptx"]  # Triton hands it to the launcher

    before = triton.runtime.driver._active
    triton.runtime.driver.set_active(Driver(card))
    try:
        with (
            mock.patch.object(CompiledKernel, "_init_handles", load_text),
            mock.patch.object(torch.cuda, "device_of", lambda tensor: nullcontext()),
        ):
            yield
    finally:
        triton.runtime.driver._active = before
