"""BEER: two rounds of three clients by hand, gradient tracking in float64, what is always true, real runs.

The trainer here has f_k(x) = |x - b_k|^2 / 2, whose gradient is x - b_k, and "trains" by one step.
"""

import numpy as np
import pytest
import torch
from fakes import Serial, Trainer, make_env

import sparse_engine as se
from fl import config
from fl.algorithms import beer
from fl.clients.memory import InMemory
from fl.config import Training
from fl.run import runs
from fl.run.rundir import METRICS, read_jsonl
from fl.world import topology
from sparse_engine.model.model import Entry

LAYOUT = se.Layout(("w",), ((1, 4),), (Entry("b", (1,), torch.float32),))
FULL = LAYOUT.bitmap_of({"w": torch.ones(1, 4, dtype=torch.bool)})
GOALS = np.random.default_rng(0).normal(size=(9, 5)).round(2)
GOALS[:3] = [[2, 0, 0, 0, 1], [0, 4, 0, 0, 1], [0, 0, 6, 0, 1]]


def model(numbers):
    x = torch.as_tensor(numbers, dtype=torch.float32)
    return se.Model(LAYOUT, FULL, x[:4].clone(), x[4:].clone(), torch.empty(0, dtype=torch.int64))


def numbers(states):
    return np.array([torch.cat([x.values, x.rest]).tolist() for x in states])


def gradient(k, state):
    return model(numbers([state])[0] - GOALS[k])


def train(k, start, local):
    return se.combine([start, gradient(k, start)], [1, -local.lr])


def env(num_clients=3, kind="full", training=None, degree=2, **settings):
    cfg = beer.Config.model_validate(settings)
    graph = topology.make(kind, num_clients, degree=degree)
    work = Serial(Trainer(model([0] * 5), train, gradient=gradient))
    given = Training(**({"lr_decay": 1.0} | (training or {})))
    return make_env(cfg, num_clients, work, initial=model([0] * 5), topology=graph, training=given)


def rounds(world, count):
    state, done = beer.init(world), []
    for t in range(count):
        done.append(beer.run_round(state, t, world))
        state = done[-1].state
    return done


EXACT = {"compression": {"kind": "identity"}}


def test_two_rounds_by_hand():
    """A line 0 - 1 - 2: weights 1/3 on both links (the middle has two neighbours). eta = 1/2, gamma = 3/4, so
    that (W - I) moves by a quarter of the difference. From 0, and the last two numbers of all goals agree."""
    first, second = rounds(env(kind="line", lr=0.5, gamma=0.75, **EXACT), 2)
    one, two = first.state.clients, second.state.clients
    # round 0: g = V = -goal, nothing to mix, X = goal / 2
    assert numbers([c.g for c in one])[:, :3].tolist() == [[-2, 0, 0], [0, -4, 0], [0, 0, -6]]
    assert numbers([c.V for c in one])[:, :3].tolist() == [[-2, 0, 0], [0, -4, 0], [0, 0, -6]]
    assert numbers([c.X for c in one])[:, :3].tolist() == [[1, 0, 0], [0, 2, 0], [0, 0, 3]]
    assert numbers([c.X for c in one])[:, 3:].tolist() == [[0, 0.5]] * 3
    # round 1: g = X - goal = -goal / 2.  V = V + (G_j - G_k) / 4 over links + goal / 2, with G = V
    assert numbers([c.g for c in two])[:, :3].tolist() == [[-1, 0, 0], [0, -2, 0], [0, 0, -3]]
    assert numbers([c.V for c in two])[:, :3] == pytest.approx(
        np.array(
            [
                [-2 + 2 / 4 + 1, -4 / 4, 0],  # client 0: its own quarter goes, a quarter of 1 comes
                [-2 / 4, -4 + 2 * 4 / 4 + 2, -6 / 4],  # client 1 gives to both
                [0, -4 / 4, -6 + 6 / 4 + 3],
            ]
        )
    )
    # X = X + (H_j - H_k) / 4 - V / 2, with H = X
    assert numbers([c.X for c in two])[:, :3] == pytest.approx(
        np.array(
            [
                [1 - 1 / 4 + 0.25, 2 / 4 + 0.5, 0],
                [1 / 4 + 0.25, 2 - 2 * 2 / 4 + 0, 3 / 4 + 0.75],
                [0, 2 / 4 + 0.5, 3 - 3 / 4 + 0.75],
            ]
        )
    )
    assert numbers(second.models).tolist() == numbers([c.X for c in two]).tolist()
    assert second.schedule.depth == 0 and second.facts == {"degree_mean": pytest.approx(4 / 3)}


