"""FedAvg: two rounds of three clients by hand, many in float64, one client is SGD, who is sampled."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from central import env, model, random_env, vector
from fakes import accuracy, make_env, trained

import sparse_engine as se
from fl import config
from fl.algorithms import fedavg
from fl.algorithms.fedavg import Config
from fl.config import ConfigError, Messages
from fl.run import runs, setup
from fl.run.executor import Threads
from fl.run.rundir import METRICS, read_jsonl
from fl.train.worker import Worker

INITIAL = model([1, 2, 3, 4, 10])
GOALS = [[3, 2, 3, 4, 10], [1, 6, 3, 4, 10], [1, 2, 11, 4, 2]]


def test_two_rounds_by_hand():
    world = env(Config(clients_per_round=2), INITIAL, GOALS, samples=[1, 1, 3], seed=6)
    worker, state = world.executor.trainer, fedavg.init(world)

    first = fedavg.run_round(state, 0, world)
    # 0 and 2 are sampled; each goes half way to its goal, and counts by its samples: 1/4 and 3/4
    assert world.executor.waves == [[0, 1, 2], [0, 2], [0, 1, 2]]  # the first and the last are tests
    assert vector(first.models[0]).tolist() == [2, 2, 3, 4, 10]
    assert vector(first.models[2]).tolist() == [1, 2, 7, 4, 6]
    assert vector(first.state.model).tolist() == [1.25, 2, 6, 4, 7] == vector(first.models[1]).tolist()
    # the new model on everybody's test samples: |x - goal| summed
    distances = [1.75 + 3 + 3, 0.25 + 4 + 3 + 3, 0.25 + 5 + 5]
    assert first.facts == {
        "sampled": 2,
        "accuracy_sampled": (1 + 8) / 2,
        "accuracy_global": pytest.approx(sum(distances) / 3),
    }
    assert first.accuracy == [1, distances[1], 8] and first.accuracy_before == (2, 4, 16)

    second = fedavg.run_round(first.state, 1, world)
    assert world.executor.waves[3] == [1, 2]
    assert vector(second.models[1]).tolist() == [1.125, 4, 4.5, 4, 8.5]
    assert vector(second.models[2]).tolist() == [1.125, 2, 8.5, 4, 4.5]
    assert (
        vector(second.state.model).tolist() == [1.125, 2.5, 7.5, 4, 5.5] == vector(second.models[0]).tolist()
    )
    assert [(told.k, told.t, told.local.max_norm) for told in worker.trained] == [
        (0, 0, 10),
        (2, 0, 10),
        (1, 1, 10),
        (2, 1, 10),
    ]

    assert (second.schedule.depth, second.schedule.parallelism) == (0, 1.0)
    size = len(se.wire.encode(first.state.model)), 20, 20  # five numbers
    sizes = [[len(se.wire.encode(second.models[k])), 20, 20] for k in (1, 2)]
    assert second.traffic.down.tolist() == [[0] * 3, [*size], [*size], np.sum(sizes, 0).tolist()]
    assert second.traffic.up.tolist() == [[0] * 3, *sizes, [2 * n for n in size]]


def test_many_clients_in_float64():
    world = random_env(Config(clients_per_round=3), num_rounds=12)
    state, w = fedavg.init(world), vector(world.initial)
    goals, samples = world.executor.trainer.goals, np.array(world.executor.trainer.samples)
    sampled = set()
    for t in range(12):
        result = fedavg.run_round(state, t, world)
        chosen = [k for k in range(7) if result.models[k] is not result.state.model]
        assert len(chosen) == 3 and world.executor.waves[2 * t + 1] == chosen
        trained = {k: w - (w - goals[k]) / 2 for k in chosen}
        w = sum(samples[k] * trained[k] for k in chosen) / samples[chosen].sum()
        assert np.allclose(vector(result.state.model), w, rtol=1e-5, atol=1e-6)
        assert all(np.allclose(vector(result.models[k]), trained[k], atol=1e-5) for k in chosen)
        wanted = np.abs(w - goals).sum(1).mean()
        assert result.facts["accuracy_global"] == pytest.approx(wanted, rel=1e-5)
        state, sampled = result.state, sampled | set(chosen)
    assert sampled == set(range(7))


def test_one_client_is_sgd(tiny):
    """On real data, bit by bit: rounds of FedAvg with one client are one long training."""
    setting = setup.prepare(tiny("training.epochs=2"))
    model, worker = setting.initial, Worker(setting)
    with Threads(setting, 1) as executor:
        given = {"initial": setting.initial, "training": setting.training, "num_rounds": 3}
        world = make_env(Config(clients_per_round=1), 1, executor, **given)
        state = fedavg.init(world)
        for t in range(3):
            result = fedavg.run_round(state, t, world)
            state, model = result.state, trained(worker, 0, t, model, max_norm=10.0).model
            assert all(torch.equal(x, state.model.tensors()[name]) for name, x in model.tensors().items())
            assert result.facts["accuracy_global"] == accuracy(worker, 0, model) == result.reports[0].accuracy
    assert not torch.equal(model.values, setting.initial.values)


def test_rounded_messages_both_ways():
    """Clients start from what arrived; the server averages what arrived; what was lost is sent later."""
    rounded = Messages(values="q8")
    world = replace(random_env(Config(clients_per_round=3), num_rounds=2), messages=rounded)
    state = fedavg.init(world)
    assert not torch.equal(state.sent.model.values, state.model.values) and state.sent.lost is not None
    arrived, goals = vector(state.sent.model), world.executor.trainer.goals
    result = fedavg.run_round(state, 0, world)
    chosen = world.executor.waves[1]
    for k in chosen:
        assert np.allclose(vector(result.models[k]), arrived - (arrived - goals[k]) / 2, atol=1e-6)
    uploads = result.state.uploads
    assert [k for k, sent in enumerate(uploads) if sent is not None] == chosen
    n = np.array(world.executor.trainer.samples)[chosen]
    mean = sum(a * vector(uploads[k].model) for a, k in zip(n, chosen, strict=True)) / n.sum()
    assert np.allclose(vector(result.state.model), mean, atol=1e-6)
    exact = fedavg.run_round(fedavg.init(replace(world, messages=Messages())), 0, random_env(Config(), 2))
    assert [*exact.state.uploads] == [None] * 7 and exact.state.sent.lost is None


def test_what_messages_lost_is_sent_with_the_next():
    """arrived + lost = model + lost before, for the server and every client that was asked again."""
    world = replace(random_env(Config(clients_per_round=4), num_rounds=2), messages=Messages(values="q8"))
    zero = fedavg.init(world)
    first = fedavg.run_round(zero, 0, world).state
    result = fedavg.run_round(first, 1, world)
    second = result.state
    asked = [set(world.executor.waves[i]) for i in (1, 3)]
    again = asked[0] & asked[1]
    pairs = [(zero.sent, first.sent, first.model), (first.sent, second.sent, second.model)]
    pairs += [(first.uploads[k], second.uploads[k], result.models[k]) for k in again]
    assert again
    for before, after, wanted in pairs:
        given = wanted.values.double() + before.lost.values.double()
        assert torch.allclose(after.model.values.double() + after.lost.values.double(), given, atol=1e-6)
        assert float(before.lost.values.abs().max()) > 1e-4
    for k in asked[0] - again:
        assert second.uploads[k] is first.uploads[k]  # it waits until its client is asked again


@pytest.mark.parametrize(
    ("clients", "given", "wanted"), [(4, None, 4), (12, None, 10), (12, 3, 3), (4, 4, 4)]
)
def test_how_many_are_sampled(clients, given, wanted):
    world = random_env(Config(clients_per_round=given), 5, clients)
    sets = [[*fedavg.inputs(fedavg.init(world), t, world)] for t in range(5)]
    assert all(len(chosen) == wanted and chosen == sorted(set(chosen)) for chosen in sets)
    assert sets == [[*fedavg.inputs(fedavg.init(world), t, world)] for t in range(5)]
    assert wanted == clients or len({*map(tuple, sets)}) > 1


@pytest.mark.parametrize("algorithm", ["fedavg", "feddst", "ditto"])
def test_servers_take_as_many_models_as_clients_have_neighbours(tiny, tmp_path, algorithm):
    """Unless told otherwise: 10 and 10 in the paper, 2 and 2 here, 4 and 4 in cifar10-compare."""
    cfg = tiny(f"algorithm={algorithm}", "num_rounds=1")
    runs.start(cfg, tmp_path / "run", runs.Options(workers=1))
    assert [line["sampled"] for line in read_jsonl(tmp_path / "run" / METRICS)] == [2]
    preset = config.load("cifar10-compare")
    assert preset.topology.degree == 4 and "servers sample 4 clients" in preset.description
    world = replace(random_env(Config(), 1, 20), topology=setup.links(preset))
    assert len(fedavg.inputs(fedavg.init(world), 0, world)) == 4


def test_more_than_there_are_is_refused(tiny):
    for name in ("fedavg", "ditto", "feddst"):
        with pytest.raises(ConfigError) as wrong:
            tiny(f"algorithm={name}", f"{name}.clients_per_round=5")
        assert str(wrong.value) == f"{name}.clients_per_round: expected at most num_clients = 4, got 5"
    others = {"num_clients": 4, "topology": {"degree": 2}, "fedavg": {"clients_per_round": 5}}
    assert config.parse(others).algorithm == "da_dpfl"  # of others nothing is asked
    assert isinstance(tiny("algorithm=fedavg").settings, Config) and config.load("demo")
