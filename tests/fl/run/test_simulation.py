"""`import fl`: runs from Python, with networks and data of one's own, without files or with them."""

import doctest
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from own_code import NETS
from torch import nn

import fl
from fl import algorithms
from fl.config import ConfigError, code
from fl.errors import Missing, RunDirError
from fl.run import runs
from fl.run.events import Listener
from fl.run.keys import TIMING
from fl.run.rundir import CLIENTS, METRICS, read_jsonl
from fl.run.runs import Options
from fl.train.local import Local

SMALL = {"num_clients": 4, "num_rounds": 3, "topology.degree": 2, "training.epochs": 1, "data.size": None}


class Net(nn.Module):
    def __init__(self, num_classes, in_channels, size):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(in_channels, 4, 3, padding=1), nn.ReLU(), nn.Flatten(),
            nn.Linear(4 * size * size, num_classes),
        )  # fmt: skip

    def forward(self, x):
        return self.layers(x)


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(0)
    y = np.arange(200) % 3
    return (rng.integers(0, 40, (200, 6, 6)) + 70 * y[:, None, None]).astype(np.uint8), y


def untimed(lines):
    return [{key: value for key, value in line.items() if key not in TIMING} for line in lines]


@pytest.mark.parametrize("name", ["frame", "result", "simulation"])
def test_examples(name):
    __import__(f"fl.run.{name}")
    found = doctest.testmod(sys.modules[f"fl.run.{name}"])
    assert found.attempted and not found.failed


def test_importing_fl_does_not_wait_for_torch():
    code = "import sys, fl; assert 'torch' not in sys.modules; assert callable(fl.run)"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)


