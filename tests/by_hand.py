"""Clients with four weights and a bias that train by adding numbers: all can be worked out on paper."""

import numpy as np
import torch
from fakes import Serial, Trainer, make_env

import sparse_engine as se
from fl.config import Messages
from fl.world import topology
from sparse_engine.model.model import Entry

LAYOUT = se.Layout(("w",), ((1, 4),), (Entry("b", (1,), torch.float32),))


def bitmap(bits):
    return LAYOUT.bitmap_of({"w": torch.tensor([[bit == "1" for bit in bits]])})


def bits(pattern):
    (mask,) = se.masks(model([0] * 5).with_pattern(pattern)).values()
    return "".join("1" if bit else "0" for bit in mask.view(-1).tolist())


def model(numbers, stored="1111"):
    """The last number is the bias."""
    x = torch.as_tensor(numbers, dtype=torch.float32)
    empty = torch.empty(0, dtype=torch.int64)
    return se.Model(LAYOUT, bitmap(stored), x[:-1].clone(), x[-1:].clone(), empty)


def numbers(states):
    """[models, stored weights and the bias]"""
    return np.array([torch.cat([x.values, x.rest]).tolist() for x in states])


W0 = np.array([1.0, 2.0, 3.0, 4.0, 10.0])
INITIAL = model(W0)


def trainer(gains):
    """Adds gains[k] to what client k starts from, where that stores weights. RigL mirrors every mask."""
    gains = np.asarray(gains, float)

    def train(k, start, local):
        return se.combine([start, model(gains[k]).with_pattern(start.bitmap)], [1, 1])

    return Trainer(INITIAL, train, grow=lambda k, state, fraction: bitmap(bits(state.bitmap)[::-1]))


def env(cfg, gains, kind="line", degree=2, redraw=None, messages=None, seed=0):
    num_clients = len(gains)
    graph = topology.make(kind, num_clients, degree=degree, redraw=redraw, seed=seed)
    parts = {"initial": INITIAL, "topology": graph, "messages": messages or Messages()}
    return make_env(cfg, num_clients, Serial(trainer(gains)), seed=seed, **parts)


def rounds(algorithm, world, count, state=None, first=0):
    """What `count` rounds gave."""
    state, done = algorithm.init(world) if state is None else state, []
    for t in range(first, first + count):
        done.append(algorithm.run_round(state, t, world))
        state = done[-1].state
    return done
