"""The loop: every mechanism fires, any number of workers gives the same bytes, runs stop and go on."""

import errno
import json
import os
import shutil
from math import isclose

import pytest
import torch

import sparse_engine as se
from fl import config
from fl.clients.store import Store
from fl.config import ConfigError
from fl.run import checkpoint, keys, restore, rundir, runs, setup
from fl.run.checkpoint import CheckpointError
from fl.run.events import Listener
from fl.run.rundir import CLIENTS, METRICS, RunDirError, read_jsonl
from fl.run.runs import Interrupted, Options

KEYS = (
    "round accuracy_mean accuracy_before loss density_mean flop_round bytes_up_mean bytes_busiest wall_s "
    "sim_time_s sim_energy_j votes pruned depth"
).split()  # what others rely on


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    """A run that nobody disturbed: its path and summary."""
    path = tmp_path_factory.mktemp("whole") / "run"
    return path, runs.start(tiny(), path, Options(workers=1))


def test_every_mechanism_fires(whole):
    path, summary = whole
    rounds, clients = read_jsonl(path / METRICS), read_jsonl(path / CLIENTS)
    assert [line["round"] for line in rounds] == list(range(5)) and len(clients) == 4 * 5
    assert any(line["depth"] > 0 for line in rounds) and any(line["waited_for"] for line in clients)
    assert rounds[0]["votes"] is None and rounds[1]["votes"] >= 0.5 and rounds[1]["t_star"] == 1
    assert [line["pruned"] for line in rounds] == [0, 0, 4, 4, 4]
    assert summary["prune_rounds"] == [2, 3, 4] and summary["t_star"] == 1
    assert rounds[-1]["density_mean"] < rounds[1]["density_mean"] == rounds[0]["density_mean"]
    assert rounds[-1]["accuracy_mean"] > 0.2 > rounds[0]["accuracy_before"]


def test_the_lines_hold_what_is_promised(whole):
    path, summary = whole
    (first, *_), (client, *_) = read_jsonl(path / METRICS), read_jsonl(path / CLIENTS)
    assert set(KEYS) <= set(first)
    for where, line in (("round", first), ("client", client), ("run", summary)):
        assert not keys.unknown(where, line)
    assert {"wall_s", "train_s"} <= set(first)
    assert not [key for key in first if "energy" in key and key != "sim_energy_j"]  # nobody asked
    assert summary["energy_j"] is summary["energy_per_step_j"] is None


def test_figures_add_up(whole):
    path, summary = whole
    rounds, clients = read_jsonl(path / METRICS), read_jsonl(path / CLIENTS)
    for line in rounds:
        mine = [client for client in clients if client["round"] == line["round"]]
        for total, part in (
            ("flop_round", "flop"),
            ("bytes_total", "bytes_up"),
            ("bytes_total", "bytes_down"),
        ):
            assert line[total] == sum(client[part] for client in mine)
        assert isclose(line["accuracy_mean"], sum(client["accuracy"] for client in mine) / 4)
        assert line["bytes_busiest"] == max(client["bytes_down"] for client in mine)
        assert isclose(line["density_mean"], sum(client["density"] for client in mine) / 4)
        assert line["depth"] == max(client["wave"] for client in mine)
        assert line["votes"] is None or line["votes"] == sum(client["vote"] for client in mine) / 4
        last = max(client["sim_finish_s"] for client in mine)
        slowest = max(client["bytes_down"] for client in mine) * 8 / 1e9
        assert isclose(line["sim_time_s"], last + slowest)
        energy = 450 * 5 / 80e12 * line["flop_round"] + 8 / 1e9 * line["bytes_total"]
        assert isclose(line["sim_energy_j"], energy)
    assert summary["bytes_total"] == sum(line["bytes_total"] for line in rounds)
    assert summary["flop_total_dense"] == sum(line["flop_dense"] for line in rounds)
    assert summary["accuracy_best"] == max(line["accuracy_mean"] for line in rounds)


def test_partition_is_written(whole):
    path, _ = whole
    shares = json.loads((path / "partition.json").read_text())
    assert [sum(row) for row in shares["train"]] == [40] * 4 and len(shares["classes"]) == 10
    assert len(shares["test"]) == 4


def test_the_written_configuration_repeats_the_run(whole, tmp_path, same_results):
    path, _ = whole
    runs.start(config.load(path / "config.toml"), tmp_path / "again", Options(workers=1))
    same_results(tmp_path / "again", path)


@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_workers_gives_the_same_bytes(whole, tiny, tmp_path, same_results, workers):
    path, _ = whole
    runs.start(tiny(), tmp_path / "run", Options(workers=workers))
    same_results(tmp_path / "run", path)