def test_without_a_directory_nothing_is_written_and_the_lines_are_the_same(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = fl.Simulation(tiny(), workers=2).run()
    assert not [*tmp_path.iterdir()]
    summary = runs.start(tiny(), tmp_path / "run", Options(1))
    assert untimed(result.metrics) == untimed(read_jsonl(tmp_path / "run" / METRICS))
    assert untimed(result.clients) == untimed(read_jsonl(tmp_path / "run" / CLIENTS))
    same = {key for key in summary if key not in (*TIMING, "workers")}
    assert {key: result.summary[key] for key in same} == {key: summary[key] for key in same}
    loaded = fl.load(tmp_path / "run")
    for k in range(4):
        ours, theirs = result.model(k), loaded.model(k)
        assert all(torch.equal(a, theirs.tensors()[name]) for name, a in ours.tensors().items())


def test_a_directory_is_that_of_the_command_line(tiny, tmp_path, same_results):
    result = fl.Simulation(tiny(), out=tmp_path / "a", workers=1).run()
    runs.start(tiny(), tmp_path / "b", Options(2))
    same_results(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "config.toml").read_bytes() == (tmp_path / "b" / "config.toml").read_bytes()
    assert result.path == tmp_path / "a" and result.report() == tmp_path / "a" / "report.html"


@pytest.mark.parametrize("out", [None, "cut"])
def test_leaving_the_loop_and_going_on_changes_nothing(tiny, tmp_path, same_results, out):
    whole = fl.Simulation(tiny(), out=tmp_path / "whole", workers=2).run()
    simulation = fl.Simulation(tiny(), out=out and tmp_path / out, workers=2)
    for line in simulation:
        if line["round"] == 1:
            break
    assert len(simulation.result().metrics) == 2 and simulation.result().summary["density_last"] < 1
    assert [line["round"] for line in simulation] == [2, 3, 4] and not [*simulation]
    assert untimed(simulation.result().metrics) == untimed(whole.metrics)
    assert untimed(simulation.result().clients) == untimed(whole.clients)
    if out:
        same_results(tmp_path / out, tmp_path / "whole")


class Interrupts(Listener):
    """Ctrl-C in the middle of round 2, once: a client is done, the others are not."""

    def __init__(self):
        self.t, self.left = 0, 1

    def round_started(self, t):
        self.t = t

    def client_finished(self, k):
        if self.t == 2 and self.left:
            self.left = 0
            raise KeyboardInterrupt


@pytest.mark.parametrize("out", [None, "cut"])
def test_ctrl_c_stops_cleanly_and_the_same_object_goes_on(tiny, tmp_path, out):
    whole = fl.Simulation(tiny(), workers=1).run()
    threads = torch.get_num_threads()
    simulation = fl.Simulation(tiny(), out=out and tmp_path / out, options=Options(2, Interrupts()))
    seen = []
    with pytest.raises(KeyboardInterrupt):
        seen.extend(line["round"] for line in simulation)
    assert simulation.loop.after.round == 1 and torch.get_num_threads() == threads
    assert untimed(simulation.run().metrics) == untimed(whole.metrics)


def test_between_rounds_torch_has_its_threads(tiny):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert [torch.get_num_threads() for _ in fl.Simulation(tiny("num_rounds=2"), workers=1)] == [2, 2]
    finally:
        torch.set_num_threads(before)


def test_own_network_and_own_arrays_learn(arrays):
    result = fl.run("demo", network=Net, data=arrays, set=SMALL | {"training.epochs": 3}, workers=2)
    assert result.metrics["accuracy_mean"][-1] > 0.8
    assert result.config.model.name == "<Net>" and result.config.model.width is None
    assert result.config.description == ""  # the preset's, of other data
    assert sum(x.numel() for x in result.network(0).parameters()) == 4 * 9 + 4 + 3 * 4 * 36 + 3
    again = fl.run("demo", network=Net, data=tuple(map(torch.from_numpy, arrays)),
                   set=[f"{k}={v}" for k, v in (SMALL | {"training.epochs": 3}).items() if v is not None],
                   workers=1)  # fmt: skip
    assert untimed(again.metrics) == untimed(result.metrics)


def test_a_module_that_is_ready_is_copied_with_its_weights(arrays):
    net = Net(3, 1, 6)
    before = {name: x.clone() for name, x in net.state_dict().items()}
    simulation = fl.Simulation("demo", network=net, data=arrays, set=SMALL | {"num_rounds": 1})
    assert torch.equal(
        simulation.loop.setting.network.state_dict()["layers.3.weight"], before["layers.3.weight"]
    )
    simulation.run()
    assert all(torch.equal(x, before[name]) for name, x in net.state_dict().items())


def test_floats_of_any_shape(arrays):
    def mlp(in_features, num_classes):
        return nn.Sequential(nn.Linear(in_features, 8), nn.ReLU(), nn.Linear(8, num_classes))

    x = np.random.default_rng(1).normal(size=(120, 5)) + np.arange(120)[:, None] % 2
    assert len(fl.run("demo", network=mlp, data=(x, np.arange(120) % 2), set=SMALL).metrics) == 3


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (lambda: nn.Linear(3, 3), r"takes samples of shape \(1, 6, 6\) of arrays, got <lambda>"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 7)), r"3 outputs per sample.*got \(2, 7\) for 2"),
        (lambda depth: nn.Linear(3, 3), r"expected arguments out of .*got 'depth' of <lambda>: .*partial"),
        (lambda: "net", "expected a torch.nn.Module of <lambda>, got str"),
        (7, "expected a torch module, or a class or function"),
    ],
)
def test_a_network_that_does_not_fit_is_named(arrays, network, said):
    with pytest.raises(ConfigError, match=f"network: .*{said}"):
        fl.Simulation("demo", network=network, data=arrays, set=SMALL)


def test_what_stays_dense_is_a_warning_at_the_users_line(arrays):
    def grouped(num_classes):
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, groups=4), nn.Flatten(), nn.Linear(16, num_classes)
        )

    with pytest.warns(UserWarning, match=r"grouped: .* stay dense: 1 \(36\): grouped convolution") as told:
        simulation = fl.Simulation("demo", network=grouped, data=arrays, set=SMALL)
    assert [Path(one.filename) for one in told] == [Path(__file__)]
    assert simulation.config.model.name == "<grouped>"


