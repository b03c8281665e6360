"""DFedSAM: two rounds of three clients by hand, what mixing keeps, and rho = 0, which is DFedAvg."""

import numpy as np
import pytest
import torch
from by_hand import INITIAL, env, model, numbers, rounds
from fakes import Serial, make_env, trained

import sparse_engine as se
from fl.algorithms import dfedavgm, dfedsam
from fl.algorithms.base import Peers
from fl.algorithms.dfedsam import Client, Config
from fl.algorithms.messages import Sent
from fl.clients.memory import InMemory
from fl.config import Messages
from fl.run import setup
from fl.train.worker import Worker
from fl.world import topology

GAINS = np.array([[1, 0, 0, 2, 4], [2, 4, 0, 0, 4], [6, 0, 8, 0, 4]])


def test_two_rounds_by_hand():
    """In a line 0 - 1 - 2."""
    world = env(Config(), GAINS)
    first, second = rounds(dfedsam, world, 2)
    # all start from w0, so the first means are w0
    assert numbers(first.models).tolist() == [
        [2, 2, 3, 6, 14],
        [3, 6, 3, 4, 14],
        [7, 2, 11, 4, 14],
    ]
    starts = numbers(world.executor.trainer.starts[k] for k in range(3))
    assert starts[0] == pytest.approx([2.5, 4, 3, 5, 14])  # of 0 and 1
    assert starts[1] == pytest.approx([4, 10 / 3, 17 / 3, 14 / 3, 14])  # of all three
    assert starts[2] == pytest.approx([5, 4, 7, 4, 14])  # of 1 and 2
    assert numbers(second.models) == pytest.approx(starts + GAINS)
    assert [m is c.model for m, c in zip(second.models, second.state.clients, strict=True)] == [True] * 3
    assert second.schedule.depth == 0 and second.schedule.parallelism == 1
    # a message: 64 byte of header, 4 of mask (a count: it is full), 4 a number; both neighbours of 1 take one
    assert len(se.wire.encode(INITIAL)) == 88
    assert (
        second.traffic.up.tolist()
        == second.traffic.down.tolist()
        == [
            [88, 20, 20],
            [176, 40, 40],
            [88, 20, 20],
        ]
    )


def test_what_training_is_told():
    world = env(Config(), GAINS)
    rounds(dfedsam, world, 1)
    assert world.executor.trainer.told("rho", "momentum", "max_norm") == [(0.01, 0.9, 10.0)] * 3
    world = env(Config(rho=0.2, momentum=0.5, max_norm=None), GAINS)
    rounds(dfedsam, world, 1)
    assert world.executor.trainer.told("rho", "momentum", "max_norm") == [(0.2, 0.5, None)] * 3


@pytest.mark.parametrize(
    ("kind", "kept"), [("ring", True), ("full", True), ("regular", True), ("star", False)]
)
def test_doubly_stochastic_mixing_keeps_the_mean(kind, kept):
    draw = np.random.default_rng(0)
    old, nothing = draw.normal(size=(8, 5)), np.zeros((8, 5))
    state = Peers(InMemory(Client(model(x), Sent.exact(model(x))) for x in old))
    (done,) = rounds(dfedsam, env(Config(), nothing, kind, degree=3), 1, state)
    mean = numbers(done.models).mean(0)
    assert np.allclose(mean, old.mean(0), atol=1e-6) == kept


def test_rounded_messages_reach_neighbours_only():
    """The client itself mixes its exact model, and what a message lost goes into its next one."""
    gains = np.random.default_rng(1).normal(size=(3, 5))
    world = env(Config(), gains, "full", messages=Messages(values="bf16"))
    first, second = rounds(dfedsam, world, 2)
    sent = [client.sent for client in first.state.clients]
    exact, rounded = numbers(first.models), numbers(s.model for s in sent)
    assert 0 < np.abs(exact - rounded).max() < 0.02
    start = numbers([world.executor.trainer.starts[1]])[0]
    assert start == pytest.approx((exact[1] + rounded[0] + rounded[2]) / 3, abs=1e-6)
    lost = numbers(c.sent.lost for c in second.state.clients)
    again = numbers(c.sent.model for c in second.state.clients)
    assert (again + lost)[:, :4] == pytest.approx((numbers(second.models) + exact - rounded)[:, :4], abs=1e-6)


@pytest.fixture(scope="module")
def setting(tiny):
    return setup.prepare(tiny("num_clients=4"))


def world_of(setting, cfg, kind):
    graph = topology.make(kind, 4, degree=2)
    given = {"initial": setting.initial, "training": setting.training, "num_rounds": 5}
    return make_env(cfg, 4, Serial(Worker(setting)), topology=graph, **given)


def test_without_going_uphill_it_is_dfedavg_bit_by_bit(setting):
    world = world_of(setting, Config(rho=0.0), "random")
    done = rounds(dfedsam, world, 3)
    worker, models = Worker(setting), [setting.initial] * 4
    for t in range(3):
        near = [[models[j] for j in world.topology.neighbours(t).of(k)] for k in range(4)]
        starts = [se.average(models[k], near[k]) for k in range(4)]
        models = [trained(worker, k, t, x, momentum=0.9, max_norm=10.0).model for k, x in enumerate(starts)]
        for ours, theirs in zip(done[t].models, models, strict=True):
            assert torch.equal(ours.values, theirs.values) and torch.equal(ours.rest, theirs.rest)
    before, after = ([client.sent.nbytes for client in done[t].state.clients] for t in (1, 2))
    takers = world.topology.neighbours(2).receivers
    assert done[2].traffic.up[:, 0].tolist() == (takers * before).tolist() and before != after
    uphill = rounds(dfedsam, world_of(setting, Config(), "random"), 3)
    assert not torch.equal(uphill[-1].models[0].values, models[0].values)


def test_on_the_full_graph_that_is_dfedavgm_without_quantisation(setting):
    """All have one x there, so that x + mean(z - x) is mean(z)."""
    ours = rounds(dfedsam, world_of(setting, Config(rho=0.0), "full"), 2)
    theirs = rounds(dfedavgm, world_of(setting, dfedavgm.Config(values="fp32"), "full"), 2)
    for a, b in zip(ours[-1].models, theirs[-1].models, strict=True):
        assert torch.allclose(a.values, b.values, rtol=1e-3, atol=1e-5)
        assert torch.allclose(a.rest, b.rest, rtol=1e-3, atol=1e-5)
    assert not torch.allclose(ours[-1].models[0].values, ours[-1].models[1].values, rtol=1e-3, atol=1e-3)
