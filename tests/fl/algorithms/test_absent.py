"""Clients that are absent: what the others start from, by hand, and what is kept."""

from dataclasses import replace

import numpy as np
import pytest
from by_hand import W0, bitmap, env, model, numbers, rounds
from fakes import Serial, Trainer, make_env
from hypothesis import given, settings
from hypothesis import strategies as st

import sparse_engine as se
from fl.algorithms import beer, dfedavgm, dfedsam, fedavg, gossipfl
from fl.config import Training
from fl.world import topology
from fl.world.presence import Attendance

GAINS = np.array([[3, -3, 0, 3, 3], [6, 6, -6, 0, 6], [0, 12, 12, 12, 9]])


def without(world, absent, policy):
    there = np.ones(world.num_clients, bool)
    there[absent] = False
    return replace(world, attendance=Attendance(there, policy))


def starts(world, clients):
    return numbers(world.executor.trainer.starts[k] for k in clients)


@pytest.mark.parametrize("policy", ["last_model", "skip"])
def test_dfedsam_takes_the_last_model_or_none(policy):
    """A line 0 - 1 - 2. Client 1 is absent in round 1: its model of round 0 is used, or it is left out."""
    world = env(dfedsam.Config(), GAINS)
    (first,) = rounds(dfedsam, world, 1)
    world.executor.trainer.starts.clear()
    (second,) = rounds(dfedsam, without(world, [1], policy), 1, first.state, 1)
    z = W0 + GAINS
    wanted = [(z[0] + z[1]) / 2, (z[1] + z[2]) / 2] if policy == "last_model" else [z[0], z[2]]
    assert set(world.executor.trainer.starts) == {0, 2} == set(second.reports)
    assert starts(world, (0, 2)) == pytest.approx(np.array(wanted), rel=1e-6)
    assert not second.traffic.up.any() and not second.traffic.down.any()
    assert second.state.clients[1] == first.state.clients[1]
    assert numbers(second.models)[1] == pytest.approx(z[1])


def test_dfedavgm_adds_no_change_twice():
    """Client 1 is absent in round 1: its difference counts as 0 of two (`last_model`), or not at all."""
    for policy, count in (("last_model", 2), ("skip", 1)):
        world = env(dfedavgm.Config(values="fp32"), GAINS)
        (first,) = rounds(dfedavgm, world, 1)
        (second,) = rounds(dfedavgm, without(world, [1], policy), 1, first.state, 1)
        assert starts(world, (0, 2)) == pytest.approx(W0 + GAINS[[0, 2]] / count, rel=1e-6)
        assert numbers(second.models) == pytest.approx(
            np.stack([W0 + GAINS[0] / count + GAINS[0], W0 + GAINS[1], W0 + GAINS[2] / count + GAINS[2]]),
            rel=1e-6,
        )
        (third,) = rounds(dfedavgm, world, 1, second.state, 2)  # back: its first difference, once
        x = W0 + GAINS[[0, 2]] / count + (GAINS[[0, 2]] + GAINS[1]) / 2
        assert starts(world, (0, 2)) == pytest.approx(x, rel=1e-6)
        assert set(third.reports) == {0, 1, 2}


def test_gossipfl_mixes_on_the_mask_of_the_round(monkeypatch):
    """One group of three. Client 2 misses round 1 and is back in round 2 with its message on m^1: it counts
    where m^1 and m^2 meet, and itself mixes on m^2."""
    masks = ["1100", "0110", "0011", "1001"]
    monkeypatch.setattr(gossipfl, "shared_mask", lambda env, t: bitmap(masks[t]))
    world = env(gossipfl.Config(), GAINS, "random")
    (first,) = rounds(gossipfl, world, 1)
    (second,) = rounds(gossipfl, without(world, [2], "skip"), 1, first.state, 1)
    z = numbers(second.models)
    rounds(gossipfl, without(world, [], "skip"), 1, second.state, 2)
    got = starts(world, (0, 1, 2))
    assert got[:, :2] == pytest.approx(z[:, :2])  # not on m^2: everybody keeps its own
    assert got[:, 2] == pytest.approx(np.full(3, z[:, 2].mean()))  # on m^1 and m^2: all three
    assert got[:2, 3] == pytest.approx(np.full(2, z[:2, 3].mean()))  # on m^2 alone: 0 and 1
    assert got[2, 3] == pytest.approx(z[:, 3].mean())  # client 2 has its own value, and theirs


def test_fedavg_samples_among_those_that_are_there():
    world = env(fedavg.Config(clients_per_round=2), GAINS)
    for absent, most in (([0], 2), ([0, 2], 1), ([0, 1, 2], 0)):
        (done,) = rounds(fedavg, without(world, absent, "skip"), 1)
        assert len(done.reports) == most and not set(done.reports) & set(absent)
        assert done.facts["sampled"] == most
    state = fedavg.init(world)
    (empty,) = rounds(fedavg, without(world, [0, 1, 2], "skip"), 1, state)
    assert empty.state is state and empty.facts["accuracy_global"] is None


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_beer_keeps_the_sum_of_v_minus_g(data):
    """With `skip`, whoever is there, in rounds of any kind; with everybody, it is BEER."""
    clients = data.draw(st.integers(3, 6))
    goals = np.random.default_rng(1).normal(size=(clients, 5))

    def gradient(k, state):
        return model(numbers([state])[0] - goals[k])

    def train(k, start, local):
        return se.combine([start, gradient(k, start)], [1, -local.lr])

    initial = model([0] * 5)
    world = make_env(
        beer.Config.model_validate({"lr": 0.5, "gamma": 0.75, "compression": {"kind": "identity"}}),
        clients,
        Serial(Trainer(initial, train, gradient=gradient)),
        initial=initial,
        topology=topology.make("ring", clients),
        training=Training(lr_decay=1.0),
    )
    state = beer.init(world)
    for t in range(4):
        there = np.array(data.draw(st.lists(st.booleans(), min_size=clients, max_size=clients)))
        before = state
        state = beer.run_round(state, t, replace(world, attendance=Attendance(there, "skip"))).state
        V, g = (numbers(getattr(c, name) for c in state.clients) for name in "Vg")
        assert np.allclose((V - g).sum(0), 0, atol=1e-4)
        assert all(state.clients[k] is before.clients[k] for k in np.flatnonzero(~there))