def test_a_network_by_name_takes_options_and_one_handed_over_does_not(arrays, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(NETS)
    options = {"model.options.hidden": 4}
    with pytest.warns(UserWarning, match="model.width has no effect and is left out"):
        simulation = fl.Simulation("demo", network="nets.py:TinyNet", data=arrays, set=SMALL | options)
    code.forget()
    assert simulation.loop.setting.network.first.out_channels == 4
    for changes in (options, {"model.width": 3}):
        with pytest.raises(
            ConfigError, match=r"^model.*: expected no such change beside network=.*partial\(Net"
        ):
            fl.Simulation("demo", network=Net, data=arrays, set=SMALL | changes)
    fl.Simulation("demo", network=Net, data=arrays, set=SMALL | {"model.exempt": ["layers.0.weight"]})


def test_tied_weights_are_named(arrays):
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 36), nn.Linear(36, 36), nn.Linear(36, 3))
    net[2].weight = net[1].weight
    with pytest.raises(
        ConfigError, match="network: of Sequential: expected every tensor under one name, got"
    ):
        fl.Simulation("demo", network=net, data=arrays, set=SMALL)


def test_data_that_does_not_fit_is_named(arrays):
    x, y = arrays
    for data, said in [
        ((x, y[:-1]), "data: expected y as 200 integer labels"),
        ((x, y - 1), "data: expected y from 0"),
        ((x.astype(int), y), "data: expected x as uint8 .* or as floats, got int64"),
    ]:
        with pytest.raises(ConfigError, match=said):
            fl.Simulation("demo", network=Net, data=data, set=SMALL)


def test_wrong_use_is_a_sentence(tiny, tmp_path):
    with pytest.raises(ConfigError, match="expected the name of a preset"):
        fl.Simulation(3)
    with pytest.raises(ConfigError, match="workers: expected at least 1, got 0"):
        fl.Simulation(tiny(), workers=0)
    with pytest.raises(ConfigError, match="training.lr: expected a number, text or a list, got object"):
        fl.Simulation("demo", set={"training.lr": object()})
    with pytest.raises(RunDirError, match="which is no directory"):
        fl.load(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="expected a path for the report"):
        fl.Simulation(tiny("num_rounds=1")).run().report()


def test_changes_are_those_of_the_command_line():
    changes = {"training.lr": np.float32(0.5), "num_rounds": 2, "training.max_norm": None, "name": "mine"}
    cfg = fl.Simulation("demo", algorithm="dispfl", set=changes).config
    assert (cfg.algorithm, cfg.training.lr, cfg.num_rounds, cfg.name) == ("dispfl", 0.5, 2, "mine")
    with pytest.raises(ConfigError, match="training.l"):
        fl.Simulation("demo", set={"training.l": 1})


def test_models_of_a_directory_with_own_code_need_it_again(arrays, tmp_path):
    result = fl.run("demo", network=Net, data=arrays, set=SMALL, out=tmp_path / "run")
    loaded = fl.load(tmp_path / "run")
    assert loaded.metrics == result.metrics and loaded.summary == result.summary
    with pytest.raises(ConfigError, match="expected network Net, with which the run was started from Python"):
        loaded.model(0)
    model = fl.load(tmp_path / "run", network=Net, data=arrays).model(0)
    assert torch.equal(model.values, result.model(0).values)


def test_a_report_without_a_directory(tiny, tmp_path):
    path = fl.Simulation(tiny("num_rounds=2")).run().report(tmp_path / "page.html")
    assert "tiny" in path.read_text() and [*tmp_path.iterdir()] == [path]


def test_a_frame_in_pandas_and_in_notebooks(tiny, monkeypatch):
    frame = fl.Simulation(tiny("num_rounds=2")).run().metrics
    assert "<td>" in frame._repr_html_() and "accuracy_mean" in frame._repr_html_()
    assert len(frame[:1]) == 1 and "more" in type(frame)([*frame] * 20)._repr_html_()
    with pytest.raises(KeyError, match="expected a column out of"):
        frame["nothing"]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(Missing, match="pip install pandas"):
        frame.to_pandas()


def test_metrics_and_clients_in_pandas(tiny):
    pytest.importorskip("pandas")
    result = fl.Simulation(tiny("num_rounds=2")).run()
    frame, clients = result.metrics.to_pandas(), result.clients.to_pandas()
    assert frame["round"].tolist() == [0, 1] and len(clients) == 8
    by_round = clients.groupby("round")["accuracy"].mean()
    assert np.allclose(by_round, frame["accuracy_mean"])


def test_progress_is_shown_where_it_is_asked_for(tiny, capsys):
    fl.Simulation(tiny("num_rounds=1")).run()
    assert capsys.readouterr().out == ""
    fl.Simulation(tiny("num_rounds=1"), progress=True).run()
    assert "round    0/0" in capsys.readouterr().out


