"""PQI pruning: the index in closed form, counts and masks as the authors' code has them, the bound at s*."""

import math

import pytest
import torch
from helpers import host, on, randn, variants
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import sparse_engine as se
from sparse_engine.model.prune import _share, prune_counts
from sparsefl.kernels.bitmap import full

NAMES = ["conv1.weight", "conv2.weight", "fc.weight"]
HARD = se.PQIConfig(eta_c=1.0, gamma=0.9)  # the paper's text: removes at least two thirds


def one_layer(*values: float) -> se.Model:
    layout = se.Layout(("w",), ((1, len(values)),))
    empty = torch.empty(0)
    return se.Model(
        layout, full(layout.segments), torch.tensor(values, dtype=torch.float32), empty, empty.long()
    )


def quantiles(icdf, n=200_001) -> Tensor:
    return icdf((torch.arange(n, dtype=torch.float64) + 0.5) / n).float()


@pytest.mark.parametrize(
    ("w", "expected"),
    [
        (quantiles(torch.distributions.Normal(0.0, 1.0).icdf), 0.1527),
        (quantiles(torch.distributions.Laplace(0.0, 1.0).icdf), 0.2146),
        (quantiles(lambda u: 2 * u - 1), 1 / 9),
        (torch.full((100,), -3.0), 0.0),
        (torch.eye(1, 50), 1 - 1 / 50),
        (torch.zeros(7), 0.0),
        (torch.empty(0), 0.0),
        (torch.tensor([5.0]), 0.0),
        (torch.full((100,), 1e-30), 0.0),
    ],
    ids=["gauss", "laplace", "uniform", "constant", "one-hot", "zeros", "empty", "one", "tiny"],
)
def test_closed_forms(w, expected):
    assert se.pqi(w) == pytest.approx(expected, abs=1e-4)
    assert se.pqi(w * 1e4) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("variant", variants())
@pytest.mark.parametrize("case", ["gauss", "laplace", "const", "onehot"])
def test_the_index_is_the_authors(golden, variant, case):
    data = golden("pqi")
    w, mask = data[f"si_{case}_w"], data[f"si_{case}_mask"]
    with on(variant) as put:
        w, mask = put((w, mask))
        assert se.pqi(w, mask) == pytest.approx(float(data[f"si_{case}_I"]), abs=5e-6)  # float32 sums there
        assert se.pqi(se.SparseTensor.from_dense(w, mask)) == se.pqi(w, mask)


def test_of_a_state_by_name(random_state):
    state = random_state()
    assert se.pqi(state) == {
        name: pytest.approx(se.pqi(state.tensor(name)), abs=1e-9) for name in state.layout.names
    }
    assert se.pqi(torch.ones(3, requires_grad=True), None, 1.0, 2.0) == pytest.approx(0)


def test_p_and_q_by_hand():
    w = torch.tensor([3.0, 4.0])  # mean |w| = 3.5, root mean square = 5 / sqrt 2
    assert se.pqi(w, p=1, q=2) == pytest.approx(1 - 3.5 / (5 / math.sqrt(2)))


@pytest.mark.parametrize("variant", variants())
def test_golden_pruning(golden, golden_state, variant):
    data = golden("pqi")
    with on(variant) as put:
        state = golden_state(put(data), "toy_w_", "initmask_seed77_")
        index, counts, pruned = se.pqi(state), prune_counts(state), se.prune_pqi(state)
        state, pruned = host((state, pruned))
    for name, c in zip(NAMES, counts.tolist(), strict=True):
        d, i, retained, removed = data[f"pqi_eta0_g1_stat_{name}"].tolist()
        assert state.pattern(name).nnz == d
        assert index[name] == pytest.approx(i, abs=1e-6)
        assert math.ceil(d - d * index[name]) == retained
        assert c - removed in (0, 1)  # the original floors in float32
        ours, theirs = pruned.pattern(name).mask(), data[f"pqi_eta0_g1_mask_{name}"]
        assert not (ours & ~theirs).any()
        assert int((theirs & ~ours).sum()) == c - removed
        w = data[f"toy_w_{name}"]
        assert torch.equal(pruned.tensor(name).to_dense(), w * ours)
        gone = state.pattern(name).mask() & ~ours
        assert w[gone].abs().max() <= w[ours].abs().min()


