"""The mask-weighted mean as the authors' code has it, by hand, and its identities; drift in closed form."""

import pytest
import torch
from helpers import assert_close, host, on, random_bitmap, variants
from hypothesis import given, settings
from hypothesis import strategies as st

import sparse_engine as se
from sparse_engine.model.model import Entry
from sparsefl.kernels.bitmap import from_mask, full

NAMES = ["conv1.weight", "conv2.weight", "fc.weight"]


def model(mask, values, bias, steps=0):
    layout = se.Layout(("w",), ((2, 2),), (Entry("b", (1,), torch.float32), Entry("n", (), torch.int64)))
    bitmap = from_mask(torch.tensor(mask).bool(), layout.segments)
    return se.Model(layout, bitmap, torch.tensor(values), torch.tensor([bias]), torch.tensor([steps]))


@pytest.mark.parametrize("variant", variants())
def test_golden_mean(golden, golden_state, variant):
    data = golden("average")
    with on(variant) as put:
        own, *neighbours = [golden_state(put(data), f"agg_in{j}_") for j in range(5)]
        everywhere = se.average(own, neighbours, mask=full(own.layout.segments, put.device))
        local = se.average(own, neighbours, mask=golden_state(put(data), "agg_in0_", "initmask_seed77_"))
        everywhere, local = host((everywhere, local))
    for name in NAMES:
        assert_close(everywhere.tensor(name).to_dense(), data[f"agg_out_{name}"], terms=5)
        assert_close(local.tensor(name).to_dense(), data[f"agg_local_{name}"], terms=5)
        assert torch.equal(local.pattern(name).mask(), data[f"initmask_seed77_{name}"])
    for name, bias in everywhere.rest_tensors().items():
        assert_close(bias, data[f"agg_out_{name}"], terms=5)


def test_three_clients_and_four_weights_by_hand():
    own = model([1, 1, 0, 0], [1.0, 2.0], 3.0, steps=7)
    a = model([1, 0, 1, 0], [3.0, 5.0], 6.0, steps=100)
    b = model([1, 0, 1, 0], [5.0, 0.0], 0.0)
    mean = se.average(own, [a, b])
    assert mean.tensor("w").to_dense().tolist() == [[3, 2], [0, 0]]
    assert (mean.rest.tolist(), mean.integers.tolist()) == ([3], [7])
    everywhere = se.average(own, iter([a, b]), mask=full(own.layout.segments))
    assert everywhere.values.tolist() == [3, 2, 2.5, 0]  # a stored zero counts; what nobody has is 0
    assert se.average(own, [a, b], mask=a).values.tolist() == [3, 2.5]
    assert se.average(own, []).values.tolist() == [1, 2]


def test_a_weighted_mean_by_hand():
    a = model([1, 1, 0, 0], [1.0, 2.0], 3.0, steps=7)
    b = model([1, 0, 1, 0], [5.0, 6.0], 7.0)
    mean = se.weighted_average([a, b], [3, 1])
    assert mean.tensor("w").to_dense().tolist() == [[2, 2], [6, 0]] and mean.bitmap.nnz == 3
    assert (mean.rest.tolist(), mean.integers.tolist()) == ([4], [7])
    mean.values.zero_(), mean.rest.zero_(), mean.integers.zero_()
    assert (a.values.tolist(), a.rest.tolist(), a.integers.tolist()) == ([1, 2], [3], [7])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=6), st.floats(0, 1))
def test_weighted_means_against_float64(random_state, weights, density):
    states = [random_state(density=density, seed=10 * seed) for seed in range(len(weights))]
    mean = se.weighted_average(states, weights)
    for name in mean.layout.names:
        masks = torch.stack([s.pattern(name).mask() for s in states]).double()
        w = torch.stack([s.tensor(name).to_dense() for s in states]).double()
        a = torch.tensor(weights).double().view(-1, *[1] * (w.ndim - 1))
        assert torch.equal(mean.pattern(name).mask(), masks.any(0))
        wanted = (a * w).sum(0) / (a * masks).sum(0).clamp(min=1)
        assert_close(mean.tensor(name).to_dense(), wanted, terms=2 * len(states))
    rest = sum(a * s.rest.double() for a, s in zip(weights, states, strict=True)) / sum(weights)
    assert_close(mean.rest, rest, terms=2 * len(states))


def test_the_weighted_mean_of_one_model_is_that_model(random_state):
    state = random_state(density=0.4)
    mean = se.weighted_average([state], [7])
    assert all(torch.equal(x, mean.tensors()[name]) for name, x in state.tensors().items())