def test_a_partition_by_lists_or_by_a_function(arrays, tmp_path):
    lists = [np.arange(k, 120, 4) for k in range(4)]
    given = {"network": Net, "data": arrays, "set": SMALL}
    simulation = fl.Simulation("demo", partition=lists, **given)
    assert simulation.loop.setting.partition.train.of(3).tolist() == lists[3].tolist()
    asked = []

    def divide(data, num_clients, seed):
        asked.append((len(data.train), num_clients, seed))
        return lists

    made = fl.run("demo", partition=divide, out=tmp_path / "run", **given)
    assert untimed(made.metrics) == untimed(simulation.run().metrics) and asked == [(161, 4, 0)]
    assert made.config.data.name == "<<tuple>, own partition>"
    with pytest.raises(ConfigError, match="expected partition <tuple>, own partition, with which"):
        fl.load(tmp_path / "run", network=Net, data=arrays).model(0)


@pytest.mark.parametrize(
    ("partition", "said"),
    [
        ([[0, 1]] * 3, "expected samples of num_clients = 4 clients, got those of 3"),
        (7, "expected a list of samples per client, got int 7"),
        ([[0, 1000]] * 4, "partition: .*1000"),
    ],
)
def test_a_partition_that_does_not_fit_is_named(arrays, partition, said):
    with pytest.raises(ConfigError, match=said):
        fl.Simulation("demo", network=Net, data=arrays, partition=partition, set=SMALL)


def test_own_partition_of_a_data_set_by_name(tmp_path):
    lists = [range(k, 400, 4) for k in range(4)]
    result = fl.run("demo", partition=lists, set=SMALL | {"num_rounds": 1}, out=tmp_path / "run")
    assert result.config.data.name == "<digits, own partition>"
    assert fl.load(tmp_path / "run", partition=lists).model(1).density == result.model(1).density
    with pytest.raises(ConfigError, match="hand it over with partition="):
        fl.load(tmp_path / "run").model(1)


def test_data_by_the_path_of_a_file_is_data_by_its_name(arrays, tmp_path):
    np.savez(tmp_path / "mine.npz", x=arrays[0], y=arrays[1])
    simulation = fl.Simulation("demo", data=tmp_path / "mine.npz", set=SMALL | {"num_rounds": 1})
    assert simulation.config.data.name == str(tmp_path / "mine.npz") and simulation.config.name == "demo-mine"


@pytest.fixture
def gossip():
    """The path of an algorithm in a file; nothing of it stays."""
    yield Path(__file__).parents[3] / "examples" / "gossip.py"
    algorithms.forget()
    code.forget()


def test_an_algorithm_by_its_file_or_as_a_module(gossip, tiny):
    by_file = fl.Simulation(tiny(), algorithm=gossip, set={"gossip.share": 0.3, "num_rounds": 2}).run()
    assert by_file.config.settings.share == 0.3 and len(by_file.metrics) == 2
    module = algorithms.find(str(gossip))
    algorithms.forget()
    module.__name__ = "somewhere.gossip"
    by_module = fl.Simulation(tiny(), algorithm=module, set={"gossip.share": 0.3, "num_rounds": 2}).run()
    assert by_module.config.algorithm == "gossip" and untimed(by_module.metrics) == untimed(by_file.metrics)
    shipped = fl.Simulation(tiny(), algorithm=algorithms.registered()["fedavg"])
    assert shipped.config.algorithm == "fedavg"


def test_what_is_no_algorithm_is_named(tiny):
    with pytest.raises(ConfigError, match="algorithm: expected Config, init.*in math"):
        fl.Simulation(tiny(), algorithm=math)


def test_an_executor_that_is_not_there():
    with pytest.raises(ConfigError, match=r"executor: expected one of \['local', 'ray'\], got 'cloud'"):
        fl.run("demo", executor="cloud")
    with pytest.raises(ConfigError, match="listeners: expected objects of fl.Listener, got str"):
        fl.run("demo", listeners=["csv"])


def first_round(**given):
    """A run in a directory that stops after its first round."""
    simulation = fl.Simulation("demo", workers=1, **given)
    next(iter(simulation))
    simulation.close()


