"""What all algorithms share: how they are found, and how their messages are counted."""

import types

import numpy as np
import pytest
import torch

import sparse_engine as se
from fl import algorithms, schedule, topology
from fl.algorithms.base import Algorithm, Env, gossip, message_sizes
from fl.devices import DeviceModel
from fl.messages import Sent


def test_every_file_but_base_is_an_algorithm():
    found = algorithms.registered()
    assert "da_dpfl" in found and "base" not in found
    for name, module in found.items():
        assert module.__name__ == f"fl.algorithms.{name}" and module.__doc__
        assert module.Config()  # defaults are valid


def test_a_module_without_rounds_is_none():
    module = types.ModuleType("half")
    module.Config, module.init = object, lambda env: None
    assert not isinstance(module, Algorithm)
    module.run_round = lambda state, t, env: None
    assert isinstance(module, Algorithm)


@pytest.mark.parametrize(
    ("name", "classes", "dense_mb", "sparsity", "sparse_mb"),
    [
        ("resnet18", 10, 426.3, 0.65, 149.1),
        ("vgg11", 100, 353.9, 0.7, 107.7),
        ("alexnet", 10, 887.8, 0.61, 346.2),
    ],
)
def test_busiest_volumes_of_the_paper(name, classes, dense_mb, sparsity, sparse_mb):
    """Ten models received. The paper scales everything by the density; what is never pruned stays here."""
    with torch.random.fork_rng():
        dense = se.compress(se.models.by_name(name, num_classes=classes))
    layout = dense.layout
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    sparse = dense.with_pattern(layout.bitmap_of(se.uniform_masks(shapes, 1 - sparsity, seed=0)))
    real, paper, whole = (10 * message_sizes([Sent.exact(sparse)])[0] / 2**20).tolist()
    assert whole == pytest.approx(dense_mb, abs=0.05)
    rest = 10 * 4 * dense.rest.numel() / 2**20
    assert paper == pytest.approx((1 - sparsity) * whole + sparsity * rest, rel=1e-4)
    assert paper == pytest.approx(sparse_mb + sparsity * rest, rel=0.015)  # its sparsities are rounded
    plain = 10 * len(se.wire.encode(sparse, pack=False)) / 2**20
    bits = -sum(p * np.log2(p) for p in (sparsity, 1 - sparsity))
    assert plain == pytest.approx(paper + 10 * bits * layout.segments.numel / 8 / 2**20, rel=1e-3)
    assert real < 0.9 * plain  # exponents of weights have much in common
    assert message_sizes([Sent(dense, 7)])[0].tolist() == [
        7,
        *[dense.nbytes - 8 * layout.segments.num_words] * 2,
    ]


def test_gossip_by_brute_force():
    layout = se.Layout(("w",), ((10, 10),))
    rng = np.random.default_rng(0)

    def a_model(density):
        bitmap = layout.bitmap_of({"w": torch.from_numpy(rng.random((10, 10)) < density)})
        empty = torch.empty(0)
        return Sent.exact(se.State(layout, bitmap, torch.zeros(bitmap.nnz), empty, empty.long()))

    before, after = ([a_model(d) for d in rng.random(9)] for _ in range(2))
    plan = schedule.plan(topology.make("random", 9, degree=4).neighbours(0), rng.permutation(9), 2)
    traffic = gossip(plan, before, after)
    up, down = np.zeros((9, 3)), np.zeros((9, 3))
    for wave in plan.waves():
        for turn in wave:
            for models, givers in ((after, turn.wait_for), (before, turn.others)):
                for j in givers:
                    size = message_sizes([models[j]])[0]
                    up[j] += size
                    down[turn.client] += size
    assert np.array_equal(traffic.up, up) and np.array_equal(traffic.down, down)
    assert traffic.up.sum() == traffic.down.sum() > 0


def test_durations_are_in_units_of_the_usual_device():
    def env(**devices):
        return Env(None, 50, 1, 3, None, None, None, DeviceModel(**devices))

    assert env().durations(0).tolist() == [1.0] * 50
    slow = env(kind="lognormal")
    assert np.array_equal(slow.durations(1), slow.durations(1))
    assert not np.array_equal(slow.durations(1), slow.durations(2)) and slow.durations(1).std() > 0.1
    uniform = env(kind="uniform", peak_flops=1e9)
    assert np.array_equal(uniform.durations(0), uniform.durations(5)) and 0.5 < uniform.durations(0).min()
