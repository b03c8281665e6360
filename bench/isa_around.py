"""What lies between convolutions, as calls that `sparsefl bench isa` times: norms, pools, single entries."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from sparsefl.kernels import bias_gradient, dropout, loss, norm, pointwise, pool, transpose

Call = tuple[str, str, str, Callable[[], Any]]  # kernel, direction, case, what runs
IMAGES = ((64, 32, 32), (512, 4, 32))  # channels, size, batch
GROUPS = 32


def calls() -> Iterator[Call]:
    """Every kernel and direction, on a large image of few channels and a small one of many."""
    draw = torch.Generator().manual_seed(0)
    for channels, size, batch in IMAGES:
        x, dy = (torch.randn(channels, size, size, batch, generator=draw) for _ in range(2))
        case = f"{channels}x{size}x{size}, batch {batch}"
        gamma, beta = torch.rand(channels, generator=draw) + 0.5, torch.randn(channels, generator=draw)
        yield from _norms(case, x, dy, gamma, beta)
        yield from _pools(case, x, dy)
        yield "add_relu", "", case, partial(pointwise.add_relu, x, dy)
        yield "relu", "forward", case, partial(pointwise.relu, x)
        yield "relu", "backward", case, partial(pointwise.relu_backward, x, dy)
        yield "dropout", "", case, partial(dropout.dropout, x, 0.5, seed=1)
        yield "bias_gradient", "", case, partial(bias_gradient.bias_gradient, dy)
        yield "transpose", "", case, partial(transpose.transpose, x.view(channels, -1))
    logits, labels = torch.randn(100, 128, generator=draw), torch.arange(128) % 100
    yield "cross_entropy", "", "100 classes, batch 128", partial(_loss, logits, labels)


def _norms(
    case: str, x: torch.Tensor, dy: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor
) -> Iterator[Call]:
    group, batch = norm.group_norm(x, GROUPS, gamma, beta), norm.batch_norm(x, gamma, beta)
    yield "group_norm", "forward", case, partial(norm.group_norm, x, GROUPS, gamma, beta, relu=True)
    yield "batch_norm", "forward", case, partial(norm.batch_norm, x, gamma, beta, relu=True)
    back = partial(norm.group_norm_backward, dy, x, group.mean, group.rstd, gamma, beta)
    yield "group_norm", "backward", case, back
    yield (
        "batch_norm",
        "backward",
        case,
        partial(norm.batch_norm_backward, dy, x, batch.mean, batch.rstd, gamma, beta),
    )


def _pools(case: str, x: torch.Tensor, dy: torch.Tensor) -> Iterator[Call]:
    window, size = pool.Window.of(2), (x.shape[1], x.shape[2])
    small = dy[:, : size[0] // 2, : size[1] // 2].contiguous()
    taps = pool.max_pool(window, x).tap
    yield "max_pool", "forward", case, partial(pool.max_pool, window, x)
    yield "max_pool", "backward", case, partial(pool.max_pool_backward, window, small, taps, size)
    yield "average_pool", "forward", case, partial(pool.average_pool, window, x)
    yield "average_pool", "backward", case, partial(pool.average_pool_backward, window, small, size)


def _loss(logits: torch.Tensor, labels: torch.Tensor) -> Any:
    found = loss.cross_entropy(logits, labels, gradient=True)
    return found.losses, found.gradient