def tracking(goals, W, eta, gamma, count, decay=1.0):
    """v+ = W' v + g(x) - g(x before),  x+ = W' x - eta_t v+,  W' = I + gamma (W - I)"""
    mix = np.eye(len(goals)) + gamma * (W - np.eye(len(goals)))
    x, v, g = (np.zeros_like(goals) for _ in range(3))
    for t in range(count):
        new = x - goals
        v, g = mix @ v + new - g, new
        x = mix @ x - eta * decay**t * v
    return x, v


@pytest.mark.parametrize(("kind", "gradient"), [("ring", "epochs"), ("grid", "full"), ("random", "epochs")])
def test_without_compression_it_is_gradient_tracking(kind, gradient):
    world = env(9, kind, training={"lr_decay": 0.99, "weight_decay": 0.0}, lr=0.3, gamma=0.4, degree=4,
                gradient=gradient, max_norm=None, **EXACT)  # fmt: skip
    clients = rounds(world, 12)[-1].state.clients
    links = beer.graph(world.topology)
    W = np.zeros((9, 9))
    for k in range(9):
        for j in links.of(k):
            W[k, j] = 1 / (1 + max(len(links.of(k)), len(links.of(j))))
    W += np.diag(1 - W.sum(1))
    assert np.allclose(W, W.T) and W.min() >= 0
    x, v = tracking(GOALS, W, 0.3, 0.4, 12, 0.99)
    assert numbers([c.X for c in clients]) == pytest.approx(x, abs=2e-5)
    assert numbers([c.V for c in clients]) == pytest.approx(v, abs=2e-5)


@pytest.mark.parametrize(
    "compression", [{"kind": "gsgd", "bits": 3}, {"kind": "gsgd"}, {"kind": "top_k"}, {"kind": "identity"}]
)
def test_the_mean_of_v_is_the_mean_of_g(compression):
    """And X's mean moves along it: mixing and compression move no mean."""
    world = env(9, "star", lr=0.2, gamma=0.3, compression=compression)
    before = np.zeros(5)
    for done in rounds(world, 25):
        clients = done.state.clients
        v, g, x = (numbers([getattr(c, name) for c in clients]).mean(0) for name in ("V", "g", "X"))
        assert v == pytest.approx(g, abs=1e-5)
        assert x == pytest.approx(before - 0.2 * v, abs=1e-5)
        before = x
    assert x == pytest.approx(GOALS.mean(0), abs=0.02)


def test_what_others_know_is_what_messages_said():
    """G and H are sums of decoded messages, and close to V and X in the end."""
    world = env(6, "ring", lr=0.2, gamma=0.3, compression={"kind": "gsgd", "bits": 4})
    state = beer.init(world)
    assert [numbers([c.H])[0].tolist() for c in state.clients] == [numbers([world.initial])[0].tolist()] * 6
    for t in range(60):
        state = beer.run_round(state, t, world).state
    off = [numbers([getattr(c, a) for c in state.clients]) - numbers([getattr(c, b) for c in state.clients])
           for a, b in ("GV", "HX")]  # fmt: skip
    assert 0 < np.abs(off).max() < 0.05
    quantised = numbers([c.X for c in rounds(env(6, "ring", lr=0.2, gamma=0.3), 3)[-1].state.clients])
    exact = numbers([c.X for c in rounds(env(6, "ring", lr=0.2, gamma=0.3, **EXACT), 3)[-1].state.clients])
    assert 0 < np.abs(quantised - exact).max() < 0.02


def test_clipping_and_weight_decay():
    world = env(lr=0.1, max_norm=7.0)
    rounds(world, 1)
    assert world.executor.trainer.told("momentum", "max_norm") == [(0.0, 7.0)] * 3
    world = env(lr=0.1, gradient="full", max_norm=0.5, training={"weight_decay": 0.1})
    ones, zeros = model([1] * 5), model([0] * 5)
    state = beer.State(InMemory([beer.Client(ones, zeros, zeros, ones, zeros)] * 3))
    done = beer.run_round(state, 0, world)
    g = numbers([c.g for c in done.state.clients])
    wanted = 1 - GOALS[:3] + 0.1
    assert np.linalg.norm(g, axis=1) == pytest.approx([0.5] * 3)
    assert g == pytest.approx(0.5 * wanted / np.linalg.norm(wanted, axis=1, keepdims=True), abs=1e-6)
    world.executor.trainer.test = lambda k, state: float(numbers([state]).sum())
    done = beer.run_round(state, 0, world)
    for k, report in done.reports.items():
        assert (report.accuracy_before, report.accuracy) == (5.0, numbers([done.models[k]]).sum())
        assert report.flop == 30 and report.accuracy != 5.0
    assert [*done.reports] == [0, 1, 2]