@pytest.mark.parametrize(
    "changes",
    [
        ["training.kernels=dense", "num_rounds=2"],
        ["model.name=lenet5", "model.width=none", "data.size=28", "num_rounds=2"],
        ["messages.values=q8", "num_rounds=3"],
    ],
)
def test_so_do_other_networks_kernels_and_messages(tiny, tmp_path, same_results, changes):
    for workers in (1, 2):
        runs.start(tiny(*changes), tmp_path / str(workers), Options(workers=workers))
    same_results(tmp_path / "1", tmp_path / "2")


def test_another_seed_is_another_run(whole, tiny, tmp_path):
    path, _ = whole
    runs.start(tiny("seed=1", "num_rounds=1"), tmp_path / "run", Options(workers=1))
    assert read_jsonl(tmp_path / "run" / METRICS)[0]["loss"] != read_jsonl(path / METRICS)[0]["loss"]


@pytest.mark.parametrize("kind", ["ring", "line", "star", "grid", "full", "regular", "edges"])
def test_topologies(tiny, tmp_path, kind):
    (tmp_path / "edges.txt").write_text("0 1\n1 2\n2 3\n3 0\n")
    edges = [f"topology.edges={tmp_path / 'edges.txt'}"] if kind == "edges" else []
    changes = [f"topology.kind={kind}", "num_rounds=1", "training.epochs=0", *edges]
    summary = runs.start(tiny(*changes), tmp_path / "run", Options(workers=1))
    links = {"ring": 8, "line": 6, "star": 6, "grid": 8, "full": 12, "regular": 8, "edges": 4}[kind]
    clients = read_jsonl(tmp_path / "run" / CLIENTS)
    assert (
        summary["bytes_total_paper"] == links * summary["bytes_busiest_paper"] // max(_degrees(kind))
        and len(clients) == 4
    )


def _degrees(kind):
    return {"ring": [2], "line": [2], "star": [3], "grid": [2], "full": [3], "regular": [2], "edges": [1]}[
        kind
    ]


class StopAt(Listener):
    """Interrupts when round `t` has begun and `clients` have finished."""

    def __init__(self, t, clients=0):
        self.t, self.clients, self.left, self.now, self.notes = t, clients, clients, None, []

    def round_started(self, t):
        self.now, self.left = t, self.clients
        if t == self.t and not self.clients:
            raise KeyboardInterrupt

    def wave_started(self, clients):
        if self.now == self.t and self.left <= 0 and self.clients:
            raise KeyboardInterrupt

    def client_finished(self, k):
        self.left -= 1

    def note(self, text):
        self.notes.append(text)


@pytest.mark.parametrize(
    ("stop", "every"), [(StopAt(0), 1), (StopAt(2), 1), (StopAt(2, 1), 1), (StopAt(3), 10)]
)
def test_interrupted_and_resumed(whole, tiny, tmp_path, same_results, stop, every):
    path, _ = whole
    cfg = tiny(f"run.checkpoint_every={every}")
    with pytest.raises(Interrupted):
        runs.start(cfg, tmp_path / "run", Options(1, stop))
    if stop.t:  # the rounds that were done are saved, whether a checkpoint was due or not
        assert checkpoint.rounds(tmp_path / "run" / "checkpoint")[0] == stop.t - 1
    runs.resume(tmp_path / "run", Options(workers=2))
    same_results(tmp_path / "run", path)


def test_resuming_a_finished_run_changes_nothing(whole, tmp_path, same_results):
    path, summary = whole
    before = (path / METRICS).read_bytes()
    again = runs.resume(path, Options(workers=1))
    assert again == summary and (path / METRICS).read_bytes() == before


def stopped_after(tiny, path, rounds):
    with pytest.raises(Interrupted):
        runs.start(tiny(), path, Options(1, StopAt(rounds)))


def test_a_damaged_checkpoint_falls_back_to_the_one_before(whole, tiny, tmp_path, same_results):
    stopped_after(tiny, tmp_path / "run", 4)
    newest = tmp_path / "run" / "checkpoint" / "round-00003" / "tensors-00000.safetensors"
    newest.write_bytes(newest.read_bytes()[:-100])
    ear = StopAt(None)
    runs.resume(tmp_path / "run", Options(1, ear))
    assert len(ear.notes) == 1 and "round-00003" in ear.notes[0] and "bytes, got" in ear.notes[0]
    same_results(tmp_path / "run", whole[0])


def test_no_whole_checkpoint_is_an_error(tiny, tmp_path):
    stopped_after(tiny, tmp_path / "run", 2)
    for file in (tmp_path / "run" / "checkpoint").glob("*/state.json"):
        file.write_text("")
    with pytest.raises(
        CheckpointError, match="(?s)expected a whole checkpoint, got.*round-00001.*round-00000"
    ):
        runs.resume(tmp_path / "run", Options(1))