def test_a_run_with_code_of_ones_own_goes_on(arrays, tmp_path, same_results):
    """Network, data and partition are handed over once more."""
    own = {"network": Net, "data": arrays, "partition": [range(40 * k, 40 * k + 40) for k in range(4)]}
    first_round(**own, set=SMALL, out=tmp_path / "run")
    resumed = fl.Simulation.resume(tmp_path / "run", **own, workers=1)
    assert [line["round"] for line in resumed] == [1, 2]
    fl.run("demo", **own, set=SMALL, out=tmp_path / "whole", workers=1)
    same_results(tmp_path / "run", tmp_path / "whole")
    assert resumed.result().summary["num_rounds"] == 3 and (tmp_path / "run" / "summary.json").exists()
    assert [*fl.Simulation.resume(tmp_path / "run", **own, workers=1)] == []  # it has ended


def test_what_is_not_handed_over_again_is_named(arrays, tmp_path):
    first_round(network=Net, data=arrays, set=SMALL, out=tmp_path / "run")
    before = (tmp_path / "run" / METRICS).read_bytes()
    for given, said in [
        ({}, "expected network Net, .* hand it over with network="),
        ({"network": Net}, "expected data tuple, .* hand it over with data="),
        ({"network": nn.Linear, "data": arrays}, "network: expected"),
        (
            {"network": nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), "data": arrays},
            "expected config.toml as the run was started with, got it with .*Sequential",
        ),
    ]:
        with pytest.raises((ConfigError, RunDirError), match=said):
            fl.Simulation.resume(tmp_path / "run", **given, workers=1)
    assert (tmp_path / "run" / METRICS).read_bytes() == before
    with pytest.raises(RunDirError):
        fl.Simulation.resume(tmp_path / "nowhere")


def test_an_algorithm_of_ones_own_is_handed_over_again(tmp_path):
    module = ModuleType("mine_again")
    for name in ("Config", "init", "run_round", "State", "Client"):
        if hasattr(algorithms.shipped()["dispfl"], name):
            setattr(module, name, getattr(algorithms.shipped()["dispfl"], name))
    small = {key: value for key, value in SMALL.items() if value is not None}
    try:
        first_round(algorithm=module, set=small, out=tmp_path / "run")
        algorithms.forget()
        with pytest.raises(ConfigError, match="mine_again: expected a known key"):
            fl.Simulation.resume(tmp_path / "run")
        resumed = fl.Simulation.resume(tmp_path / "run", algorithm=module, workers=1)
        assert [line["round"] for line in resumed] == [1, 2]
    finally:
        algorithms.forget()


def test_a_run_without_a_checkpoint_begins_or_is_refused(tiny, tmp_path):
    fl.run(tiny("num_rounds=2"), out=tmp_path / "run", workers=1)
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    with pytest.raises(RunDirError, match="expected a checkpoint in .* though metrics.jsonl has 2 rounds"):
        fl.Simulation.resume(tmp_path / "run")
    (tmp_path / "run" / METRICS).write_text("")
    assert [line["round"] for line in fl.Simulation.resume(tmp_path / "run", workers=1)] == [0, 1]


def test_a_single_turn(tiny):
    """What a round does for a client, by hand."""
    simulation = fl.Simulation(tiny("algorithm=dispfl", "num_rounds=1"), workers=1)
    trainer, local = simulation.trainer(), Local.of(simulation.config.training, 0)
    turn = trainer.turn(2, 0, trainer.initial)
    report = turn.train(local)
    again = trainer.turn(2, 0, trainer.initial)
    assert again.train(local).loss == report.loss and report.samples == trainer.num_samples(2)


def test_a_loader_that_returned_nothing_is_refused():
    for made in (lambda: fl.run("demo", data=None), lambda: fl.Simulation("demo", data=None)):
        with pytest.raises(ConfigError, match="data: expected data, got None: what made it returned nothing"):
            made()


def test_a_named_loader_that_returns_nothing_is_named(tmp_path):
    (tmp_path / "loader.py").write_text("def load():\n    (1, 2)\n")
    name = f"{tmp_path / 'loader.py'}:load"
    code.allow(name)
    with pytest.raises(ConfigError, match=r"data.name: of .*loader.py:load: .* got NoneType"):
        fl.run("demo", data=name)
