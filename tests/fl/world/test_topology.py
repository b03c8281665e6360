"""Who can take models from whom: shapes of the graphs, laws of the random ones, the user's own."""

from collections import Counter
from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse, stats
from scipy.sparse.csgraph import connected_components

from fl.config import links
from fl.world.topology import Neighbours, from_links, make


def sets(neighbours: Neighbours) -> list[set[int]]:
    return [set(neighbours.of(k).tolist()) for k in range(neighbours.num_clients)]


def matrix(neighbours: Neighbours) -> np.ndarray:
    linked = np.zeros((neighbours.num_clients,) * 2, int)
    linked[neighbours.takers(), neighbours.indices] += 1
    return linked


def check_form(neighbours: Neighbours, num_clients: int) -> None:
    assert neighbours.indptr.dtype == np.int64 and neighbours.indices.dtype == np.int32
    assert neighbours.num_clients == num_clients and neighbours.indptr[-1] == len(neighbours.indices)
    for k in range(num_clients):
        row = neighbours.of(k)
        assert (np.diff(row) > 0).all() and k not in row
        assert ((row >= 0) & (row < num_clients)).all()


@pytest.mark.parametrize(
    ("kind", "num_clients", "expected"),
    [
        ("ring", 5, [{1, 4}, {0, 2}, {1, 3}, {2, 4}, {3, 0}]),
        ("ring", 2, [{1}, {0}]),
        ("line", 4, [{1}, {0, 2}, {1, 3}, {2}]),
        ("star", 4, [{1, 2, 3}, {0}, {0}, {0}]),
        ("full", 4, [{1, 2, 3}, {0, 2, 3}, {0, 1, 3}, {0, 1, 2}]),
        # 0 1 2
        # 3 4 5
        # 6 7
        ("grid", 8, [{1, 3}, {0, 2, 4}, {1, 5}, {0, 4, 6}, {1, 3, 5, 7}, {2, 4}, {3, 7}, {4, 6}]),
        ("grid", 2, [{1}, {0}]),
    ],
)
def test_fixed_graphs_by_hand(kind, num_clients, expected):
    neighbours = make(kind, num_clients).neighbours(0)
    check_form(neighbours, num_clients)
    assert sets(neighbours) == expected
    assert neighbours.receivers.tolist() == [len(row) for row in expected]  # these graphs go both ways


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["random", "regular", "ring", "line", "star", "grid", "full"]),
    num_clients=st.integers(2, 40),
    degree=st.integers(1, 39),
    redraw=st.booleans(),
    t=st.integers(0, 5),
)
def test_every_graph_is_well_formed(kind, num_clients, degree, redraw, t):
    degree = 1 + (degree - 1) % (num_clients - 1)
    if kind == "regular" and num_clients * degree % 2:
        degree = degree + 1 if degree + 1 < num_clients else degree - 1
    one = make(kind, num_clients, degree=degree, seed=t, redraw=redraw)
    neighbours = one.neighbours(t)
    check_form(neighbours, num_clients)
    if kind in ("random", "regular"):
        assert (neighbours.degrees == degree).all()
    if kind != "random":
        assert (matrix(neighbours) == matrix(neighbours).T).all()
    if kind not in ("random", "regular"):
        assert connected_components(matrix(neighbours))[0] == 1
        assert sorted(neighbours.degrees) == sorted(make(kind, num_clients).neighbours(0).degrees)
    again = make(kind, num_clients, degree=degree, seed=t, redraw=redraw).neighbours(t)
    assert np.array_equal(neighbours.indices, again.indices)


@pytest.mark.parametrize(("num_clients", "degree"), [(6, 1), (6, 3), (6, 4), (6, 5), (8, 5), (20, 2)])
def test_random_subsets_are_uniform(num_clients, degree):
    """All subsets of the others equally often; (6, 4), (6, 5) and (8, 5) are by Floyd's algorithm."""
    drawn = make("random", num_clients, degree=degree, seed=4)
    counts = Counter(tuple(drawn.neighbours(t).of(2).tolist()) for t in range(2500))
    others = [j for j in range(num_clients) if j != 2]
    every = list(combinations(others, degree))
    assert set(counts) <= set(every) and len(every) == comb(num_clients - 1, degree)
    if len(every) > 1:
        assert stats.chisquare([counts[subset] for subset in every]).pvalue > 1e-3


def test_clients_draw_independently():
    """Whether k takes from a has nothing to do with whether k+1 does."""
    drawn = make("random", 20, degree=5, seed=0)
    took = np.array([matrix(drawn.neighbours(t)) for t in range(2000)])
    correlation = np.corrcoef(took[:, 3, 9], took[:, 4, 9])[0, 1]
    assert abs(correlation) < 4 / np.sqrt(2000)


def test_a_million_clients():
    neighbours = make("random", 1_000_000, degree=10).neighbours(0)
    rows = neighbours.indices.reshape(-1, 10)
    assert (np.diff(rows, axis=1) > 0).all() and not (rows == np.arange(1_000_000)[:, None]).any()
    received = neighbours.receivers  # Binomial(K - 1, 10 / (K - 1)): nearly Poisson(10)
    assert abs(received.var() / 10 - 1) < 0.02


