"""First masks: counts as the authors' code has them, positions uniform, streams independent."""

import time
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sparse_engine as se
from sparse_engine.model.masks import choose

SHAPES = {"conv1": (8, 3, 3, 3), "conv2": (16, 8, 3, 3), "fc": (10, 64)}


def shapes_of(erk, net):
    return [tuple(n for n in row if n) for row in erk[f"erk_{net}_shapes"].tolist()]


@pytest.mark.parametrize("net", ["resnet18", "toy"])
@pytest.mark.parametrize("tenths", [2, 5, 8])
def test_erk_is_the_authors(golden, net, tenths):
    erk = golden("erk")
    shapes = shapes_of(erk, net)
    densities = se.erk_densities(shapes, tenths / 10)
    assert [int(p * prod(s)) for p, s in zip(densities, shapes, strict=True)] == erk[
        f"erk_{net}_d{tenths}_nnz"
    ].tolist()
    np.testing.assert_allclose(densities, 1 - erk[f"erk_{net}_d{tenths}_sparsity"], atol=1e-8)
    if net == "toy":
        masks = se.erk_masks(shapes, tenths / 10, seed=1)
        assert [int(m.sum()) for m in masks] == erk[f"erk_{net}_d{tenths}_nnz"].tolist()


def test_resnet18_masks_are_quick_and_leave_the_small_layers_dense(golden):
    shapes = shapes_of(golden("erk"), "resnet18")
    begin = time.perf_counter()
    masks = se.erk_masks(shapes, 0.5, seed=0)
    assert time.perf_counter() - begin < 5  # 0.3 s when nothing else runs
    assert [i for i, m in enumerate(masks) if m.all()] == [
        *range(10),
        17,
    ]  # conv1, layer1, layer2, layer3.0.conv1, linear


def test_erk_by_hand():
    # 2x2 has p = eps, 4x4 has p = eps / 2: half of 20 is 4 eps + 8 eps = 10
    assert se.erk_densities([(2, 2), (4, 4)], 0.5) == pytest.approx([10 / 12, 5 / 12])
    # at .8 the first would have 16/12 > 1: dense, and the second takes what is left
    assert se.erk_densities({"a": (2, 2), "b": (4, 4)}, 0.8) == pytest.approx({"a": 1.0, "b": 12 / 16})


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=4), min_size=1, max_size=6), st.floats(0, 1)
)
def test_erk_keeps_the_total(shapes, density):
    densities = se.erk_densities(shapes, density)
    total = sum(prod(s) for s in shapes)
    assert all(0 <= p <= 1 for p in densities)
    assert sum(p * prod(s) for p, s in zip(densities, shapes, strict=True)) == pytest.approx(
        density * total, abs=1e-9
    )


@pytest.mark.parametrize("make", [se.erk_masks, se.uniform_masks])
def test_the_ends_are_exact(make):
    assert all(m.all() for m in make(SHAPES, 1.0, 0).values())
    assert make([(3, 10)], 1.0, 0)[0].all()  # eps * 13 / 30 rounds to just below 1
    assert not any(m.any() for m in make(SHAPES, 0.0, 0).values())
    assert make([], 0.5, 0) == [] and make({}, 0.5, 0) == {}
    assert [tuple(m.shape) for m in make([(0, 3), (5, 5)], 0.5, 0)] == [(0, 3), (5, 5)]


def test_uniform_counts_and_shapes():
    masks = se.uniform_masks(SHAPES, 0.3, seed=5)
    assert {n: tuple(m.shape) for n, m in masks.items()} == SHAPES
    assert {n: int(m.sum()) for n, m in masks.items()} == {n: int(0.3 * prod(s)) for n, s in SHAPES.items()}
    assert all(m.dtype == torch.bool for m in masks.values())


def test_a_layer_depends_on_seed_and_name_alone():
    masks = se.uniform_masks(SHAPES, 0.3, seed=5)
    assert torch.equal(se.uniform_masks({"fc": SHAPES["fc"]}, 0.3, seed=np.int64(5))["fc"], masks["fc"])
    assert not torch.equal(se.uniform_masks(SHAPES, 0.3, seed=6)["fc"], masks["fc"])
    twins = se.uniform_masks([(40, 40), (40, 40)], 0.5, seed=0)
    assert not torch.equal(*twins)


def test_the_streams_are_pinned():
    assert choose(12, 5, 0, "mask", "w").nonzero().view(-1).tolist() == [2, 4, 6, 8, 10]


def test_positions_are_uniform():
    draws = torch.stack([choose(10, 3, seed, "test").double() for seed in range(4000)])
    assert (draws.sum(1) == 3).all()
    assert (draws.mean(0) - 0.3).abs().max() < 5 * (0.21 / 4000) ** 0.5
    pairs = draws.t() @ draws / 4000  # any two together: 3/10 * 2/9
    assert (pairs - torch.diag(pairs.diag()) - (1 - torch.eye(10)) / 15).abs().max() < 5 * (
        1 / 15 / 4000
    ) ** 0.5


@pytest.mark.parametrize("density", [-0.1, 1.1, float("nan")])
@pytest.mark.parametrize(
    "ask", [se.erk_densities, lambda s, d: se.erk_masks(s, d, 0), lambda s, d: se.uniform_masks(s, d, 0)]
)
def test_refused_densities(ask, density):
    with pytest.raises(ValueError, match="expected a density from 0 to 1, got"):
        ask(SHAPES, density)


@pytest.mark.parametrize("shape", [(), (3, -1)])
def test_refused_shapes(shape):
    with pytest.raises(ValueError, match="at least one dimension, none negative, got {'w'"):
        se.erk_densities({"w": shape}, 0.5)


def test_the_function_and_the_module_live_together():
    import sparse_engine.model.masks  # noqa: F401

    assert callable(se.masks)
