"""DFedAvgM: three rounds of three clients by hand, Q by hand, what mixing keeps, bytes."""

import numpy as np
import pytest
import torch
from by_hand import W0, env, model, numbers, rounds

from fl.algorithms import dfedavgm
from fl.algorithms.base import Peers
from fl.algorithms.dfedavgm import Client, Config
from fl.algorithms.messages import send
from fl.clients.memory import InMemory
from fl.config import Messages

GAINS = np.array([[3, -3, 0, 3, 3], [6, 6, -6, 0, 6], [0, 12, 12, 12, 9]])  # Q leaves them as they are


def starts(world):
    return numbers(world.executor.trainer.starts[k] for k in range(world.num_clients))


def test_three_rounds_by_hand():
    """In a line 0 - 1 - 2: everybody adds the mean of the differences around it to its own x."""
    world = env(Config(), GAINS)
    means = np.array([(GAINS[0] + GAINS[1]) / 2, GAINS.sum(0) / 3, (GAINS[1] + GAINS[2]) / 2])
    assert means[0].tolist() == [4.5, 1.5, -3, 1.5, 4.5] and means[1].tolist() == [3, 5, 2, 5, 6]
    state = None
    for t, x in enumerate([W0 + 0 * means, W0 + means, W0 + 2 * means]):
        (done,) = rounds(dfedavgm, world, 1, state, t)
        state = done.state
        assert starts(world) == pytest.approx(x, rel=1e-6)
        assert numbers(c.start for c in state.clients).tolist() == starts(world).tolist()
        assert numbers(done.models) == pytest.approx(x + GAINS, rel=1e-6)  # z
        assert numbers(c.sent.model for c in state.clients) == pytest.approx(GAINS, rel=1e-6)  # Q(z - x)
    assert world.executor.trainer.told("momentum", "max_norm") == [(0.9, 10.0)] * 9


def test_the_grid_by_hand():
    """s = 1: a difference of 32767 sets it for all four weights; halves go to the even one."""
    gains = np.array([[32767, 0.75, -0.375, 2.5, 0.3]] * 3)
    (first,) = rounds(dfedavgm, env(Config(), gains), 1)
    q = numbers([first.state.clients[1].sent.model])[0]
    assert q[:4].tolist() == [32767, 1, 0, 2] and q[4] == pytest.approx(0.3, rel=1e-5)  # the bias is float32


def test_bytes():
    """A message: 64 byte of header, 4 of mask, a scale, 2 a weight, 4 of bias; the paper: 2 a number."""
    draw = np.random.default_rng(2).normal(size=(3, 5))
    first, second = rounds(dfedavgm, env(Config(), draw), 2)
    assert (
        second.traffic.up.tolist()
        == second.traffic.down.tolist()
        == [
            [84, 10, 20],
            [168, 20, 40],
            [84, 10, 20],
        ]
    )
    assert first.traffic.up[:, 1].tolist() == [10, 20, 10] and first.state.clients[0].sent.lost is None
    exact = rounds(dfedavgm, env(Config(values="fp32"), draw), 2)[-1]
    assert exact.traffic.up[:, 0].tolist() == [88, 176, 88] and exact.traffic.up[0, 1] == 20


@pytest.mark.parametrize(
    ("kind", "kept"), [("ring", True), ("full", True), ("regular", True), ("star", False)]
)
def test_doubly_stochastic_mixing_moves_the_mean_by_the_mean_difference(kind, kept):
    draw = np.random.default_rng(3)
    x, d = draw.normal(size=(8, 5)), draw.normal(size=(8, 5))
    world = env(Config(), np.zeros((8, 5)), kind, degree=3)
    quantised = [
        send(model(row), k, 0, Messages(values="q16", error_feedback=False)) for k, row in enumerate(d)
    ]
    state = Peers(InMemory(Client(model(row), q) for row, q in zip(x, quantised, strict=True)))
    (done,) = rounds(dfedavgm, world, 1, state, 1)
    mean = numbers(done.models).mean(0)
    moved = x.mean(0) + numbers(q.model for q in quantised).mean(0)
    assert np.allclose(mean, moved, atol=1e-6) == kept
    steps = np.abs(d).max(1) / 32767
    assert np.allclose(mean, (x + d).mean(0), atol=steps.max() / 2 + 1e-6) == kept  # of z, up to Q


def test_on_the_full_graph_all_have_one_x():
    gains = np.random.default_rng(4).normal(size=(5, 5))
    world = env(Config(), gains, "full")
    done = rounds(dfedavgm, world, 4)[-1]
    x = numbers(c.start for c in done.state.clients)
    assert np.abs(x - x[0]).max() < 1e-6
    assert x[0] == pytest.approx(W0 + 3 * gains.mean(0), abs=3e-4)  # three means, each off by half a step


def test_the_setting_for_all_messages_goes_before_q():
    gains = np.random.default_rng(5).normal(size=(3, 5))
    (done,) = rounds(dfedavgm, env(Config(), gains, messages=Messages(values="bf16")), 1)
    sent = done.state.clients[0].sent
    assert torch.equal(sent.model.values, (sent.model.values + sent.lost.values).bfloat16().float())
    assert sent.lost.values.any()
