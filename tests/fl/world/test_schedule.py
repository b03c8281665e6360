"""The schedule: against a plain reading of algorithms.md 2, by hand, and its figures."""

import tracemalloc
from time import process_time

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from fl.rng import stream
from fl.world import schedule
from fl.world.schedule import max_wait_at, plan, reuse_index
from fl.world.topology import make


def by_the_book(neighbours, rho, max_wait, wait_rule, duration, transfer):
    """Client by client in order of rho; the link is a queue. Start, finish, wave, A* of every client."""
    num_clients = neighbours.num_clients
    start, finish, wave, waits = {}, {}, {}, {}
    for k in sorted(range(num_clients), key=lambda k: rho[k]):
        prior = [j for j in neighbours.of(k).tolist() if rho[j] < rho[k]]
        prior.sort(key=lambda j: (finish[j], rho[j]) if wait_rule == "fastest" else rho[j])
        waits[k] = sorted(prior[:max_wait])
        link_free = (len(neighbours.of(k)) - len(waits[k])) * transfer[k]
        for j in sorted(waits[k], key=lambda j: finish[j]):
            link_free = max(link_free, finish[j]) + transfer[k]
        start[k], finish[k] = link_free, link_free + duration[k]
        wave[k] = 1 + max((wave[j] for j in waits[k]), default=-1)
    return [[of[k] for k in range(num_clients)] for of in (start, finish, wave, waits)]


@settings(max_examples=150, deadline=None)
@given(
    num_clients=st.integers(2, 220),
    degree=st.integers(1, 100),
    max_wait=st.integers(0, 12),
    kind=st.sampled_from(["random", "ring", "star", "grid", "line"]),
    reuse=st.sampled_from(["random", "id"]),
    wait_rule=st.sampled_from(["fastest", "index"]),
    times=st.sampled_from(["unit", "ties", "any"]),
    seed=st.integers(0, 10**6),
)
@example(220, 99, 5, "random", "random", "fastest", "ties", 0)  # rows beyond the short ones
@example(220, 3, 2, "random", "random", "fastest", "any", 1)  # wide levels
def test_equals_a_plain_reading(num_clients, degree, max_wait, kind, reuse, wait_rule, times, seed):
    rng = np.random.default_rng(seed)
    neighbours = make(kind, num_clients, degree=1 + degree % (num_clients - 1), seed=seed).neighbours(0)
    rho = reuse_index(num_clients, reuse, rng)
    duration, transfer = np.ones(num_clients), np.zeros(num_clients)
    if times == "ties":
        duration, transfer = rng.integers(1, 4, num_clients) * 1.0, rng.integers(0, 3, num_clients) * 1.0
    elif times == "any":
        duration, transfer = rng.random(num_clients), rng.random(num_clients)
    planned = plan(neighbours, rho, max_wait, wait_rule=wait_rule, duration=duration, transfer=transfer)
    start, finish, wave, waits = by_the_book(neighbours, rho, max_wait, wait_rule, duration, transfer)
    assert planned.start == pytest.approx(start, rel=1e-12) and planned.finish == pytest.approx(
        finish, rel=1e-12
    )
    assert planned.wave.tolist() == wave and planned.depth == max(wave)
    assert [planned.wait.of(k).tolist() for k in range(num_clients)] == waits


@pytest.mark.parametrize("narrow", [0, 10**9])
def test_levels_and_one_by_one_agree(monkeypatch, narrow):
    """Small rounds are planned one by one, large ones by levels: either way is right for both."""
    monkeypatch.setattr(schedule, "_NARROW", narrow)
    rng = np.random.default_rng(narrow % 7)
    for num_clients, degree in [(30, 4), (2000, 6)]:
        neighbours = make("random", num_clients, degree=degree).neighbours(3)
        rho, duration = reuse_index(num_clients, "random", rng), rng.integers(1, 5, num_clients) * 1.0
        planned = plan(neighbours, rho, 2, duration=duration)
        book = by_the_book(neighbours, rho, 2, "fastest", duration, np.zeros(num_clients))
        assert planned.start.tolist() == book[0] and planned.wave.tolist() == book[2]
        assert [planned.wait.of(k).tolist() for k in range(num_clients)] == book[3]


def test_no_transfer_no_delay_of_the_link():
    neighbours = make("full", 3).neighbours(0)
    planned = plan(neighbours, np.array([0, 1, 2]), 2, duration=[5, 1, 1])
    assert planned.start.tolist() == [0, 5, 6] and planned.finish.tolist() == [5, 6, 7]