def test_bytes_of_both_messages_on_every_link():
    """Five numbers: 24 byte of header, a scale, 8 codes in 8 byte: 36, twice. The paper's count: 5 each."""
    (done,) = rounds(env(kind="line"), 1)
    assert done.traffic.up[:, 0].tolist() == done.traffic.down[:, 0].tolist() == [72, 144, 72]
    assert done.traffic.up[:, 1].tolist() == [10, 20, 10] and done.traffic.down[:, 2].tolist() == [40, 80, 40]


def test_graphs():
    drawn = beer.graph(topology.make("random", 20, degree=3))  # redrawn each round: one regular graph
    assert drawn.degrees.tolist() == [3] * 20
    odd = beer.graph(topology.make("random", 9, degree=3))
    assert odd.degrees.tolist() == [4] * 9
    fixed = topology.make("random", 20, degree=3, redraw=False)
    both = beer.graph(fixed)
    links = {(k, j) for k in range(20) for j in fixed.neighbours(0).of(k).tolist()}
    assert {(k, j) for k in range(20) for j in both.of(k).tolist()} == links | {(j, k) for k, j in links}
    for graph in (drawn, odd, both):
        W = np.zeros((graph.num_clients, graph.num_clients))
        W[graph.takers(), graph.indices] = beer.metropolis(graph)
        assert np.array_equal(W, W.T) and W.sum(1).max() < 1


def test_a_graph_that_changes_is_refused(tiny):
    with pytest.raises(
        config.ConfigError, match=r"^topology.redraw: expected a fixed graph for beer.*topology.kind"
    ):
        tiny("algorithm=beer", "topology.kind=regular", "topology.redraw=true")
    assert tiny("algorithm=beer").topology.kind == "random"
    assert tiny("topology.redraw=true").algorithm == "da_dpfl"


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("beer") / "run"
    cfg = tiny("algorithm=beer", "num_rounds=3", "beer.gamma=0.2")
    runs.start(cfg, path, runs.Options(workers=1))
    return cfg, path


def test_a_run_with_two_workers_is_the_same(run, tmp_path, same_results):
    runs.start(run[0], tmp_path / "run", runs.Options(workers=2))
    same_results(run[1], tmp_path / "run")


def test_a_resumed_run_is_the_same(run, tmp_path, same_results):
    class Stop(runs.Listener):
        def round_started(self, t):
            if t == 2:
                raise KeyboardInterrupt

    with pytest.raises(runs.Interrupted):
        runs.start(run[0], tmp_path / "run", runs.Options(workers=1, listener=Stop()))
    runs.resume(tmp_path / "run", runs.Options(workers=1))
    same_results(run[1], tmp_path / "run")


def test_metrics_of_a_run(run):
    lines = read_jsonl(run[1] / METRICS)
    assert [line["density_mean"] for line in lines] == [1.0] * 3
    for line in lines:
        assert line["flop_round"] == line["flop_dense"] > 0
        assert line["bytes_total_dense"] == 4 * line["bytes_total_paper"] > 0
        assert line["bytes_total"] == pytest.approx(line["bytes_total_paper"], rel=0.06)  # scales, headers
    assert lines[-1]["loss"] < lines[0]["loss"]


def test_digits_are_learned(tmp_path):
    changes = ["algorithm=beer", "num_rounds=8", "num_clients=6", "model.name=mlp", "model.width=none",
               "beer.gamma=0.3", "beer.compression.bits=4"]  # fmt: skip
    runs.start(config.load("demo", changes), tmp_path / "run", runs.Options(workers=2))
    lines = read_jsonl(tmp_path / "run" / METRICS)
    assert lines[-1]["accuracy_mean"] > 0.85 and lines[-1]["accuracy_before"] > 0.8
    assert lines[-1]["accuracy_mean"] > lines[0]["accuracy_mean"] + 0.1 and lines[0]["accuracy_before"] < 0.2
