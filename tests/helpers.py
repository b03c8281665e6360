"""What tests share: every variant this machine can run and where its tensors are, random models, and a
tolerance with a reason.

`triton` is the interpreter on CPU tensors, or the real card where there is one. `triton:ptx` is the virtual
card (tests/virtual_card), which runs what the compiler made of the same kernels; it needs no GPU and is
left to machines without one.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sparsefl.kernels import bitmap, registry
from sparsefl.kernels.layout import Bitmap, Segments

VIRTUAL = "triton:ptx"


def variants(operation: str | None = None, *, without: Sequence[str] = ()) -> list[str]:
    """Backends to test an operation on: the registry's own list, so that one is tested because it exists.
    `without`: what a test compares with (the reference), or what is too slow for it (the interpreter)."""
    names = registry.variants(operation)
    if "triton" in names and not torch.cuda.is_available():
        names.append(VIRTUAL)
    return [name for name in names if name.split(":")[0] not in without]


class Put:
    """Puts tensors, bitmaps, models, and tuples, lists and dictionaries of them on a device."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)

    def __call__(self, x: Any) -> Any:
        if isinstance(x, Tensor):
            return x.to(self.device)
        if isinstance(x, Bitmap):
            return Bitmap(x.words.to(self.device), x.segments, x.offsets)
        if isinstance(x, tuple) and hasattr(x, "_fields"):
            return type(x)(*map(self, x))
        if isinstance(x, dict):
            return {key: self(value) for key, value in x.items()}
        if isinstance(x, list | tuple):
            return type(x)(map(self, x))
        return x.to(self.device) if hasattr(x, "to") else x


host = Put("cpu")


@contextmanager
def on(variant: str) -> Iterator[Put]:
    """Operations inside run on this variant; what is given back puts their tensors where it wants them."""
    if variant == VIRTUAL:
        import virtual_card  # imports triton: not for tests that go without

        with virtual_card.installed(), registry.use_backend("triton"):
            yield Put("cuda:0")
    else:
        with registry.use_backend(variant):
            yield Put("cuda:0") if variant == "triton" and torch.cuda.is_available() else host


def random_bitmap(sizes: Sequence[int], density: float, seed: int = 0) -> Bitmap:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(sum(sizes), generator=generator) < density
    with registry.use_backend("reference"):
        return bitmap.from_mask(mask, Segments(tuple(sizes)))


def randn(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def assert_close(actual: Tensor, expected: Tensor, *, terms: float = 1, scale: float = 0.0) -> None:
    """Equal up to the rounding of a sum of `terms` numbers in `actual`'s dtype, relative to the largest or to
    `scale`: where terms may cancel, the sum of their sizes."""
    assert actual.shape == expected.shape
    if actual.numel() == 0:
        return
    unit = torch.finfo(actual.dtype).eps
    expected = expected.double()
    worst = (
        ((actual.double() - expected).abs() / expected.abs().max().clamp(min=max(scale, 1e-30))).max().item()
    )
    assert worst <= 4 * unit * max(terms, 1), (
        f"off by {worst:.3g}, allowed {4 * unit * terms:.3g} ({terms} terms)"
    )