def test_a_checkpoint_folder_that_vanished_is_not_a_fresh_start(tiny, tmp_path):
    """The recorded rounds stay; what to do is said, and that works."""
    path = tmp_path / "run"
    stopped_after(tiny, path, 2)
    before = (path / METRICS).read_bytes()
    for left in (0, 1):  # an empty folder is no better: the second round came after a checkpoint
        shutil.rmtree(path / "checkpoint")
        if left:
            (path / "checkpoint").mkdir()
        with pytest.raises(
            RunDirError, match="got none, though metrics.jsonl has 2 rounds: put the folder back"
        ):
            runs.resume(path, Options(1))
        assert (path / METRICS).read_bytes() == before
        (path / "checkpoint").mkdir(exist_ok=True)
    again = runs.start(config.load(path / "config.toml"), path, Options(1, overwrite=True))
    assert again["num_rounds"] == len(read_jsonl(path / METRICS)) == 5


def test_no_round_finished_yet_is_a_fresh_start(whole, tiny, tmp_path, same_results):
    """Killed before the first checkpoint, with a line on disk or without."""
    for line in ("", (whole[0] / METRICS).read_text().splitlines(keepends=True)[0]):
        path = tmp_path / f"run{len(line)}"
        stopped_after(tiny, path, 0)
        assert os.listdir(path / "checkpoint") == []
        (path / METRICS).write_text(line)
        runs.resume(path, Options(1))
        same_results(path, whole[0])


def test_a_finished_run_needs_no_checkpoints(tiny, tmp_path):
    """They are large: who wants the results alone may remove them."""
    summary = runs.start(tiny("num_rounds=2"), tmp_path / "run", Options(1))
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    assert runs.resume(tmp_path / "run", Options(1)) == summary


FORM = ("fields", "clients", "tables", "forms", 0)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["fields", "clients"], {"clients": [], "versions": []}),
        (["fields", "clients", "tables", "population", "clients"], 3),
        (["fields", "clients", "tables", "population", "records"], 2**70),
        ([*FORM, "tree"], {"items": []}),
        ([*FORM, "tree", "parts", 4], {"text": "far"}),
        ([*FORM, "tree", "parts", 1], None),
        ([*FORM, "tree", "parts", 0], {"mask": 0}),
        ([*FORM, "tree", "parts", 3, "parts", 1], {"number": 99}),
        ([*FORM, "models"], [7]),
        (["fields", "t_star"], True),
        (["type"], "Client"),
    ],
)
def test_a_state_that_does_not_fit_falls_back_to_the_one_before(
    whole, tiny, tmp_path, same_results, path, value
):
    """Whole by its checksum, and yet not what the algorithm keeps: found before anything trains."""
    stopped_after(tiny, tmp_path / "run", 4)
    file = tmp_path / "run" / "checkpoint" / "round-00003" / "state.json"
    body = json.loads(file.read_text())["body"]
    node = body["state"]
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    file.write_text(json.dumps({"sha256": checkpoint._digest(body), "body": body}))
    ear = StopAt(None)
    runs.resume(tmp_path / "run", Options(1, ear))
    assert len(ear.notes) == 1 and "round-00003: " in ear.notes[0]
    same_results(tmp_path / "run", whole[0])


def test_resuming_truncates_no_file_outside_the_directory(tiny, tmp_path):
    """Names in state.json are names of the table, whatever its checksum says."""
    victim = tmp_path / "victim.txt"
    victim.write_text("precious")
    stopped_after(tiny, tmp_path / "run", 2)
    for file in (tmp_path / "run" / "checkpoint").glob("*/state.json"):
        body = json.loads(file.read_text())["body"]
        body["marks"] = {str(victim): {"bytes": 0, "sha256": rundir.NOTHING.sha256}}
        file.write_text(json.dumps({"sha256": checkpoint._digest(body), "body": body}))
    with pytest.raises(CheckpointError, match="marks: expected those of"):
        runs.resume(tmp_path / "run", Options(1))
    stopped_after(tiny, tmp_path / "other", 2)
    (tmp_path / "other" / METRICS).unlink()
    (tmp_path / "other" / METRICS).symlink_to(victim)
    with pytest.raises(RunDirError, match="expected a file, got a link"):
        runs.resume(tmp_path / "other", Options(1))
    assert victim.read_text() == "precious"


