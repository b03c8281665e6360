"""Sums, means and gates of a group: every variant against float64."""

import pytest
import torch
from groups import LAYERS, images
from helpers import assert_close, host, on, variants

from sparsefl.kernels.group_sum import add, add_gradient, mean, mean_gradient, opened
from sparsefl.kernels.registry import use_backend

OURS = variants("group_sum", without=["reference"])


def both(variant, work):
    """What work(put, dtype) makes, by the variant and by the reference in float64."""
    with on(variant) as put:
        ours = host(work(put, torch.float32))
    with on("reference") as put:
        theirs = host(work(put, torch.float64))
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a, b, terms=8)


@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("two", [False, True])
def test_sums(variant, relu, two):
    """An odd number of programs, the last one with a part of its numbers."""

    def work(put, dtype):
        a, b, dy, dx = (put(images(3, (5, 3, 4), 16, s).to(dtype)) for s in range(4))
        y = torch.zeros_like(a)
        add(a, b if two else None, y, relu)
        add_gradient(dy, y if relu else None, dx, more=two)
        return y, dx

    both(variant, work)


@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize(
    ("size", "window"), [((4, 6), (2, 3)), ((5, 5), (2, 2)), ((1, 1), (1, 1)), ((7, 7), (7, 7))]
)
@pytest.mark.parametrize("batch", [16, 64])
def test_means(variant, size, window, batch):
    """Also where a row and a column are in no window."""

    def work(put, dtype):
        shape = size[0] // window[0], size[1] // window[1]
        x, y = (put(images(2, (3, *s), batch, 1).to(dtype)) for s in (size, shape))
        mean(x, window, y)
        dy, dx, more = put(images(2, (3, *shape), batch, 2).to(dtype)), torch.zeros_like(x), x.clone()
        mean_gradient(dy, window, dx)
        mean_gradient(dy, window, more, more=True)
        return y, dx, more

    both(variant, work)


@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("name", ["3x3, pool", "3x3, padding", "2x3, stride 2, pool without relu"])
def test_gates(variant, name):
    layer = LAYERS[name]

    def work(put, dtype):
        dy = put(images(2, layer.y_shape, 16, 1).to(dtype))
        places = layer.pool[0] * layer.pool[1] + 1
        gate = torch.randint(0, places, dy.shape, generator=torch.Generator().manual_seed(0)).to(torch.uint8)
        gate = put(torch.where(gate == places - 1, 255, gate).to(torch.uint8))
        dz = put(images(2, layer.z_shape, 16, 2).to(dtype))
        opened(layer, dy, gate, dz)
        return (dz,)

    both(variant, work)


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda x: add(x, x[:1], x), "one shape"),
        (lambda x: add(x[..., :15].contiguous(), None, x[..., :15].contiguous()), r"16 or 32 or 64 or 128\]"),
        (lambda x: mean(x, (2, 2), x), r"expected means over \(2, 2\)"),
        (lambda x: opened(LAYERS["3x3, pool"], x, x.to(torch.uint8), x), "expected dy"),
    ],
)
def test_what_does_not_fit_is_refused(work, message):
    with use_backend("reference"), pytest.raises(ValueError, match=message):
        work(torch.zeros(2, 3, 4, 4, 16))