def test_random_is_fresh_each_round_unless_told():
    fresh, static = make("random", 50, degree=5), make("random", 50, degree=5, redraw=False)
    assert sets(fresh.neighbours(0)) != sets(fresh.neighbours(1))
    assert static.neighbours(0) is static.neighbours(1)
    assert sets(static.neighbours(7)) == sets(fresh.neighbours(0))


def test_a_redrawn_ring_is_a_ring_elsewhere():
    moved = make("ring", 30, redraw=True)
    first, second = moved.neighbours(0), moved.neighbours(1)
    assert sets(first) != sets(second) != sets(make("ring", 30).neighbours(0))
    for ring in (first, second):
        assert (ring.degrees == 2).all() and connected_components(matrix(ring))[0] == 1


def test_seeds_differ():
    assert sets(make("random", 50, seed=0).neighbours(3)) != sets(make("random", 50, seed=1).neighbours(3))


@pytest.mark.parametrize(("num_clients", "degree"), [(10, 9), (10, 5), (100, 49), (101, 50), (2000, 10)])
def test_regular_sizes(num_clients, degree):
    linked = matrix(make("regular", num_clients, degree=degree, seed=1).neighbours(0))
    assert (linked.sum(1) == degree).all() and (linked == linked.T).all() and not linked.trace()


def test_regular_graphs_differ_and_reach_everybody():
    """Each of the 15 pairs of 6 clients is a link of a 2-regular graph with probability 2/5."""
    linked = np.mean(
        [matrix(make("regular", 6, degree=2, seed=s).neighbours(0)) for s in range(1500)], axis=0
    )
    assert abs(linked[~np.eye(6, dtype=bool)] - 0.4).max() < 4.5 * np.sqrt(0.24 / 1500)


LINKS = [(0, 1), (2, 0), (2, 1), (0, 1)]
EXPECTED = [{1}, set(), {0, 1}]


@pytest.mark.parametrize(
    "form", ["list", "array", "dense", "sparse", "npy", "npz", "txt", "csv", "matrix.txt"]
)
def test_edges_in_every_form(form, tmp_path):
    dense = np.array([[0, 1, 0], [0, 0, 0], [1, 1, 0]])
    path = tmp_path / f"links.{form}"
    if form == "npy":
        np.save(path, np.array(LINKS))
    elif form == "npz":
        sparse.save_npz(path, sparse.csr_matrix(dense))
    elif form == "txt":
        path.write_text("# taker giver\n0 1\n2 0  # two takes from nought\n\n2 1\n")
    elif form == "csv":
        path.write_text("0,1\n2, 0\n2,1\n")
    elif form == "matrix.txt":
        path.write_text("0 1 0\n0 0 0\n1 1 0\n")
    given = {"list": LINKS, "array": np.array(LINKS), "dense": dense, "sparse": sparse.coo_array(dense)}
    made = make("edges", 3, edges=given.get(form, path))
    check_form(made.neighbours(0), 3)
    assert sets(made.neighbours(0)) == EXPECTED and made.neighbours(0) is made.neighbours(9)
    assert made.neighbours(0).receivers.tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([(0, 3)], r"edges: expected links of two clients out of 0..2, got 0 with 3"),
        ([(0, -1)], r"got 0 with -1"),
        ([(1, 1)], r"got 1 with 1"),
        ([(0.5, 1)], r"expected pairs of whole numbers, got \[0.5 1. \]"),
        (np.zeros((4, 4)), r"expected pairs \[E, 2\] or a 3 x 3 adjacency matrix, got shape \(4, 4\)"),
        (np.zeros(3), r"got shape \(3,\)"),
        ("/nowhere/links.txt", r"/nowhere/links.txt: expected an edge list or an adjacency matrix"),
    ],
)
def test_wrong_edges_are_refused(edges, message):
    with pytest.raises(ValueError, match=message):
        make("edges", 3, edges=edges)


def test_a_file_of_words_is_refused(tmp_path):
    path = tmp_path / "links.txt"
    path.write_text("0 1\nalice bob\n")
    with pytest.raises(ValueError, match="links.txt: expected an edge list .* 'alice'"):
        make("edges", 3, edges=path)


@pytest.mark.parametrize(
    ("kind", "num_clients", "options", "message"),
    [
        ("torus", 5, {}, "expected a topology out of .*'grid'.*, got 'torus'"),
        ("random", 1, {}, "expected from 2 to .* clients, got 1"),
        ("random", 5, {"degree": 5}, r"expected a degree from 1 to 4 \(all others\), got 5"),
        ("random", 5, {"degree": 0}, "got 0"),
        ("regular", 5, {"degree": 3}, "expected clients x degree even in a regular graph, got 5 x 3"),
        ("ring", 5, {"edges": [(0, 1)]}, "expected edges with the topology 'edges' and no other, got 'ring'"),
        ("edges", 5, {}, "expected edges with the topology 'edges'"),
        ("edges", 5, {"edges": [(0, 1)], "redraw": True}, "expected redraw=False with edges"),
    ],
)
def test_wrong_arguments_are_refused(kind, num_clients, options, message):
    with pytest.raises(ValueError, match=message):
        make(kind, num_clients, **options)


def test_no_links_at_all():
    empty = from_links(3, np.empty(0, int), np.empty(0, int))
    assert empty.indptr.tolist() == [0, 0, 0, 0] and empty.receivers.tolist() == [0, 0, 0]


def test_kinds_are_named():
    assert set(links.KINDS) == {"random", "regular", "ring", "line", "star", "grid", "full", "edges"}