def test_by_hand():
    # sqrt: 1, 2, 3, 4 of mean 2.5; I = 1 - 6.25 / 7.5 = 1/6; r = 4 * 5/6; c = floor(4 / 6) = 0
    assert prune_counts(one_layer(1, 4, 9, 16)).tolist() == [0]
    # twice as many of each: c = floor(8 / 6) = 1, the earlier of the two smallest
    state = one_layer(16, -1, 4, 9, 1, 16, 9, 4)
    assert prune_counts(state).tolist() == [1]
    assert se.prune_pqi(state).values.tolist() == [16, 4, 9, 1, 16, 9, 4]
    # eta_c = 1 keeps a quarter of that: r / d = 5/24, gamma .9: floor(8 * .9 * 19/24) = 5
    assert prune_counts(state, HARD).tolist() == [5]
    assert prune_counts(state, se.PQIConfig(eta_c=1.0, beta=0.5)).tolist() == [4]
    assert prune_counts(state, se.PQIConfig(gamma=0)).tolist() == [0]


def test_retained_weights_rounded_up_as_in_the_authors_code():
    # of test_by_hand: r = 8 * 5/6 = 6.67, so 7 stay and 2.5 * (8 - 7) go; without rounding 2.5 * 1.33
    state = one_layer(16, -1, 4, 9, 1, 16, 9, 4)
    doubled = se.PQIConfig(gamma=2.5), se.PQIConfig(gamma=2.5, round_up=True)
    assert [prune_counts(state, cfg).tolist() for cfg in doubled] == [[3], [2]]
    # eta_c = 1: r = 8 * 5/24 = 1.67; 0.9 * (8 - 2) = 5.4; bounded by beta: 0.5 * 8
    assert prune_counts(state, se.PQIConfig(eta_c=1.0, gamma=0.9, round_up=True)).tolist() == [5]
    assert prune_counts(state, se.PQIConfig(eta_c=1.0, beta=0.5, round_up=True)).tolist() == [4]


@pytest.mark.parametrize("gamma", [0.9, 1.0, 1.7])
def test_rounding_up_against_python(random_state, gamma):
    state = random_state()
    cfg = se.PQIConfig(gamma=gamma, round_up=True)
    for name, c in zip(state.layout.names, prune_counts(state, cfg).tolist(), strict=True):
        w = state.tensor(name).values.double().abs()
        d = len(w)
        r = d * float(w.sqrt().mean()) ** 2 / float(w.mean()) if d else 0.0
        wanted = math.floor(min(gamma * (d - math.ceil(r - 1e-9)), 0.9 * d))
        assert c == min(max(wanted, 0), max(d - 1, 0)), name
    if gamma == 1:  # c is d - ceil(r) both ways
        assert prune_counts(state, cfg).tolist() == prune_counts(state).tolist()


@pytest.mark.parametrize("cfg", [se.PQIConfig(), HARD, se.PQIConfig(eta_c=1.0, gamma=2.0, beta=1.0)])
@pytest.mark.parametrize("values", [(), (0.0,), (2.0,), (0.0, 0.0, 0.0), (0.0, 0.0, 5.0), (1.0,) * 9])
def test_nothing_is_pruned_away_entirely(cfg, values):
    pruned = se.prune_pqi(one_layer(*values), cfg)
    assert (pruned.bitmap.nnz >= 1) == bool(values)
    if cfg == se.PQIConfig() and len(set(values)) < 2:
        assert pruned.values.tolist() == list(values)


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 999), st.sampled_from([se.PQIConfig(), HARD]))
def test_never_below_the_target_and_exactly_there_when_it_binds(random_state, density, target, seed, cfg):
    state = random_state(density=density, seed=seed)
    free, bounded = se.prune_pqi(state, cfg), se.prune_pqi(state, cfg, target_density=target)
    total = state.bitmap.segments.numel
    assert bounded.density >= min(target, state.density) - 1e-12
    assert not (bounded.bitmap.words & ~state.bitmap.words).any()
    assert not (free.bitmap.words & ~bounded.bitmap.words).any()  # what the bound saves is all it changes
    if free.density >= target:
        assert bounded.bitmap.nnz == free.bitmap.nnz
    elif state.density >= target:
        assert (bounded.bitmap.nnz - 1) / total < target  # one fewer would be below
        removed, planned = (
            state.bitmap.counts - bounded.bitmap.counts,
            state.bitmap.counts - free.bitmap.counts,
        )
        share = removed.sum() / planned.sum()
        assert ((removed - share * planned).abs() < 1).all()