def test_a_link_takes_one_model_at_a_time():
    """Client 3 gets 0's old model in [0, 2], 1's new one, done at 1, in [2, 4], 2's, done at 4, in [4, 6]."""
    neighbours = make("edges", 4, edges=[(3, 0), (3, 1), (3, 2)]).neighbours(0)
    planned = plan(neighbours, np.array([3, 0, 1, 2]), 3, duration=[1, 1, 4, 1], transfer=2)
    assert planned.wait.of(3).tolist() == [1, 2] and planned.start.tolist() == [0, 0, 0, 6]


# Figure 1 of the paper: nodes 1..6 with reuse index = number; N_3 = {2, some x > 3}; x = 6 here.
FIGURE_1 = [(3, 2), (3, 6), (4, 5), (4, 6), (5, 1), (5, 6), (6, 1), (6, 5), (1, 3), (1, 4), (2, 4), (2, 5)]


@pytest.mark.parametrize(
    ("max_wait", "start"),
    [(0, [0, 0, 0, 0, 0, 0]), (1, [0, 0, 1, 0, 1, 1]), (2, [0, 0, 1, 0, 1, 2])],
)
def test_figure_1(max_wait, start):
    neighbours = make("edges", 6, edges=np.array(FIGURE_1) - 1).neighbours(0)
    planned = plan(neighbours, np.arange(6), max_wait)
    assert planned.start.tolist() == start and planned.depth == max(start)
    assert planned.parallelism == start.count(0) / 6


def test_waves_of_figure_1():
    neighbours = make("edges", 6, edges=np.array(FIGURE_1) - 1).neighbours(0)
    waves = plan(neighbours, np.arange(6), 2).waves()
    assert [[turn.client + 1 for turn in wave] for wave in waves] == [[1, 2, 4], [3, 5], [6]]
    assert waves[1][1] == schedule.Turn(client=4, wait_for=(0,), others=(5,))
    assert waves[2][0] == (5, (0, 4), ())
    second = plan(neighbours, np.arange(6), 1).waves()[1]
    assert second[2] == (5, (0,), (4,))  # 1 and 5 come before 6, but 1 is first; 5 gives its last model


@pytest.mark.parametrize("wait_rule", ["fastest", "index"])
def test_turns_cover_the_round(wait_rule):
    rng = np.random.default_rng(0)
    neighbours = make("random", 60, degree=7).neighbours(0)
    rho = reuse_index(60, "random", rng)
    planned = plan(neighbours, rho, 3, wait_rule=wait_rule, duration=rng.random(60))
    done = set()
    for wave in planned.waves():
        assert [rho[turn.client] for turn in wave] == sorted(rho[turn.client] for turn in wave)
        for turn in wave:
            assert set(turn.wait_for) <= done and len(turn.wait_for) <= 3
            assert sorted(turn.wait_for + turn.others) == neighbours.of(turn.client).tolist()
            assert all(planned.finish[j] <= planned.start[turn.client] for j in turn.wait_for)
        done |= {turn.client for turn in wave}
    assert done == set(range(60))


def test_the_fastest_are_waited_for():
    """0 is slow and comes first, 1 and 2 are fast: with N = 2, client 3 takes 1 and 2, by index 0 and 1."""
    neighbours = make("edges", 4, edges=[(3, 0), (3, 1), (3, 2)]).neighbours(0)
    times = {"duration": [9, 1, 1, 1]}
    assert plan(neighbours, np.arange(4), 2, **times).wait.of(3).tolist() == [1, 2]
    assert plan(neighbours, np.arange(4), 2, wait_rule="index", **times).wait.of(3).tolist() == [0, 1]


def test_ties_go_by_reuse_index():
    neighbours = make("edges", 4, edges=[(3, 0), (3, 1), (3, 2)]).neighbours(0)
    assert plan(neighbours, np.array([2, 1, 0, 3]), 1).wait.of(3).tolist() == [2]


def test_other_times_same_waiting():
    """Planned with 0 fast and 1 slow, so 2 waits for 0; then 0 took 7."""
    neighbours = make("edges", 3, edges=[(2, 0), (2, 1)]).neighbours(0)
    planned = plan(neighbours, np.arange(3), 1, duration=[1, 5, 1])
    over = planned.timed([7, 5, 2])
    assert planned.start.tolist() == [0, 0, 1] and over.start.tolist() == [0, 0, 7]
    assert (
        over.finish.tolist() == [7, 5, 9] and over.wait is planned.wait and over.depth == planned.depth == 1
    )
    late = planned.timed([7, 5, 2], transfer=2)  # 1's old model comes in [0, 2], 0's in [7, 9]
    assert late.start.tolist() == [0, 0, 9]
    assert planned.timed([1, 5, 2], transfer=2).start.tolist() == [0, 0, 4]  # 0's waits for the link


