"""What tests share: every variant this machine can run, random models, and a tolerance with a reason."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sparsefl.kernels import bitmap, registry
from sparsefl.kernels.layout import Bitmap, Segments


def variants(operation: str | None = None, *, without: Sequence[str] = ()) -> list[str]:
    """Backends to test an operation on: the registry's own list, so that one is tested because it exists.
    `without`: what a test compares with (the reference), or what is too slow for it (the interpreter)."""
    return [name for name in registry.variants(operation) if name.split(":")[0] not in without]


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
