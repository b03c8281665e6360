"""Times the kernels of one layer and direction, side by side.

Everyone runs in turn, once untimed and once timed, `repeats` times, and the least counts: a machine that is
busy for a while is so for all of them.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from sparsefl.kernels import bitmap, sparse_conv
from sparsefl.kernels.layout import Segments
from sparsefl.kernels.sparse_conv import Conv, Geometry

Image = tuple[int, int, int]  # height, width, batch
REPEATS = 3
LONG = 0.05  # seconds: what takes longer runs once


def seconds(
    conv: Conv, direction: str, image: Image, kernels: Iterable[str], repeats: int = REPEATS
) -> dict[str, float]:
    """Return the seconds of each kernel on random data."""
    runs = {kernel: _run(conv, direction, image, kernel) for kernel in kernels}
    found = {kernel: _once(run) for kernel, run in runs.items()}  # makes the plan of the pass
    for _ in range(repeats):
        for kernel, run in runs.items():
            if found[kernel] < LONG:
                run()
            found[kernel] = min(found[kernel], _once(run))
    return found


def drawn(conv: Conv | Geometry) -> Conv:
    """Return `conv`, or one of its geometry and density with random entries."""
    if isinstance(conv, Conv):
        return conv
    numel = conv.shape.numel()
    mask = torch.rand(numel, generator=torch.Generator().manual_seed(0)) < conv.density
    sizes = conv.out_channels, conv.in_channels, conv.kernel, conv.stride, conv.padding, conv.dilation
    return Conv(bitmap.from_mask(mask, Segments((numel,))), *sizes)


def _run(conv: Conv, direction: str, image: Image, kernel: str) -> Callable[[], Any]:
    height, width, batch = image
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(conv.bitmap.nnz, generator=draw)
    x = torch.randn(conv.in_channels, height, width, batch, generator=draw)
    dy = torch.randn(conv.out_channels, *conv.output_size(height, width), batch, generator=draw)
    if direction == "forward":
        return lambda: sparse_conv.forward(conv, values, x, kernel=kernel)
    if direction == "input_gradient":
        return lambda: sparse_conv.input_gradient(conv, values, dy, (height, width), kernel=kernel)
    return lambda: sparse_conv.weight_gradient(conv, x, dy, kernel=kernel)


def _once(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