def test_no_waiting_is_parallel():
    planned = plan(make("random", 50, degree=9).neighbours(0), np.arange(50), 0)
    assert planned.depth == 0 and planned.parallelism == 1 and not planned.start.any()
    assert len(planned.waves()) == 1 and not any(turn.wait_for for turn in planned.waves()[0])


def test_full_graph_without_bound_is_sequential():
    rho = reuse_index(100, "random", np.random.default_rng(1))
    planned = plan(make("full", 100).neighbours(0), rho, 99)
    assert planned.depth == 99 and planned.start.tolist() == rho.tolist()
    assert [len(wave) for wave in planned.waves()] == [1] * 100


@pytest.mark.parametrize("max_wait", [1, 2, 5, 10, 20])
def test_full_graph_is_as_deep_as_the_bound(max_wait):
    """M = K - 1: after the first `max_wait` in a chain, all others wait for just these."""
    planned = plan(make("full", 100).neighbours(0), reuse_index(100, "random", stream(0, "x")), max_wait)
    assert planned.depth == max_wait


def rounds_at(degree, max_wait, rounds, wait_rule="fastest", seed=0):
    topology = make("random", 100, degree=degree, seed=seed)
    for t in range(rounds):
        rho = reuse_index(100, "random", stream(seed, "reuse", t))
        yield plan(topology.neighbours(t), rho, max_wait, wait_rule=wait_rule)


@pytest.mark.parametrize(
    ("degree", "max_wait", "wait_rule", "expected"),
    [
        (1, 1, "fastest", 3.47),
        (2, 2, "fastest", 5.23),
        (5, 5, "fastest", 10.02),
        (10, 10, "fastest", 17.12),
        (20, 20, "fastest", 29.16),
        (50, 50, "fastest", 57.68),
        (10, 1, "fastest", 2.75),
        (10, 2, "fastest", 4.27),
        (10, 5, "fastest", 9.15),
        (10, 1, "index", 3.74),
        (10, 2, "index", 5.46),
        (10, 5, "index", 10.24),
    ],
)
def test_mean_depth_of_the_specification(degree, max_wait, wait_rule, expected):
    depths = [planned.depth for planned in rounds_at(degree, max_wait, 300, wait_rule)]
    error = np.std(depths, ddof=1) / np.sqrt(len(depths))
    assert abs(np.mean(depths) - expected) < 3 * error + 0.005  # the figure is rounded


@pytest.mark.parametrize("degree", [1, 5, 10, 50])
@pytest.mark.parametrize("max_wait", [1, 3])
def test_share_that_starts_at_once(degree, max_wait):
    """A client waits for nobody when it has the smallest rho of the M + 1 of itself and its neighbours."""
    shares = [planned.parallelism for planned in rounds_at(degree, max_wait, 150, seed=5)]
    error = np.std(shares, ddof=1) / np.sqrt(len(shares))
    assert abs(np.mean(shares) - 1 / (degree + 1)) < 3 * error


def test_number_of_priors_is_hypergeometric():
    """Of the K - 1 others rank - 1 come before; M of them are drawn."""
    rounds, ranks = 1000, [1, 2, 11, 50, 95, 100]
    counts = {rank: np.zeros(11) for rank in ranks}
    for planned in rounds_at(10, 10, rounds, seed=8):  # N = M: A* is A
        size = planned.wait.degrees[np.argsort(planned.reuse)]
        for rank in ranks:
            counts[rank][size[rank - 1]] += 1
    for rank in ranks:
        expected = stats.hypergeom(99, rank - 1, 10).pmf(np.arange(11)) * rounds
        assert not counts[rank][expected == 0].any()
        common = expected >= 5
        seen = np.append(counts[rank][common], counts[rank][~common].sum())
        wanted = np.append(expected[common], expected[~common].sum() + 1e-9)
        assert stats.chisquare(seen, wanted * rounds / wanted.sum()).pvalue > 1e-3


