"""Norms of a group: every variant against float64, which is against torch."""

import pytest
import torch
import torch.nn.functional as F
from groups import LAYERS, images, network, patterns
from helpers import assert_close, host, on, randn, variants

from sparsefl.kernels.group_conv import make
from sparsefl.kernels.group_norm import Norm, backward, forward
from sparsefl.kernels.registry import use_backend

OURS = variants("group_norm", without=["reference"])
CLIENTS, BATCH = 2, 16
NORMS = {
    "group": Norm(channels=6, eps=1e-5, per_group=3, gamma=0, beta=6, relu=True),
    "instance, not affine": Norm(channels=6, eps=1e-2, per_group=1),
    "layer": Norm(channels=6, eps=1e-5, per_group=6, gamma=2),
    "batch": Norm(channels=6, eps=1e-5, gamma=0, beta=6, mean=12, var=18, momentum=0.1, relu=True),
    "batch, nothing kept": Norm(channels=6, eps=1e-3, beta=1),
}


def a_group(put):
    """Any layer, and 24 numbers of `rest` per client, the variances among them above 0."""
    net = network(LAYERS["linear, no bias"])
    net = type(net)(net.layers, 24)
    group = make(net, put(patterns(net, CLIENTS, 0.5)))
    return group, randn(group.length, 3).abs() + 0.1


def order_of(valid=(16, 11)):
    """Client 1 has 11 samples."""
    order = torch.full((1, CLIENTS, BATCH), -1, dtype=torch.int32)
    for g, n in enumerate(valid):
        order[0, g, :n] = torch.arange(n)
    return order


def passes(norm, size, dtype, put, training=True, add=False):
    """y, stats, the arena, gradients of parameters and of x."""
    group, arena = a_group(put)
    arena = put(arena.to(dtype))
    x, dy = (put(images(CLIENTS, (6, *size), BATCH, seed).to(dtype)) for seed in (0, 1))
    dx = put(images(CLIENTS, (6, *size), BATCH, 2).to(dtype))
    order, clock = put(order_of()), put(torch.zeros(2, dtype=torch.int64))
    dy = torch.where(order[0, :, None, None, None] >= 0, dy, torch.zeros_like(dy))
    y, stats = torch.zeros_like(x), put(torch.zeros(norm.stats_shape(CLIENTS, BATCH), dtype=dtype))
    forward(group, norm, arena, x, y, stats, order, clock, training)
    gradients = torch.zeros_like(arena)
    if training:
        backward(group, norm, arena, x, y, stats, order, clock, dy, gradients, dx, add)
    return host((y, stats, arena, gradients, dx))


@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("size", [(1, 1), (9, 8)])
@pytest.mark.parametrize("name", NORMS)
def test_both_ways_against_float64(variant, name, size):
    norm = NORMS[name]
    if norm.per_group == 1 and size == (1, 1):
        pytest.skip("one value has no variance")
    with on(variant) as put:
        ours = passes(norm, size, torch.float32, put, add=size == (9, 8))
    with on("reference") as put:
        theirs = passes(norm, size, torch.float64, put, add=size == (9, 8))
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a, b, terms=64)


@pytest.mark.parametrize("variant", OURS)
def test_what_a_batch_norm_keeps_is_used(variant):
    with on(variant) as put:
        ours = passes(NORMS["batch"], (3, 3), torch.float32, put, training=False)
    with on("reference") as put:
        theirs = passes(NORMS["batch"], (3, 3), torch.float64, put, training=False)
    assert_close(ours[0], theirs[0], terms=16)
    with use_backend("reference"):
        assert torch.equal(ours[2], a_group(lambda x: x)[1]), "evaluation moves nothing"


@pytest.mark.parametrize("name", NORMS)
def test_the_reference_is_torch(name):
    """Forward and backward of client 1 over its 11 samples."""
    norm = NORMS[name]
    with use_backend("reference"):
        y, _, after, gradients, dx = passes(norm, (4, 3), torch.float64, lambda x: x)
        group, arena = a_group(lambda x: x)
    rest = arena.double()[group.bitmap.nnz :].view(CLIENTS, -1)[1].clone()
    x, dy = (images(CLIENTS, (6, 4, 3), BATCH, s).double()[1, ..., :11].movedim(-1, 0) for s in (0, 1))
    x.requires_grad_()
    part = lambda place: None if place is None else rest[place : place + 6].clone().requires_grad_()  # noqa: E731
    gamma, beta = part(norm.gamma), part(norm.beta)
    if norm.per_group is not None:
        out = F.group_norm(x, norm.sets, gamma, beta, norm.eps)
    else:
        kept = [None if at is None else rest[at : at + 6] for at in (norm.mean, norm.var)]
        out = F.batch_norm(x, *kept, gamma, beta, True, norm.momentum, norm.eps)
    out = out.relu() if norm.relu else out
    out.backward(dy)
    mine = slice(0, 11)
    assert torch.allclose(y[1, ..., mine].movedim(-1, 0), out.detach())
    assert torch.allclose(dx[1, ..., mine].movedim(-1, 0), x.grad)
    assert (dx[1, ..., 11:] == 0).all()
    found = gradients[group.bitmap.nnz :].view(CLIENTS, -1)[1]
    for place, parameter in ((norm.gamma, gamma), (norm.beta, beta)):
        if place is not None:
            assert torch.allclose(found[place : place + 6], parameter.grad)
    assert torch.allclose(after[group.bitmap.nnz :].view(CLIENTS, -1)[1], rest)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"x": torch.zeros(2, 5, 1, 1, 16), "y": torch.zeros(2, 5, 1, 1, 16)},
            r"expected x as \[2, 6, height",
        ),
        ({"stats": torch.zeros(2, 6, 2, 32)}, "expected stats"),
        ({"order": torch.zeros(1, 2, 15, dtype=torch.int32)}, "expected order"),
        ({"arena": torch.zeros(3)}, "numbers in the group's arena"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    norm = NORMS["group"]
    with use_backend("reference"):
        group, arena = a_group(lambda x: x)
        given = {
            "arena": arena,
            "x": torch.zeros(2, 6, 1, 1, 16),
            "y": torch.zeros(2, 6, 1, 1, 16),
            "stats": torch.zeros(norm.stats_shape(2, 16)),
            "order": order_of(),
            "clock": torch.zeros(2, dtype=torch.int64),
        }
        with pytest.raises(ValueError, match=message):
            forward(group, norm, **(given | change), training=True)


def test_groups_of_unequal_size_are_refused():
    with pytest.raises(ValueError, match="groups of as many of 6 channels, got 4"):
        Norm(channels=6, eps=1e-5, per_group=4)
