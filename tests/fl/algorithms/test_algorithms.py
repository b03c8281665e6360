"""What all algorithms share: how they are found, and how their messages are counted."""

import types

import numpy as np
import pytest
import torch
from fakes import make_env

import sparse_engine as se
from fl import algorithms, config
from fl.algorithms.base import Algorithm, Round, apart, gossip, message_sizes, server
from fl.algorithms.messages import Sent
from fl.run import metrics
from fl.train.report import Report
from fl.world import schedule, topology
from fl.world.clock import Clock
from fl.world.devices import draw


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
    central = server(100, range(10), Sent(dense, 7), [Sent(dense, 7)] * 10).down[:, 2]
    assert central.argmax() == 100 and central.max() / 2**20 == pytest.approx(dense_mb, abs=0.05)
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
        return Sent.exact(se.Model(layout, bitmap, torch.zeros(bitmap.nnz), empty, empty.long()))

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


def three_of_six(reports=None):
    """A round of a server with clients 1, 3 and 4 out of 6: messages of 100 down, and of 10, 20, 30 up."""
    layout = se.Layout(("w",), ((1, 4),))
    empty = torch.empty(0)
    bitmap = layout.bitmap_of({"w": torch.tensor([[True, False, True, True]])})
    model = se.Model(layout, bitmap, torch.ones(3), empty, empty.long())
    traffic = server(6, [1, 3, 4], Sent(model, 100), [Sent(model, n) for n in (10, 20, 30)])
    accuracy = [None, 0.5, 0.25, 0.5, 0.5, 0.75]
    return Round(None, [model] * 6, apart(6), traffic, reports or {}, accuracy, [0.5] * 6)


def test_a_server_is_one_more_row():
    up, down = three_of_six().traffic
    assert up[:, 0].tolist() == [0, 10, 0, 20, 30, 0, 300]
    assert down[:, 0].tolist() == [0, 100, 0, 100, 100, 0, 60]
    assert up[:, 1].tolist() == [0, 12, 0, 12, 12, 0, 36] == down[:, 1].tolist()
    assert up[:, 2].tolist() == [0, 16, 0, 16, 16, 0, 48]


def test_metrics_with_a_server():
    """The busiest may be the server, means are over clients, and the server's link is one of the links."""
    reports = {k: Report(flop=16 * 10**12, accuracy=0.5) for k in (1, 3, 4)}
    result, devices = three_of_six(reports), config.Devices(kind="uniform", radio_watts=2.0, idle_watts=3.0)
    slow = draw(devices, 6, seed=1)
    modelled = metrics.modelled(result, Clock(devices, slow))
    line = metrics.round_record(0, result, modelled, 0.1, {"wall_s": 0.0})
    assert (line["bytes_total"], line["bytes_busiest"], line["bytes_busiest_dense"]) == (360, 100, 48)
    assert line["accuracy_mean"] == 0.5 and (line["accuracy_min"], line["accuracy_max"]) == (0.25, 0.75)
    assert line["bytes_up_mean"] == 10 and line["bytes_up_mean_paper"] == 6
    assert (line["depth"], line["parallelism"]) == (0, 1.0)
    clients = [*metrics.client_records(0, result, modelled)]
    assert [(c["client"], c["bytes_up"], c["bytes_down"]) for c in clients] == [
        (1, 10, 100),
        (3, 20, 100),
        (4, 30, 100),
    ]
    links = np.array([100, 100, 100, 60]) * 8 / np.append(slow.bandwidth[[1, 3, 4]], 1e9)
    train = 16e12 / slow.flop_rate[[1, 3, 4]]
    length = train.max() + links.max()
    assert line["sim_time_s"] == pytest.approx(length)
    idle = 7 * length - train.sum() - links.sum()
    assert line["sim_energy_j"] == pytest.approx(450 * train.sum() + 2 * links.sum() + 3 * idle)


def test_a_server_can_be_the_slowest_link():
    result = three_of_six()
    result.traffic.down[6, 0] = 10**9
    modelled = metrics.modelled(result, Clock.of(config.Devices(), 6, 0, 0))
    assert modelled.time_s == pytest.approx(8.0)


def test_the_clock_of_a_round_is_that_of_its_devices():
    def rates(t, **devices):
        return make_env(None, 50, seed=3, devices=config.Devices(**devices)).clock(t).devices.flop_rate

    assert rates(0).tolist() == [80e12 / 5] * 50
    assert np.array_equal(rates(1, kind="lognormal"), rates(1, kind="lognormal"))
    assert not np.array_equal(rates(1, kind="lognormal"), rates(2, kind="lognormal"))
    assert np.array_equal(rates(0, kind="uniform"), rates(5, kind="uniform"))