def test_a_million_clients():
    """Under 10 s of processor time and 2 GB, and right."""
    tracemalloc.start()
    begin = process_time()
    neighbours = make("random", 1_000_000, degree=10).neighbours(0)
    planned = plan(neighbours, reuse_index(1_000_000, "random", stream(0, "reuse")), 5)
    seconds, (_, peak) = process_time() - begin, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 10 and peak < 2e9, (seconds, peak)
    takers, givers = planned.wait.takers(), planned.wait.indices
    assert (planned.reuse[givers] < planned.reuse[takers]).all() and planned.wait.degrees.max() == 5
    latest = np.zeros(1_000_000)
    np.maximum.at(latest, takers, planned.finish[givers])
    assert np.array_equal(planned.start, latest) and np.array_equal(planned.start, planned.wave)
    assert abs(planned.parallelism - 1 / 11) < 4 * np.sqrt(10) / 11 / 1000


def test_a_long_chain():
    """A line in order of id has a level a client."""
    planned = plan(make("line", 20_000).neighbours(0), np.arange(20_000), 1)
    assert planned.depth == 19_999 and np.array_equal(planned.start, np.arange(20_000))


def test_reuse_index():
    first, second = (reuse_index(30, "random", stream(0, "reuse", t)) for t in (0, 1))
    assert sorted(first) == sorted(second) == list(range(30)) and first.tolist() != second.tolist()
    assert reuse_index(5, "id", stream(0, "reuse")).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match=r"expected a reuse index out of \['random', 'id'\], got 'best'"):
        reuse_index(5, "best", stream(0, "reuse"))


@pytest.mark.parametrize(
    ("num_rounds", "max_wait", "expected"),
    [
        (10, 2, [2, 2, 2, 1, 1, 1, 0, 0, 0, 0]),
        (11, 3, [3, 3, 2, 2, 1, 1, 0, 0, 0, 0, 0]),
        (4, 3, [3, 2, 1, 0]),
        (3, 3, [0, 0, 0]),
        (3, 0, [0, 0, 0]),
    ],
)
def test_staircase(num_rounds, max_wait, expected):
    assert [max_wait_at(t, num_rounds, max_wait, "staircase") for t in range(num_rounds)] == expected
    assert [max_wait_at(t, num_rounds, max_wait) for t in range(num_rounds)] == [max_wait] * num_rounds


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 5, -1), "expected max_wait >= 0"),
        ((5, 5, 1), "expected .* a round t < num_rounds, got max_wait=1, t=5, num_rounds=5"),
        (
            (0, 5, 1, "stairs"),
            r"expected a rule for max_wait out of \['constant', 'staircase'\], got 'stairs'",
        ),
    ],
)
def test_max_wait_at_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        max_wait_at(*arguments)


@pytest.mark.parametrize(
    ("reuse", "max_wait", "options", "message"),
    [
        ([0, 1], 1, {}, r"expected a permutation of 0..2 as reuse index, got \[0 1\]"),
        ([0, 1, 1], 1, {}, "expected a permutation"),
        ([0, 1, 2], -1, {}, "expected max_wait >= 0, got -1"),
        ([0, 1, 2], 1, {"wait_rule": "slowest"}, r"expected a wait rule out of \['fastest', 'index'\]"),
        ([0, 1, 2], 1, {"duration": [1, 2]}, r"expected duration >= 0, a number or 3 of them, got \[1, 2\]"),
        ([0, 1, 2], 1, {"duration": -1}, "expected duration >= 0"),
        ([0, 1, 2], 1, {"transfer": float("nan")}, "expected transfer >= 0"),
    ],
)
def test_plan_refuses(reuse, max_wait, options, message):
    with pytest.raises(ValueError, match=message):
        plan(make("ring", 3).neighbours(0), np.array(reuse), max_wait, **options)


@pytest.mark.parametrize("ranks", [None, 1, 7, 40, 1000])
def test_steps_need_earlier_steps_only(ranks):
    """In windows by rho, and models of the last round are not needed for longer than a window."""
    rng = np.random.default_rng(3)
    planned = plan(make("random", 200, degree=6).neighbours(0), rng.permutation(200), 10)
    steps = planned.steps(ranks)
    at = np.empty(200, int)
    at[np.concatenate(steps)] = np.repeat(np.arange(len(steps)), [len(step) for step in steps])
    assert sorted(np.concatenate(steps).tolist()) == [*range(200)]
    wait = planned.wait
    assert (at[wait.takers()] > at[wait.indices]).all()
    if ranks is not None:
        window = planned.reuse[np.concatenate(steps)] // ranks
        assert (np.diff(window) >= 0).all()
    else:
        assert [sorted(step) for step in steps] == [
            sorted(turn.client for turn in wave) for wave in planned.waves()
        ]
