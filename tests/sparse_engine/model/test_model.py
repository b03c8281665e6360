"""Layout and Model: the at-rest form and what may be asked of it."""

from dataclasses import replace

import pytest
import torch
from helpers import on, randn, random_bitmap, variants
from hypothesis import given, settings
from hypothesis import strategies as st

import sparse_engine as se
from sparse_engine.model.model import Entry
from sparsefl.kernels.bitmap import from_mask, full

FLOAT, INT = torch.float32, torch.int64


@pytest.fixture
def state():
    """Two weights worked by hand: [[1, ., 2]] and [[., 3], [4, .]]."""
    layout = se.Layout(("a", "b"), ((1, 3), (2, 2)), (Entry("bias", (2,), FLOAT), Entry("steps", (), INT)))
    bitmap = from_mask(torch.tensor([1, 0, 1, 0, 1, 1, 0]).bool(), layout.segments)
    return se.Model(layout, bitmap, torch.tensor([1.0, 2, 3, 4]), torch.tensor([5.0, 6]), torch.tensor([7]))


def dense(state):
    return {name: state.tensor(name).to_dense() for name in state.layout.names}


def test_by_hand(state):
    assert state.density == 4 / 7
    assert state.nbytes == 2 * 8 + 4 * 4 + 2 * 4 + 8
    assert state.pattern("a").mask().tolist() == [[True, False, True]]
    assert state.tensor("a").to_dense().tolist() == [[1, 0, 2]]
    assert state.tensor("b").to_dense().tolist() == [[0, 3], [4, 0]]
    assert {name: x.tolist() for name, x in state.rest_tensors().items()} == {"bias": [5, 6], "steps": 7}
    assert repr(state) == "Model(2 weights, 4 of 7 stored (density 0.5714), 2 other tensors, 0.000 MB)"
    assert {name: m.tolist() for name, m in se.masks(state).items()} == {
        "a": [[True, False, True]],
        "b": [[False, True], [True, False]],
    }


def test_tensors_are_views(state):
    state.tensor("b").values[0] = 30
    state.rest_tensors()["bias"][1] = 60
    assert state.values.tolist() == [1, 2, 30, 4]
    assert state.rest.tolist() == [5, 60]


def test_with_values_shares_the_rest_and_clone_shares_only_the_pattern(state):
    other = state.with_values(torch.zeros(4))
    assert other.bitmap is state.bitmap and other.rest is state.rest and other.layout is state.layout
    copy = state.clone()
    for x in (copy.values, copy.rest, copy.integers):
        x.zero_()
    assert (
        state.values.tolist() == [1, 2, 3, 4] and state.rest.tolist() == [5, 6] and state.integers.item() == 7
    )


@pytest.mark.parametrize("variant", variants())
def test_with_pattern_carries_over_what_both_store(variant, state):
    with on(variant) as put:
        state = put(state)
        bitmap = from_mask(put(torch.tensor([0, 1, 1, 1, 1, 0, 0]).bool()), state.layout.segments)
        moved = state.with_pattern(bitmap)
    assert moved.values.tolist() == [0, 2, 0, 3]
    assert moved.bitmap is bitmap
    assert state.values.tolist() == [1, 2, 3, 4]


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 999))
def test_patterns_round_trip(random_state, density, other, seed):
    state = random_state(density=density, seed=seed)
    assert torch.equal(state.with_pattern(state.bitmap).values, state.values)
    segments = state.layout.segments
    assert torch.equal(state.with_pattern(full(segments)).with_pattern(state.bitmap).values, state.values)
    bitmap = random_bitmap(segments.sizes, other, seed + 1)
    once = state.with_pattern(bitmap)
    masks = se.masks(once)
    for name, w in dense(state).items():
        assert torch.equal(once.tensor(name).to_dense(), w * masks[name])
    assert torch.equal(once.with_pattern(bitmap).values, once.values)


