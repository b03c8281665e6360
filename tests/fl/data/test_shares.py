"""Class counts a client: margins, the distributions that the names promise, and hand-worked small cases."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fl.data import shares

stocks = st.lists(st.integers(0, 60), min_size=1, max_size=8).filter(any).map(np.array)


def rng(seed=0):
    return np.random.default_rng(seed)


@settings(max_examples=100, deadline=None)
@given(stocks, st.data(), st.sampled_from([1e-3, 0.3, 1.0, 100.0]), st.integers(0, 2**32))
def test_dirichlet_never_exceeds_the_stock(stock, data, alpha, seed):
    num_clients = data.draw(st.integers(1, stock.sum()))
    per = data.draw(st.integers(1, stock.sum() // num_clients))
    counts = shares.dirichlet(stock, num_clients, alpha, per, True, rng(seed))
    assert counts.shape == (num_clients, len(stock)) and counts.min() >= 0
    assert (counts.sum(1) == per).all() and (counts.sum(0) <= stock).all()
    per = data.draw(st.integers(1, stock.sum()))
    counts = shares.dirichlet(stock, num_clients, alpha, per, False, rng(seed))
    assert (counts.sum(1) == per).all() and (counts <= stock).all() and counts.min() >= 0


@pytest.mark.parametrize("alpha", [0.1, 0.3, 1.0, 10.0])
def test_with_stock_for_all_counts_are_dirichlet_multinomial(alpha):
    """Mean n/C, and variance n p (1-p) (n + A)/(1 + A) with A = C alpha."""
    n, C, K = 40, 5, 20_000
    counts = shares.dirichlet(np.full(C, 10**9), K, alpha, n, True, rng())
    variance = n / C * (1 - 1 / C) * (n + C * alpha) / (1 + C * alpha)
    np.testing.assert_allclose(counts.mean(0), n / C, atol=5 * (variance / K) ** 0.5)
    np.testing.assert_allclose(counts.var(0), variance, rtol=0.06)
    p0 = stats.betabinom(n, alpha, (C - 1) * alpha).cdf(np.arange(n))  # of one class
    ours = (counts[:, 0][:, None] <= np.arange(n)).mean(0)
    assert abs(ours - p0).max() < 1.95 / K**0.5  # Kolmogorov-Smirnov, p = 0.001


def test_tiny_alpha_is_one_class_each():
    counts = shares.dirichlet(np.full(4, 10**6), 2000, 1e-6, 30, True, rng())
    assert (counts.max(1) == 30).all()
    assert stats.chisquare(counts.sum(0) / 30).pvalue > 1e-3


def test_the_whole_set_can_be_divided():
    stock = np.array([50, 30, 15, 5])
    for alpha in (1e-4, 0.3, 100):
        np.testing.assert_array_equal(shares.dirichlet(stock, 20, alpha, 5, True, rng()).sum(0), stock)


def test_scarce_samples_are_a_fair_lottery():
    """20 clients want 3 of the 10 samples of class 0; the client's number plays no part in who gets them."""
    claims = np.tile([3, 0], (20, 1))
    totals = sum(shares._lottery(claims.copy(), np.array([10, 5]), rng(seed)) for seed in range(2000))
    assert totals[:, 0].sum() == 20_000 and (totals[:, 1] == 0).all()
    assert stats.chisquare(totals[:, 0]).pvalue > 1e-3


@settings(max_examples=100, deadline=None)
@given(stocks, st.data(), st.booleans(), st.integers(0, 2**32))
def test_pathological_has_n_classes_and_equal_sizes(stock, data, disjoint, seed):
    n = data.draw(st.integers(1, int((stock > 0).sum())))
    num_clients = data.draw(st.integers(1, 30))
    try:
        counts = shares.pathological(stock, num_clients, n, None if disjoint else n, disjoint, rng(seed))
    except ValueError as refused:
        assert disjoint and np.minimum(stock, num_clients).sum() < n * num_clients, refused
        return
    assert ((counts > 0).sum(1) == n).all() and len({*counts.sum(1)}) == 1
    if disjoint:
        assert (counts.sum(0) <= stock).all()
    else:
        assert (counts <= stock).all() and (counts.sum(1) == n).all()