def test_names_are_on_disk_before_the_first_round_ends(tiny, tmp_path, monkeypatch):
    """The directory is brought to disk after metrics.jsonl, clients.jsonl and checkpoint/ are made in it."""
    synced, real = [], os.fsync

    def seen(handle):
        where = os.readlink(f"/proc/self/fd/{handle}")
        synced.append((where, sorted(os.listdir(where)) if os.path.isdir(where) else None))
        real(handle)

    monkeypatch.setattr(os, "fsync", seen)
    stopped_after(tiny, tmp_path / "run", 0)
    at_rest = [names for where, names in synced if where == str(tmp_path / "run")]
    assert any({"metrics.jsonl", "clients.jsonl", "checkpoint"} <= set(names) for names in at_rest)


def test_a_changed_configuration_is_refused(tiny, tmp_path):
    stopped_after(tiny, tmp_path / "run", 1)
    file = tmp_path / "run" / "config.toml"
    file.write_text(file.read_text().replace("lr = 0.1", "lr = 0.2"))
    with pytest.raises(RunDirError, match=r"got it with \['lr = 0.2'\]"):
        runs.resume(tmp_path / "run", Options(1))


def test_lost_lines_are_an_error(tiny, tmp_path):
    stopped_after(tiny, tmp_path / "run", 2)
    (tmp_path / "run" / METRICS).write_text("")
    with pytest.raises(RunDirError, match="expected at least .* bytes in .*metrics.jsonl"):
        runs.resume(tmp_path / "run", Options(1))


def test_a_full_disk_stops_the_run_and_it_goes_on_later(whole, tiny, tmp_path, monkeypatch, same_results):
    real, calls = os.fsync, []

    def full(handle):
        calls.append(1)
        if len(calls) > 25:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises((CheckpointError, RunDirError), match="No space left on device"):
        runs.start(tiny(), tmp_path / "run", Options(1))
    monkeypatch.undo()
    runs.resume(tmp_path / "run", Options(1))
    same_results(tmp_path / "run", whole[0])


def test_errors_before_anything_is_written(tiny, tmp_path):
    for changes, error, message in [
        (["data.name=nobody"], FileNotFoundError, "nobody"),
        (["data.train_per_client=100000"], ConfigError, "data: expected at most"),
        (["model.name=resnet"], ConfigError, "model.name: expected a network out of .* got 'resnet'"),
        (
            ["model.norm=batch"],
            ConfigError,
            "model.norm: expected a key that has an effect here: it counts with model.name = resnet18 or",
        ),
        (
            ["topology.kind=regular", "num_clients=5", "topology.degree=3"],
            ConfigError,
            "topology: expected clients x",
        ),
    ]:
        with pytest.raises(error, match=message):
            runs.start(tiny(*changes), tmp_path / "run", Options(1))
        assert not (tmp_path / "run").exists()


def test_a_directory_with_a_run_is_left_alone(whole, tiny):
    path, _ = whole
    with pytest.raises(RunDirError, match="--resume"):
        runs.start(tiny(), path, Options(1))


def test_baseline(tiny, tmp_path):
    changes = ("num_rounds=2", "training.epochs=2")
    sparse = runs.start(tiny(*changes), tmp_path / "run", Options(1))
    assert sparse["baseline"] is None
    both = runs.baseline(tmp_path / "run", Options(1))
    dense = json.loads((tmp_path / "run" / "baseline" / "summary.json").read_text())
    assert both["baseline"] == {key: dense[key] for key in both["baseline"]} and dense["kernels"] == "dense"
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == both
    assert runs.resume(tmp_path / "run", Options(1))["baseline"] == both["baseline"]
    ours, theirs = (read_jsonl(path / METRICS) for path in (tmp_path / "run", tmp_path / "run" / "baseline"))
    for a, b in zip(ours, theirs, strict=True):  # the same run up to rounding
        assert isclose(a["loss"], b["loss"], rel_tol=1e-3) and a["flop_round"] == b["flop_round"]
        assert abs(a["accuracy_mean"] - b["accuracy_mean"]) <= 0.05
    with pytest.raises(ConfigError, match="got dense"):
        runs.baseline(tmp_path / "run" / "baseline", Options(1))


def test_restored_weights_are_the_weights(whole):
    path, _ = whole
    head, _ = checkpoint.newest(path / "checkpoint", lambda head: head)
    cfg = config.load(path / "config.toml")
    from fl.algorithms import da_dpfl

    layout = setup.prepare(cfg).initial.layout
    state = restore.state_of(path / "checkpoint", head, da_dpfl, cfg, layout, Store(layout))
    assert len(state.clients) == 4 and state.t_star == 1
    for client, line in zip(state.clients, read_jsonl(path / CLIENTS)[-4:], strict=True):
        assert client.model.density == line["density"] and client.drift == line["drift"]
        assert torch.isfinite(client.model.values).all()
        assert client.sent.model is client.model and client.sent.nbytes == len(se.wire.encode(client.model))