def test_a_network_without_prunable_weights_and_one_without_anything_else():
    empty = torch.empty(0)
    layout = se.Layout((), (), (Entry("bias", (2,), FLOAT),))
    none = se.Model(layout, full(layout.segments), empty, torch.ones(2), empty.long())
    assert none.density == 1.0 and se.masks(none) == {} and none.with_pattern(none.bitmap).values.numel() == 0
    layout = se.Layout(("w",), ((0, 3),))
    bare = se.Model(layout, full(layout.segments), empty, empty, empty.long())
    assert bare.density == 1.0 and bare.rest_tensors() == {} and bare.tensor("w").to_dense().shape == (0, 3)


def test_refused_names(state):
    for ask in (state.pattern, state.tensor, state.layout.index):
        with pytest.raises(ValueError, match="out of \\['a', 'b'\\], got 'bias'"):
            ask("bias")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": torch.zeros(5)}, "expected 4 packed values"),
        ({"values": torch.zeros(4, dtype=torch.float64)}, "expected dtype torch.float32"),
        ({"values": torch.zeros(2, 2)}, "expected 1-D"),
        ({"rest": torch.zeros(3)}, "expected 2 entries of float tensors"),
        ({"integers": torch.zeros(2, dtype=INT)}, "expected 1 entries of integer tensors"),
        ({"integers": torch.zeros(1)}, "expected dtype torch.int64"),
        ({"bitmap": random_bitmap((7,), 1.0)}, "sizes \\(3, 4\\), got \\(7,\\)"),
    ],
)
def test_refused_parts(state, change, message):
    with pytest.raises(ValueError, match=message):
        replace(state, **change)
    with pytest.raises(ValueError, match="one shape"):
        state.with_pattern(random_bitmap((7,), 1.0))
    with pytest.raises(ValueError, match="packed values"):
        state.with_values(randn(3))


def test_refused_layouts():
    with pytest.raises(ValueError, match="no name twice"):
        se.Layout(("a", "a"), ((1,), (1,)))
    with pytest.raises(ValueError, match="no name twice"):
        se.Layout(("a",), ((1,),), (Entry("a", (1,), FLOAT),))
    with pytest.raises(ValueError, match="one shape a name"):
        se.Layout(("a",), ())
    with pytest.raises(ValueError, match="hold exactly, got {'x': torch.float64}"):
        se.Layout((), (), (Entry("x", (1,), torch.float64),))


def test_differences_of_layouts():
    ours = se.Layout(("a", "b"), ((1, 3), (2, 2)), (Entry("c", (2,), FLOAT),))
    theirs = se.Layout(
        ("a",), ((1, 4),), (Entry("c", (2,), INT), Entry("b", (2, 2), FLOAT), Entry("d", (), FLOAT))
    )
    assert ours.differences(ours) == []
    assert ours.differences(theirs) == [
        "a: expected prunable (1, 3), got prunable (1, 4)",
        "b: expected prunable (2, 2), got float32 (2, 2)",
        "c: expected float32 (2,), got int64 (2,)",
        "d: expected no such tensor, got float32 ()",
    ]
    swapped = se.Layout(("b", "a"), ((2, 2), (1, 3)), ours.rest)
    assert ours.differences(swapped) == ["expected the order ['a', 'b', 'c'], got ['b', 'a', 'c']"]


def test_tensors_and_back(random_state):
    state = random_state()
    again = se.Model.from_tensors(state.layout, {n: x.clone() for n, x in state.tensors().items()})
    for name, x in state.tensors().items():
        assert torch.equal(x, again.tensors()[name])
    assert torch.equal(again.bitmap.offsets, state.bitmap.offsets)


def test_tensors_are_checked(random_state):
    tensors = random_state().tensors()
    layout = random_state().layout
    with pytest.raises(ValueError, match="expected the tensors"):
        se.Model.from_tensors(layout, {n: x for n, x in tensors.items() if n != "rest"})
    with pytest.raises(ValueError, match="packed values"):
        se.Model.from_tensors(layout, tensors | {"values": tensors["values"][1:].clone()})
    with pytest.raises(ValueError, match="words"):
        se.Model.from_tensors(layout, tensors | {"bitmap": tensors["bitmap"][1:].clone()})