def test_pathological_balanced_classes_divide_the_whole_set():
    counts = shares.pathological(np.full(10, 5000), 100, 2, None, True, rng())  # CIFAR-10 as in the paper
    assert ({*counts[counts > 0]}, {*(counts > 0).sum(0)}) == ({250}, {20})
    counts = shares.pathological(np.full(100, 500), 100, 10, None, True, rng())  # CIFAR-100
    assert ({*counts[counts > 0]}, {*(counts > 0).sum(0)}) == ({50}, {10})


def test_pathological_rare_classes_are_filled_up_by_common_ones():
    """Two classes each out of 60, 20, 20: all 10 clients have class 0, half of them class 1, half class 2."""
    counts = shares.pathological(np.array([60, 20, 20]), 10, 2, None, True, rng())
    assert (counts[:, 0] == 6).all() and (counts[:, 1:].sum(1) == 4).all()
    assert ((counts[:, 1:] == 4).sum(0) == 5).all()
    few = shares.pathological(np.array([60, 20, 20]), 10, 2, 6, True, rng())
    assert ({*few[few > 0]}) == {3}  # as many of each, where there are enough


def test_all_tables_of_classes_are_equally_likely():
    """4 clients, 2 of 4 classes each, every class twice: 90 tables (counted below)."""
    pairs = list(itertools.combinations(range(4), 2))
    tables = [
        table
        for table in itertools.product(pairs, repeat=4)
        if (np.bincount(np.ravel(table), minlength=4) == 2).all()
    ]
    assert len(tables) == 90
    seen = dict.fromkeys(tables, 0)
    generator = rng()
    for _ in range(2700):
        table = shares._assign(np.full(4, 2), 2, 4, generator)
        seen[tuple(tuple(sorted(map(int, row))) for row in table)] += 1  # a KeyError is a wrong table
    assert stats.chisquare(list(seen.values())).pvalue > 1e-3


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.data())
def test_level_is_as_even_as_the_room_allows(room, data):
    total = data.draw(st.integers(0, sum(room)))
    (row,) = shares._level(np.array([room]), total)
    assert row.sum() == total and (row >= 0).all() and (row <= room).all()
    with_room = row[row < room]  # who could have had more has as much as anybody, up to one
    assert with_room.min(initial=100) >= row.max() - 1


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=6).filter(any), st.integers(0, 100))
def test_rounded_is_the_floor_or_one_more(weights, total):
    weights = np.array(weights)
    exact = total * weights / weights.sum()
    most = np.ceil(exact - 1e-9).astype(int)
    (row,) = shares.rounded(exact[None], np.array([total]), most)
    assert row.sum() == total and (row <= most).all()
    assert (abs(row - exact) < 1 + 1e-9).all() and (row[weights == 0] == 0).all()


def test_rounded_prefers_large_remainders():
    exact = np.array([[1.5, 2.2, 0.3], [0.1, 0.5, 3.4]])
    np.testing.assert_array_equal(
        shares.rounded(exact, np.array([4, 4]), np.full(3, 9)), [[2, 2, 0], [0, 1, 3]]
    )


@pytest.mark.parametrize(
    ("stock", "clients", "n", "per", "message"),
    [
        (
            [10, 10],
            10,
            2,
            3,
            r"expected from 2 \(one per class\) to 2 training samples per client .* got train_per_client = 3",
        ),
        ([10, 10], 5, 2, 1, "to 4 training samples .* got train_per_client = 1"),
        (
            [10, 9],
            10,
            2,
            None,
            "at most 9 clients with 2 classes each, for whom the 19 training samples last, got .* = 10",
        ),
        ([10, 0], 1, 2, None, "classes_per_client of at most 1, the classes with training samples, got 2"),
    ],
)
def test_refusals(stock, clients, n, per, message):
    with pytest.raises(ValueError, match=message):
        shares.pathological(np.array(stock), clients, n, per, True, rng())
