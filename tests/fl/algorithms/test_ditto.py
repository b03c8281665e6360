"""Ditto: two rounds of three clients by hand, many in float64; without a pull it is local training."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from central import env, model, random_env, vector
from fakes import accuracy, make_env, trained

from fl import config
from fl.algorithms import ditto, fedavg
from fl.algorithms.ditto import Config
from fl.run import runs, setup
from fl.run.events import Listener
from fl.run.executor import Threads
from fl.train.worker import Worker
from fl.world import topology

INITIAL = model([1, 2, 3, 4, 10])
GOALS = [[3, 2, 3, 4, 10], [1, 6, 3, 4, 10], [1, 2, 11, 4, 2]]


def test_two_rounds_by_hand():
    """The global part is that of test_fedavg. A personal step: v - ((v - goal) + (v - w) / 2) / 2."""
    cfg = Config(clients_per_round=2, global_epochs=1, personal_epochs=2)
    world = env(cfg, INITIAL, GOALS, samples=[1, 1, 3], seed=6)
    state = ditto.init(world)
    assert [*state.server.accuracy] == [2, 4, 16] and world.executor.waves == [[0, 1, 2]]

    first = ditto.run_round(state, 0, world)
    assert world.executor.waves[1:] == [[0, 2], [0, 1, 2]]  # the second tests the server's model
    assert vector(first.state.server.model).tolist() == [1.25, 2, 6, 4, 7]
    # 1, then 2, then 2 - ((2 - 3) + (2 - 1) / 2) / 2 = 2.25;  3, 7, 8;  10, 6, 5
    assert [vector(v).tolist() for v in first.models] == [
        [2.25, 2, 3, 4, 10],
        [1, 2, 3, 4, 10],
        [1, 2, 8, 4, 5],
    ]
    assert first.accuracy == [0.75, 4, 6] and first.accuracy_before == [2, 4, 16]
    distances = [1.75 + 3 + 3, 0.25 + 4 + 3 + 3, 0.25 + 5 + 5]  # of the server's model
    assert first.facts == {
        "sampled": 2,
        "accuracy_sampled": (0.75 + 6) / 2,
        "accuracy_global": pytest.approx(sum(distances) / 3),
    }

    second = ditto.run_round(first.state, 1, world)
    assert vector(second.state.server.model).tolist() == [1.125, 2.5, 7.5, 4, 5.5]
    assert vector(second.models[0]).tolist() == [2.25, 2, 3, 4, 10]  # not sampled
    assert vector(second.models[1]).tolist() == [1.078125, 4.5, 3.9375, 4, 9.0625]  # drawn to w^1
    assert vector(second.models[2]).tolist() == [1.078125, 2, 9.25, 4, 3.75]
    assert second.accuracy[0] == 0.75 and second.models is second.state.personal

    trainer = world.executor.trainer
    assert [(one.k, one.t, one.local.stream, one.local.epochs) for one in trainer.trained] == [
        (k, t, stream, epochs)
        for k, t in ((0, 0), (2, 0), (1, 1), (2, 1))
        for stream, epochs in (("", 1), (" personal", 2))
    ]
    assert {one.local.max_norm for one in trainer.trained} == {10}
    everybody = [0, 1, 2]  # test the server's model; who trains tests its personal one before and after
    assert trainer.tested == [*everybody, 0, 0, 2, 2, *everybody, 1, 1, 2, 2, *everybody]
    assert [report.flop for report in second.reports.values()] == [2 * 100] * 2
    assert second.traffic.down[:, 2].tolist() == [0, 20, 20, 40] == second.traffic.up[:, 2].tolist()


def test_many_clients_in_float64():
    world = random_env(Config(clients_per_round=3, pull=0.7), num_rounds=12)
    state, w = ditto.init(world), vector(world.initial)
    goals, samples = world.executor.trainer.goals, np.array(world.executor.trainer.samples)
    v = np.stack([w] * 7)
    for t in range(12):
        result = ditto.run_round(state, t, world)
        chosen = world.executor.waves[-2]
        for _ in range(2):
            v[chosen] -= 0.5 * (v[chosen] - goals[chosen] + 0.7 * (v[chosen] - w))
        trained = goals[chosen] + (w - goals[chosen]) / 2**3
        w = samples[chosen] @ trained / samples[chosen].sum()
        assert np.allclose(vector(result.state.server.model), w, rtol=1e-5, atol=1e-6)
        assert np.allclose([vector(one) for one in result.models], v, rtol=1e-5, atol=1e-6)
        assert result.accuracy == pytest.approx(np.abs(v - goals).sum(1), rel=1e-5)
        assert result.facts["accuracy_global"] == pytest.approx(np.abs(w - goals).sum(1).mean(), rel=1e-5)
        state = result.state


@pytest.fixture(scope="module")
def setting(tiny):
    return setup.prepare(tiny("training.epochs=5"))


def real(setting, executor, cfg):
    given = {"initial": setting.initial, "training": setting.training, "num_rounds": 3}
    return make_env(cfg, 4, executor, topology=topology.make("full", 4), **given)


def same(a, b):
    return all(torch.equal(x, b.tensors()[name]) for name, x in a.tensors().items())


def test_without_a_pull_it_is_local_training(setting):
    """On real data, bit by bit, whatever the global part does."""
    alone, worker = [setting.initial] * 4, Worker(setting)
    with Threads(setting, 2) as executor:
        world = real(setting, executor, Config(clients_per_round=2, pull=0.0))
        pulled = replace(world, config=Config(clients_per_round=2))
        state, drawn = ditto.init(world), ditto.init(pulled)
        for t in range(3):
            chosen = [*fedavg.inputs(state.server, t, world)]
            state, drawn = ditto.run_round(state, t, world).state, ditto.run_round(drawn, t, pulled).state
            for k in chosen:
                alone[k] = trained(worker, k, t, alone[k], stream=" personal", epochs=2, max_norm=10.0).model
            assert all(same(v, wanted) for v, wanted in zip(state.personal, alone, strict=True))
            assert [*state.server.accuracy] == [accuracy(worker, k, alone[k]) for k in range(4)]
    assert same(state.server.model, drawn.server.model)  # a pull changes personal models only
    assert not any(same(v, alone[k]) for k, v in enumerate(drawn.personal) if alone[k] is not setting.initial)


def test_a_strong_pull_holds_on_to_the_global_model(setting):
    with Threads(setting, 1) as executor:
        distances = []
        for pull in (0.0, 1.0, 5.0):
            world = real(setting, executor, Config(pull=pull))
            w = ditto.init(world).server.model
            after = ditto.run_round(ditto.init(world), 0, world)
            distances.append(float((after.models[0].values - w.values).norm()))
    assert distances[0] > 1.05 * distances[1] > 1.1 * distances[2] > 0


def test_the_global_part_is_fedavg(setting):
    """With all of training.epochs for it."""
    with Threads(setting, 1) as executor:
        ours = real(setting, executor, Config(global_epochs=5, personal_epochs=1))
        theirs = real(setting, executor, fedavg.Config())
        a, b = ditto.init(ours), fedavg.init(theirs)
        for t in range(2):
            a, b = ditto.run_round(a, t, ours).state, fedavg.run_round(b, t, theirs).state
        assert same(a.server.model, b.model)


@pytest.mark.parametrize(
    ("work", "given", "epochs"),
    [
        (5, {}, (3, 2)),
        (2, {}, (1, 1)),
        (3, {}, (2, 1)),
        (4, {}, (2, 2)),
        (10, {}, (6, 4)),
        (1, {}, (1, 1)),  # less than one each is none
        (0, {}, (0, 0)),
        (5, {"global_epochs": 4}, (4, 1)),
        (5, {"personal_epochs": 4}, (1, 4)),
        (5, {"global_epochs": 7}, (7, 1)),
        (5, {"global_epochs": 1, "personal_epochs": 0}, (1, 0)),
    ],
)
def test_both_parts_share_the_epochs_of_the_others(work, given, epochs):
    cfg = config.load("demo", ["algorithm=ditto", f"training.epochs={work}"])
    own = Config(**given)
    assert own.epochs(work) == epochs
    run = cfg.model_copy(update={"ditto": own})
    settled = config.settled(run)
    assert (settled.ditto.global_epochs, settled.ditto.personal_epochs) == epochs
    assert [one.epochs for one in own.trainings(cfg.training)] == [
        *epochs
    ] and settled.training == cfg.training


def test_the_configuration_of_a_run_says_what_ran(tiny, tmp_path):
    cfg = tiny("algorithm=ditto", "training.epochs=2", "num_rounds=1")
    runs.start(cfg, tmp_path / "run", runs.Options(workers=1))
    found = config.load(tmp_path / "run" / "config.toml")
    assert (found.ditto.global_epochs, found.ditto.personal_epochs) == (
        1,
        1,
    ) and cfg.ditto.global_epochs is None


@pytest.mark.parametrize(
    ("work", "said"), [(1, ["ditto trains 1 + 1 epochs per round with training.epochs = 1"]), (2, [])]
)
def test_a_run_with_more_work_than_others_says_so(tiny, tmp_path, work, said):
    heard = []

    class Notes(Listener):
        def note(self, text):
            heard.append(text)

    cfg = tiny("algorithm=ditto", f"training.epochs={work}", "num_rounds=1")
    runs.start(cfg, tmp_path / "run", runs.Options(1, Notes()))
    assert [note.partition(": ")[0] for note in heard] == said


def test_both_trainings_are_reported(setting):
    """Operations of all epochs, accuracies and the loss of the personal model."""
    worker = Worker(setting)
    with Threads(setting, 1) as executor:
        world = real(setting, executor, Config(global_epochs=2, personal_epochs=1))
        after = ditto.run_round(ditto.init(world), 0, world)
    for k, report in after.reports.items():
        assert report.flop == 3 * setting.cost.dense_training(40) == report.flop_dense
        assert report.accuracy == accuracy(worker, k, after.models[k]) == after.accuracy[k]
        assert report.accuracy_before == accuracy(worker, k, setting.initial) and report.samples == 40
