"""Who is there in a round, and what that leaves of its links and turns."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl import config
from fl.errors import ConfigError
from fl.world import presence, schedule, topology
from fl.world.presence import EVERYBODY, Attendance


def make(num_clients=1000, seed=0, **keys):
    return presence.make(config.Presence(**keys), num_clients, seed)


def links_of(neighbours):
    return {*zip(neighbours.takers().tolist(), neighbours.indices.tolist(), strict=True)}


def test_always_is_everybody():
    assert make().at(3) is EVERYBODY and EVERYBODY.there is None
    assert EVERYBODY.present(3).tolist() == [0, 1, 2] and EVERYBODY.has(2)


@pytest.mark.parametrize(("rate", "there"), [(0.0, 1000), (1.0, 0)])
def test_nobody_or_everybody(rate, there):
    assert [make(kind="rate", rate=rate).at(t).there.sum() for t in range(3)] == [there] * 3


def test_the_rate_is_that_of_absent_clients():
    shares = [make(20_000, kind="rate", rate=0.3).at(t).there.mean() for t in range(5)]
    assert np.mean(shares) == pytest.approx(0.7, abs=4 * np.sqrt(0.21 / 100_000))
    assert len({*shares}) == 5


def test_sessions_have_the_lengths_that_were_asked_for():
    model = make(2000, kind="sessions", online=8, offline=2)
    there = np.array([model.at(t).there for t in range(300)])
    share = there.mean(axis=1)
    assert share.mean() == pytest.approx(0.8, abs=0.01)
    assert share[:5].mean() == pytest.approx(0.8, abs=0.03)  # from round 0 on
    before, after = there[:-1], there[1:]
    assert (before & ~after).sum() / before.sum() == pytest.approx(1 / 8, rel=0.03)
    assert (~before & after).sum() / (~before).sum() == pytest.approx(1 / 2, rel=0.03)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.integers(0, 2**32))
def test_a_round_does_not_depend_on_who_asked_before(rounds, seed):
    keys = {"kind": "sessions", "online": 3.0, "offline": 2.0}
    walked = make(40, seed, **keys)
    for t in rounds:
        assert np.array_equal(walked.at(t).there, make(40, seed, **keys).at(t).there)


def test_hours_of_a_trace(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("client,hours_online\n0,0-12\n1,12-24\n2,always\n")
    model = make(3, kind="trace", trace=str(path), round_hours=6.0, start_hour=6.0)
    assert [model.at(t).there.tolist() for t in range(4)] == [
        [True, False, True],
        [False, True, True],
        [False, True, True],
        [True, False, True],
    ]
    path.write_text("client,speed\n0,1\n")
    with pytest.raises(ConfigError, match="presence.trace: expected a column hours_online"):
        make(1, kind="trace", trace=str(path))


def test_links_by_hand():
    ring = topology.make("ring", 4).neighbours(0)
    there = np.array([True, True, False, True])
    skip, last = Attendance(there, "skip"), Attendance(there, "last_model")
    between = {(0, 1), (1, 0), (0, 3), (3, 0)}
    assert links_of(skip.live(ring)) == links_of(last.live(ring)) == links_of(skip.taken(ring)) == between
    assert links_of(last.taken(ring)) == between | {(1, 2), (3, 2)}
    assert links_of(last.stale(ring)) == {(1, 2), (3, 2)} and links_of(skip.stale(ring)) == set()
    assert last.present(4).tolist() == [0, 1, 3] and not last.has(2)


def test_steps_are_of_those_that_are_there():
    """0 <- 1 <- 2 <- 3 in the order of numbers; 1 is absent: nobody waits for it."""
    chain = topology.from_links(4, np.array([1, 2, 3]), np.array([0, 1, 2]))
    crowd = Attendance(np.array([True, False, True, True]))
    plan = schedule.plan(crowd.live(chain), np.arange(4), 4)
    assert [crowd.of(step).tolist() for step in plan.steps()] == [[0, 2], [3]]
    assert Attendance().of(np.arange(3)).tolist() == [0, 1, 2]
    assert Attendance(np.zeros(4, bool)).of(np.arange(4)).tolist() == []


@given(st.data())
def test_links_are_divided(data):
    """Taken ones are live or stale; all are of clients that are there; where all are, nothing changes."""
    num_clients = data.draw(st.integers(3, 12))
    graph = topology.make("random", num_clients, degree=2, seed=data.draw(st.integers(0, 99))).neighbours(0)
    there = np.array(data.draw(st.lists(st.booleans(), min_size=num_clients, max_size=num_clients)))
    for policy in ("last_model", "skip"):
        crowd = Attendance(there, policy)
        live, taken, stale = (links_of(f(graph)) for f in (crowd.live, crowd.taken, crowd.stale))
        assert live | stale == taken and not live & stale
        assert live == {(k, j) for k, j in links_of(graph) if there[k] and there[j]}
        assert all(there[k] and not there[j] for k, j in stale)
        everybody = Attendance(np.ones(num_clients, bool), policy)
        assert everybody.live(graph) is graph and everybody.taken(graph) is graph
        assert not links_of(everybody.stale(graph))