@pytest.mark.parametrize("weights", [[], [1.0], [1.0, 0.0], [1.0, -1.0], [1.0, float("inf")]])
def test_weights_are_refused(random_state, weights):
    with pytest.raises(ValueError, match="expected a weight above 0 for each"):
        se.weighted_average([random_state(), random_state()], weights)


def test_a_weighted_mean_is_of_one_network(random_state):
    with pytest.raises(ValueError, match=r"expected states of one layout, got states\[1\]"):
        se.weighted_average([random_state(), random_state(shapes=((3, 3),))], [1, 1])


def test_full_masks_are_a_plain_mean(random_state):
    states = [random_state(density=1.0, seed=seed) for seed in range(4)]
    mean = se.average(states[0], states[1:])
    assert_close(mean.values, torch.stack([s.values for s in states]).double().mean(0), terms=4)
    assert_close(mean.rest, torch.stack([s.rest for s in states]).double().mean(0), terms=4)


@settings(max_examples=40, deadline=None)
@given(st.floats(0, 1), st.integers(0, 999), st.integers(0, 6))
def test_the_mean_of_one_model_is_that_model(random_state, density, seed, times):
    state = random_state(density=density, seed=seed)
    mean = se.average(state, [state.clone() for _ in range(times)])
    exact = times + 1 in (1, 2, 4)
    for part in ("values", "rest"):
        x, y = getattr(mean, part), getattr(state, part)
        assert torch.equal(x, y) if exact else torch.allclose(x, y, rtol=3e-7, atol=0)
    assert torch.equal(mean.bitmap.words, state.bitmap.words)
    assert torch.equal(mean.integers, state.integers)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=5), st.integers(0, 999))
def test_any_patterns_match_a_dense_mean(random_state, densities, seed):
    states = [random_state(density=d, seed=seed + i) for i, d in enumerate(densities)]
    mask = random_bitmap(states[0].layout.segments.sizes, 0.7, seed)
    mean = se.average(states[0], states[1:], mask)
    for name in states[0].layout.names:
        total = sum(s.tensor(name).to_dense().double() for s in states)
        count = sum(s.pattern(name).mask().double() for s in states)
        expected = total / count.clamp(min=1) * mean.pattern(name).mask()
        assert_close(mean.tensor(name).to_dense(), expected, terms=2 * len(states))


def test_the_result_has_memory_of_its_own(random_state):
    states = [random_state(seed=seed) for seed in range(3)]
    before = [state.clone() for state in states]
    mean = se.average(states[0], states[1:])
    for x in (mean.values, mean.rest, mean.integers):
        x.zero_()
    for state, old in zip(states, before, strict=True):
        assert torch.equal(state.values, old.values) and torch.equal(state.rest, old.rest)
        assert torch.equal(state.integers, old.integers)


@pytest.mark.parametrize("variant", variants())
def test_drift_by_hand(variant):
    a = model([1, 1, 0, 0], [3.0, 1.0], 5.0, steps=1)
    b = model([0, 1, 1, 0], [1.0, 4.0], 7.0, steps=2**50)  # difference 3 0 -4 0 and -2; counters do not count
    with on(variant) as put:
        a, b = put(a), put(b)
        assert se.drift(a, b) == pytest.approx(5 + 2)
        assert se.drift(a, b, squared=True) == pytest.approx(25 + 4)
        assert se.drift(a, a) == 0


def test_drift_is_the_sum_over_tensors_of_the_network(toy):
    a, b = toy(1), toy(2)
    pairs = [(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)]
    norms = torch.stack([(x.double() - y.double()).norm() for x, y in pairs if x.is_floating_point()])
    states = se.compress(a), se.compress(b)
    assert se.drift(*states) == pytest.approx(float(norms.sum()), rel=1e-6)
    assert se.drift(*states, squared=True) == pytest.approx(float(norms.square().sum()), rel=1e-6)


def test_refusals(random_state):
    own, other = random_state(), random_state(shapes=((6, 5), (4, 3, 3, 3), (130, 3)))
    message = r"w2: expected prunable \(130, 2\), got prunable \(130, 3\)"
    before = own.clone()
    for ask in (
        lambda: se.average(own, [own, other]),
        lambda: se.average(own, [], mask=other),
        lambda: se.drift(own, other),
    ):
        with pytest.raises(ValueError, match=message):
            ask()
    with pytest.raises(ValueError, match=r"got neighbours\[1\] with"):
        se.average(own, [own, other])
    with pytest.raises(ValueError, match="models of one shape"):
        se.average(own, [], mask=other.bitmap)
    assert torch.equal(own.values, before.values) and torch.equal(own.rest, before.rest)
