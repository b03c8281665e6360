"""Sums of models with one pattern, against numpy in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import LAYOUT, state_of
from torch import nn

import sparse_engine as se


def model(seed, density=0.3):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.Flatten(), nn.Linear(20, 3))
    shapes = {"0.weight": net[0].weight.shape, "3.weight": net[3].weight.shape}
    return se.compress(net, se.uniform_masks(shapes, density, seed=1))


@settings(deadline=None)
@given(st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=5))
def test_combine_is_the_weighted_sum(weights):
    states = [model(seed) for seed in range(len(weights))]
    before = [state.clone() for state in states]
    found = se.combine(states, weights)
    for part in ("values", "rest"):
        wanted = sum(w * getattr(x, part).double().numpy() for w, x in zip(weights, states, strict=True))
        assert np.allclose(getattr(found, part).numpy(), wanted, rtol=1e-5, atol=1e-5)
        assert all(
            torch.equal(getattr(x, part), getattr(y, part)) for x, y in zip(states, before, strict=True)
        )
    assert torch.equal(found.integers, states[0].integers)


def test_combine_keeps_nothing_of_the_first():
    state = model(0)
    found = se.combine([state], [1.0])
    found.values.zero_(), found.rest.zero_(), found.integers.zero_().add_(7)
    assert state.values.any() and state.rest.any() and not (state.integers == 7).any()


def test_overlay_takes_a_part_and_leaves_the_rest_alone():
    own, part = state_of(), state_of(1)
    own.values[::7] = -0.0
    part.values[::5] = 0.0  # a stored 0 is a value
    over = se.overlay(own, part)
    for name in LAYOUT.names:
        stored = own.pattern(name).mask()
        both = stored & part.pattern(name).mask()
        wanted = torch.where(both, part.tensor(name).to_dense(), own.tensor(name).to_dense())
        found = over.tensor(name).to_dense()
        assert name != "wide.weight" or (both.any() and (stored & ~both).any())
        assert torch.equal(found.view(torch.int32)[stored & ~both], wanted.view(torch.int32)[stored & ~both])
        assert torch.equal(found, wanted) and torch.equal(over.pattern(name).mask(), stored)
    assert torch.equal(over.rest, part.rest) and torch.equal(over.integers, own.integers)
    over.values.zero_(), over.rest.zero_()
    assert own.values.any() and part.rest.any()


def test_zeros():
    found = se.zeros(model(0))
    assert not found.values.any() and not found.rest.any() and found.bitmap.nnz == model(0).bitmap.nnz


def test_refusals():
    with pytest.raises(ValueError, match="expected a weight for each of at least one state, got 0, 0"):
        se.combine([], [])
    with pytest.raises(ValueError, match="got 2, 1"):
        se.combine([model(0), model(1)], [1.0])
    with pytest.raises(ValueError, match=r"one pattern, got another in states\[1\]"):
        se.combine([model(0), model(1, density=0.5)], [1.0, 1.0])
    with pytest.raises(ValueError, match=r"one layout, got states\[1\]"):
        se.combine([model(0), se.compress(nn.Linear(3, 3))], [1.0, 1.0])