@pytest.mark.parametrize(("tenths", "stored"), [(2, 200), (1, 100), (7, 700), (3, 300)])
def test_the_target_is_met_to_the_entry(tenths, stored):
    state = one_layer(*randn(1000, 1).tolist())
    for target in (tenths / 10, 1 - (1 - tenths / 10)):  # s* arrives as 1 - s*: .19999999999999996
        while (pruned := se.prune_pqi(state, HARD, target_density=target)).bitmap.nnz < state.bitmap.nnz:
            state = pruned
        assert state.bitmap.nnz == stored
        state = one_layer(*randn(1000, 1).tolist())


def test_the_share_by_hand():
    share = lambda c, budget: _share(torch.tensor(c), budget).tolist()  # noqa: E731
    assert share([10, 20, 30], 60) == [10, 20, 30]
    assert share([10, 20, 30], 30) == [5, 10, 15]
    assert share([1, 1, 1], 2) == [1, 1, 0]
    assert share([3, 5, 0], 4) == [2, 2, 0]  # 1.5, 2.5: the tie goes to the earlier
    assert share([3, 5, 0], 0) == share([3, 5, 0], -4) == [0, 0, 0]
    assert share([0, 0], -1) == [0, 0]


def test_the_old_state_is_left_alone(random_state):
    state = random_state()
    before = state.values.clone()
    assert se.prune_pqi(state, HARD).bitmap.nnz < state.bitmap.nnz
    assert torch.equal(state.values, before)


@pytest.mark.parametrize(
    "change",
    [
        {"p": 0},
        {"p": 1},
        {"p": -1},
        {"q": 0.5},
        {"q": math.inf},
        {"eta_c": -0.1},
        {"eta_c": math.inf},
        {"gamma": -1},
    ]
    + [{"gamma": math.nan}, {"beta": -0.1}, {"beta": 1.1}, {"beta": math.nan}, {"p": math.nan}],
)
def test_refused_settings(change):
    with pytest.raises(ValueError, match=f"expected .*{next(iter(change))}"):
        se.PQIConfig(**change)


def test_refusals(random_state):
    state = random_state()
    with pytest.raises(ValueError, match="target_density from 0 to 1, got 1.5"):
        se.prune_pqi(state, target_density=1.5)
    with pytest.raises(ValueError, match="mask with a dense tensor only, got one with a Model"):
        se.pqi(state, torch.ones(3).bool())
    with pytest.raises(ValueError, match="0 < p < q"):
        se.pqi(torch.ones(3), p=2)


@pytest.mark.parametrize("variant", variants())
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_diverged_model_is_refused_by_name(random_state, variant, value):
    state = random_state()
    state.tensor("w1").values[3] = value
    with (
        on(variant) as put,
        pytest.raises(ValueError, match=r"finite numbers to prune, got others in \['w1'\]"),
    ):
        se.prune_pqi(put(state))


def test_the_largest_by_hand():
    state = one_layer(3.0, -5.0, 0.0, 3.0, -1.0)
    for k, wanted in ((0, []), (1, [-5]), (2, [-5, 3]), (3, [3, -5, 3]), (5, state.values.tolist())):
        kept = se.keep_largest(state, torch.tensor([k]))  # of equal ones the earlier goes
        assert kept.values.tolist() == wanted and kept.bitmap.nnz == k
    assert se.keep_largest(state, torch.tensor([9])).values.tolist() == state.values.tolist()


@pytest.mark.parametrize("variant", variants())
def test_the_largest_of_every_layer(random_state, variant):
    state = random_state(density=0.6, seed=3)
    k = torch.tensor([4, 0, 10**6])
    with on(variant) as put:
        placed = put(state)
        found = se.keep_largest(placed, k)
        assert found.rest is placed.rest
        kept = host(found)
    assert kept.bitmap.counts.tolist() == torch.minimum(k, state.bitmap.counts).tolist()
    for i, name in enumerate(state.layout.names):
        magnitudes = state.tensor(name).values.abs().sort(descending=True).values
        assert torch.equal(kept.tensor(name).values.abs().sort(descending=True).values, magnitudes[: k[i]])


@pytest.mark.parametrize("k", [[1, 2], [1, 2, -1]])
def test_numbers_to_keep_are_refused(random_state, k):
    with pytest.raises(ValueError, match="expected a number from 0 on for each of 3 weights"):
        se.keep_largest(random_state(), torch.tensor(k))
