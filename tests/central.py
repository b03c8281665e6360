"""What tests of algorithms with a server share: clients whose training can be worked out on paper.

Client k has f_k(x) = |x - goals[k]|^2 / 2 and trains by one exact step of size 1/2 an epoch. A vector of all
numbers of a model (weights, then the bias) stands for it, with 0 where nothing is stored.
"""

import numpy as np
import torch
from fakes import Serial, Trainer, make_env

import sparse_engine as se
from fl.config import Training
from fl.world import topology
from sparse_engine.model.model import Entry

LAYOUT = se.Layout(("w",), ((1, 4),), (Entry("b", (1,), torch.float32),))
LARGER = se.Layout(("w", "u"), ((3, 4), (2, 5)), (Entry("b", (1,), torch.float32),))


def bitmap(layout, mask):
    parts = torch.as_tensor(mask, dtype=torch.bool).split(layout.segments.sizes)
    shaped = zip(layout.names, parts, layout.shapes, strict=True)
    return layout.bitmap_of({name: part.view(shape) for name, part, shape in shaped})


def model(numbers, mask=None, layout=LAYOUT):
    """The model of a vector; `mask`: a string of bits or a bool vector, default everything."""
    n, x = layout.segments.numel, torch.as_tensor(numbers, dtype=torch.float32)
    bits = [True] * n if mask is None else [bit in (True, "1") for bit in mask]
    values = x[:n][torch.tensor(bits)]
    return se.Model(layout, bitmap(layout, bits), values, x[n:].clone(), torch.empty(0, dtype=torch.int64))


def vector(state):
    """float64."""
    parts = [state.tensor(name).to_dense().view(-1) for name in state.layout.names]
    return torch.cat([*parts, state.rest]).double().numpy()


def stored(state):
    """bool, a weight."""
    return torch.cat([state.pattern(name).mask().view(-1) for name in state.layout.names]).numpy()


def trainer(goals, samples):
    """Clients that know where they want to go."""
    goals = np.asarray(goals, float)

    def train(k, start, local):
        x, there, pull = vector(start), np.append(stored(start), True), local.pull
        for _ in range(local.epochs):
            drawn = pull.strength * (x - vector(pull.model)) if pull else 0
            x = x - 0.5 * there * (x - goals[k] + drawn)
        return model(x, stored(start), start.layout)

    def grow(k, state, fraction):
        gradient = torch.as_tensor(vector(state) - goals[k], dtype=torch.float32)
        parts = gradient[: state.layout.segments.numel].split(state.layout.segments.sizes)
        shaped = zip(state.layout.names, parts, state.layout.shapes, strict=True)
        return se.rigl(state, {name: g.view(shape) for name, g, shape in shaped}, fraction).bitmap

    def test(k, state):
        """Not a share, but it depends on the client and the model."""
        return float(np.abs(vector(state) - goals[k]).sum())

    found = Trainer(None, train, grow=grow, test=test, samples=samples)
    found.goals = goals
    return found


def env(cfg, initial, goals, samples, num_rounds=100, seed=0, **options):
    """In a graph in which all are neighbours: by default the server asks everybody."""
    executor, graph = Serial(trainer(goals, samples)), topology.make("full", max(len(goals), 2))
    options = {"training": Training(epochs=5 if hasattr(cfg, "pull") else 1)} | options  # Ditto divides them
    sizes = {"num_rounds": num_rounds, "seed": seed}
    return make_env(cfg, len(goals), executor, initial=initial, topology=graph, **sizes, **options)


def random_env(cfg, num_rounds, num_clients=7, seed=1):
    """Seven clients with 1 to 9 samples and goals at random, on two weights."""
    rng = np.random.default_rng(seed)
    goals, samples = rng.normal(size=(num_clients, 23)), rng.integers(1, 10, num_clients).tolist()
    return env(cfg, model(rng.normal(size=23), layout=LARGER), goals, samples, num_rounds, seed)
