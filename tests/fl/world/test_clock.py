"""The clock of a round: planning and reporting agree; rounds by hand; the figures of algorithms.md 7."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl import config
from fl.world.clock import MESSAGES, Clock, RoundCost, received
from fl.world.devices import Devices, draw
from fl.world.schedule import reuse_index
from fl.world.topology import make

RESNET18_FLOP = 5 * 499 * 3 * 1_110_845_450
RESNET18_BYTES = 4 * 11_173_962


def planned_and_cost(clock, neighbours, max_wait, flop, message_bytes):
    work = {"flop": flop, "message_bytes": message_bytes}
    planned = clock.plan(neighbours, np.arange(neighbours.num_clients), max_wait, **work)
    return planned, clock.cost(planned, flop=flop, received=received(neighbours, message_bytes))


def waits(schedule):
    return [schedule.wait.of(k).tolist() for k in range(schedule.wait.num_clients)]


def test_a_round_without_waiting():
    """100 clients, 10 dense ResNet18 each: T_comp 0.52 s, 426.3 MB in 3.58 s; 450 W and 1 W."""
    neighbours = make("random", 100, degree=10).neighbours(0)
    clock = Clock.of(config.Devices(), 100, seed=0, t=0)
    schedule, cost = planned_and_cost(clock, neighbours, 0, RESNET18_FLOP, RESNET18_BYTES)
    train_s, link_s = RESNET18_FLOP * 5 / 80e12, 10 * RESNET18_BYTES * 8 / 1e9
    assert train_s == pytest.approx(0.51967, rel=1e-4) and link_s == pytest.approx(3.57567, rel=1e-4)
    assert 10 * RESNET18_BYTES / 2**20 == pytest.approx(426.3, abs=0.05)
    assert schedule.depth == 0 and cost.time_s == pytest.approx(train_s + link_s)
    assert cost.compute_j == pytest.approx(100 * 450 * train_s)
    assert cost.radio_j == pytest.approx(100 * link_s)
    assert cost.idle_j == 0 and cost.energy_j == cost.compute_j + cost.radio_j


def test_a_waiting_round_lasts_depth_and_one_trainings():
    neighbours = make("random", 100, degree=10).neighbours(0)
    clock = Clock.of(config.Devices(), 100, seed=0, t=0)
    schedule, cost = planned_and_cost(clock, neighbours, 10, 16e12, 0)
    assert schedule.depth > 5 and cost.time_s == pytest.approx(schedule.depth + 1)


def chain(messages):
    """0 <- 1 <- 2, training 1, 2, 4 s; a message of 1 s; 0 takes from 2, of the last round."""
    neighbours = make("edges", 3, edges=[(1, 0), (2, 1), (0, 2)]).neighbours(0)
    model = config.Devices(compute_watts=10, radio_watts=2, idle_watts=1)
    devices = Devices(np.array([1.0, 0.5, 0.25]), np.array([8.0, 8.0, 8.0]))
    return planned_and_cost(Clock(model, devices, messages), neighbours, 1, 1, 1)


def test_messages_after_by_hand():
    schedule, cost = chain("after")
    assert schedule.start.tolist() == [0, 1, 3] and schedule.finish.tolist() == [1, 3, 7]
    assert cost == RoundCost(time_s=8, compute_j=70, radio_j=6, idle_j=24 - 7 - 3)


def test_messages_during_by_hand():
    schedule, cost = chain("during")
    assert schedule.start.tolist() == [1, 3, 6] and schedule.finish.tolist() == [2, 5, 10]
    assert cost == RoundCost(time_s=10, compute_j=70, radio_j=6, idle_j=30 - 7 - 3)


def test_the_two_ways_agree_without_waiting():
    neighbours = make("ring", 20).neighbours(0)
    clocks = [Clock.of(config.Devices(), 20, 0, 0, messages) for messages in MESSAGES]
    costs = [planned_and_cost(clock, neighbours, 0, 1e12, 1e7)[1] for clock in clocks]
    assert costs[0] == pytest.approx(costs[1])


def three(flop_rate, flop, messages="after", message_bytes=(0, 0, 0)):
    """Client 2 takes from 0 and 1, and waits for the first of them; links carry a byte per second."""
    neighbours = make("edges", 3, edges=[(2, 0), (2, 1)]).neighbours(0)
    clock = Clock(config.Devices(), Devices(np.array(flop_rate, float), np.full(3, 8.0)), messages)
    return clock, clock.plan(neighbours, np.arange(3), 1, flop=flop, message_bytes=message_bytes)


def test_three_clients_by_hand():
    """Rates 2, 1, 4 and 8, 2, 20 FLOP: trainings of 4, 2, 5 s. So 2 waits for 1, and is done at 7. Then 1
    does 6 FLOP, which nobody knew: 2 waits for it all the same, and is done at 11. Its link takes 5 s."""
    clock, planned = three([2, 1, 4], [8, 2, 20])
    assert waits(planned) == [[], [], [1]]
    assert planned.start.tolist() == [0, 0, 2] and planned.finish.tolist() == [4, 2, 7]
    went = {"flop": [8, 6, 20], "received": [0, 0, 5]}
    timed = clock.timed(planned, **went)
    assert waits(timed) == [[], [], [1]]
    assert timed.start.tolist() == [0, 0, 6] and timed.finish.tolist() == [4, 6, 11]
    cost = clock.cost(timed, **went)
    assert (cost.time_s, cost.compute_j, cost.radio_j) == (11 + 5, 450 * (4 + 6 + 5), 5)


def test_a_slow_device_is_waited_for_only_where_nobody_else_is_there():
    assert waits(three([1, 1, 1], 6)[1])[2] == [0]  # a tie: by reuse index
    assert waits(three([0.5, 1, 1], 6)[1])[2] == [1]  # 0 is slow
    _, planned = three([0.5, 0.4, 1], 6)  # 1 is slower still
    assert waits(planned)[2] == [0] and planned.start[2] == 12
    neighbours = make("edges", 3, edges=[(2, 0), (1, 2)]).neighbours(0)
    clock = Clock(config.Devices(), Devices(np.array([0.01, 1, 1]), np.full(3, 8.0)))
    alone = clock.plan(neighbours, np.arange(3), 1, flop=6, message_bytes=0)
    assert waits(alone) == [[], [], [0]] and alone.start.tolist() == [0, 0, 600]  # 2 has no other prior


def test_operations_shift_the_order():
    """On equal devices who has pruned more is first; on others both count."""
    assert waits(three([1, 1, 1], [10, 9, 10])[1])[2] == [1]
    assert waits(three([1, 1, 1], [8, 9, 10])[1])[2] == [0]
    assert waits(three([2, 1, 1], [10, 9, 10])[1])[2] == [0]


def test_bytes_count_where_messages_come_during_training():
    """3 waits for the first of 1, which trains for 5 s, and 2, which takes two models and trains for 1 s."""
    neighbours = make("edges", 4, edges=[(2, 0), (2, 1), (3, 2), (3, 1)]).neighbours(0)
    reuse = np.array([2, 1, 0, 3])
    devices = Devices(np.array([1.0, 0.2, 1.0, 1.0]), np.full(4, 8.0))
    found = {
        (messages, size): waits(
            Clock(config.Devices(), devices, messages).plan(neighbours, reuse, 1, flop=1, message_bytes=size)
        )[3]
        for messages in MESSAGES
        for size in (1, 5)
    }
    assert found == {("after", 1): [2], ("after", 5): [2], ("during", 1): [2], ("during", 5): [1]}


def test_a_server_has_the_usual_link():
    neighbours = make("edges", 2, edges=np.empty((0, 2), int)).neighbours(0)
    clock = Clock(config.Devices(bandwidth=16), Devices(np.ones(2), np.array([8.0, 4.0])))
    planned = clock.plan(neighbours, np.arange(2), 0, flop=3, message_bytes=0)
    cost = clock.cost(planned, flop=3, received=[1, 2, 20])
    assert cost.radio_j == 1 + 4 + 10 and cost.time_s == 3 + 10


ROUNDS = {
    "num_clients": st.integers(2, 120),
    "degree": st.integers(1, 40),
    "max_wait": st.integers(0, 8),
    "kind": st.sampled_from(["homogeneous", "uniform", "lognormal"]),
    "messages": st.sampled_from(MESSAGES),
    "wait_rule": st.sampled_from(["fastest", "index"]),
    "pruned": st.booleans(),
    "seed": st.integers(0, 10**6),
}


def a_round(num_clients, degree, max_wait, kind, messages, wait_rule, pruned, seed):
    """A clock, the plan of a round, and the FLOP and bytes that it was planned with."""
    rng = np.random.default_rng(seed)
    neighbours = make("random", num_clients, degree=1 + degree % (num_clients - 1), seed=seed).neighbours(0)
    clock = Clock.of(config.Devices(kind=kind, spread=0.6), num_clients, seed, 3, messages)
    flop = rng.integers(10**9, 10**12, num_clients) if pruned else np.full(num_clients, 10**11)
    sizes = rng.integers(1, 10**8, num_clients)
    reuse = reuse_index(num_clients, "random", rng)
    options = {"flop": flop, "message_bytes": sizes, "wait_rule": wait_rule}
    return clock, clock.plan(neighbours, reuse, max_wait, **options), flop, received(neighbours, sizes)


@settings(max_examples=100, deadline=None)
@given(**ROUNDS)
def test_planning_and_reporting_agree(**options):
    """A round that goes as planned is reported as planned, bit by bit."""
    clock, planned, flop, taken = a_round(**options)
    timed = clock.timed(planned, flop=flop, received=taken)
    assert np.array_equal(timed.start, planned.start) and np.array_equal(timed.finish, planned.finish)
    work = {"flop": flop, "received": taken}
    assert clock.cost(timed, **work) == clock.cost(planned, **work)


@settings(max_examples=100, deadline=None)
@given(**ROUNDS)
def test_a_round_that_goes_otherwise_keeps_who_waits_for_whom(**options):
    clock, planned, flop, taken = a_round(**options)
    rng = np.random.default_rng(options["seed"] + 1)
    flop, taken = flop * rng.random(len(flop)), taken * rng.random(len(flop))
    timed = clock.timed(planned, flop=flop, received=taken)
    assert timed.wait is planned.wait and timed.wave is planned.wave
    assert np.array_equal(timed.finish, timed.start + clock.devices.train_seconds(flop))
    latest = np.zeros(len(flop))
    np.maximum.at(latest, timed.wait.takers(), timed.finish[timed.wait.indices])
    assert (timed.start >= latest).all()
    if clock.messages == "after":
        assert np.array_equal(timed.start, latest)


def test_the_devices_of_a_round_are_those_of_the_model():
    model = config.Devices(kind="lognormal", spread=0.5)
    clock, drawn = Clock.of(model, 9, seed=4, t=2), draw(model, 9, seed=4, t=2)
    assert all(np.array_equal(a, b) for a, b in zip(clock.devices, drawn, strict=True))


def test_received_bytes():
    neighbours = make("edges", 4, edges=[(0, 1), (0, 2), (3, 2)]).neighbours(0)
    assert received(neighbours, [1, 10, 100, 1000]).tolist() == [110, 0, 0, 100]
    assert received(neighbours, 7).tolist() == [14, 0, 0, 7]


def test_dollars():
    cost = RoundCost(time_s=2, compute_j=30, radio_j=9, idle_j=1)
    assert cost.dollars(0) == 2 and cost.dollars(1) == 40 and cost.dollars(0.25) == 11.5


def test_wrong_messages_are_refused():
    with pytest.raises(ValueError, match=r"expected messages out of \['after', 'during'\], got 'never'"):
        chain("never")
