"""`sparsefl run` with a network, data and an algorithm of one's own; the trust that a run directory needs."""

import json
import re
from importlib.metadata import EntryPoint

import pytest
import safetensors.torch
import torch
from own_code import ALGORITHM, LOADER, NETS
from typer.testing import CliRunner

import fl
from fl import algorithms
from fl.cli.app import app
from fl.config import code
from fl.errors import UntrustedError

QUICK = (
    *("num_clients=4", "num_rounds=2", "training.epochs=1", "training.batch_size=16", "topology.degree=2"),
    *("data.train_per_client=40", "data.test_per_client=20"),
)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in (("nets.py", NETS), ("loader.py", LOADER), ("mine.py", ALGORITHM)):
        (tmp_path / name).write_text(text)
    yield tmp_path
    new_process()


def new_process():
    code.forget()
    algorithms.forget()


def sparsefl(*args, code_of=0):
    done = CliRunner().invoke(app, [str(arg) for arg in args], prog_name="sparsefl")
    assert done.exit_code == code_of, done.output
    return done.output.replace("\n", " ")


def run(*changes, out="run", **more):
    sets = (part for one in (*QUICK, *changes) for part in ("--set", one))
    return sparsefl("run", "demo", "--out", out, "--workers", 1, *sets, **more)


def unfinished(path):
    """As if it had been stopped after the first round."""
    (path / "summary.json").unlink()
    last = max((path / "checkpoint").glob("round-*"))
    for file in last.iterdir():
        file.unlink()
    last.rmdir()


def test_a_network_of_ones_own_and_what_resuming_needs(here):
    told = run("model.name=nets.py:TinyNet", "model.options.hidden=4")
    assert "da_dpfl on digits, nets.py:TinyNet" in told
    recorded = json.loads((here / "run" / "code.json").read_text())
    assert recorded["model.name"]["name"] == "nets.py:TinyNet" and len(recorded["model.name"]["sha256"]) == 64
    metrics = (here / "run" / "metrics.jsonl").read_text()
    new_process()
    sparsefl("report", "run")  # shows the network, and runs none of it
    unfinished(here / "run")
    refused = sparsefl("run", "--resume", "run", code_of=2)
    assert "allow to import nets.py" in refused and "--code nets.py, or --trust" in refused
    assert "not what the run was started with" not in sparsefl("run", "--resume", "run", "--code", "nets.py")
    again = (here / "run" / "metrics.jsonl").read_text()
    timeless = [
        [{**json.loads(one), "wall_s": 0, "rss_bytes": 0, "train_s": 0} for one in x.splitlines()]
        for x in (metrics, again)
    ]
    assert timeless[0] == timeless[1]


def test_changed_code_is_noted(here):
    run("model.name=nets.py:TinyNet")
    unfinished(here / "run")
    new_process()
    (here / "nets.py").write_text(NETS + "\n# more")
    sparsefl("run", "--resume", "run", code_of=2)
    told = sparsefl("run", "--resume", "run", "--trust")
    assert "nets.py:TinyNet (model.name) is not what the run was started with: nets.py with SHA-256" in told


def test_data_of_ones_own(here):
    told = run("data.name=loader.py:load", "num_rounds=1", "model.width=4")
    assert "demo-loader: da_dpfl on loader.py:load" in told
    parts = json.loads((here / "run" / "partition.json").read_text())
    assert parts["classes"] == ["0", "1", "2", "3"]
    assert "data.name" in json.loads((here / "run" / "code.json").read_text())
    wrong = run("data.name=loader.py:torn", out="torn", code_of=2)
    assert "data.name: of loader.py:torn: expected (x, y) or (x, y, x_test, y_test), got 3 arrays" in wrong
    assert not (here / "torn").exists()


def test_data_of_ones_own_may_be_a_torch_dataset_or_a_split(here):
    (here / "sets.py").write_text(
        "import loader, torch\nfrom torch.utils.data import TensorDataset\nx, y = loader.load()\n"
        "def samples(): return TensorDataset(torch.tensor(x[:, None]), torch.tensor(y))\n"
        "class Split:\n    column_names = ['image', 'label']\n    def __len__(self): return len(y)\n"
        "    def __getitem__(self, i): return {'image': x[i], 'label': y[i]}\n"
    )
    lines = []
    for name in ("loader.py:load", "sets.py:samples", "sets.py:Split"):
        assert f"on {name}" in run(f"data.name={name}", "num_rounds=1", out=name.partition(":")[2])
        (line,) = (here / name.partition(":")[2] / "metrics.jsonl").read_text().splitlines()
        lines.append(json.loads(line)["loss"])
    assert lines[0] == lines[1] == lines[2]


def test_what_stays_dense_is_said_and_recorded(here):
    said = (
        "nets.py:Depthwise: 2.4% of the weights cannot be sparse and stay dense: 1 (72): grouped convolution"
    )
    assert said in run("model.name=nets.py:Depthwise", "num_rounds=1")
    assert said in (here / "run" / "config.toml").read_text()
    assert said in (here / "run" / "report.html").read_text()
    assert "stay dense" not in run("model.name=nets.py:TinyNet", "num_rounds=1", out="whole")


@pytest.mark.parametrize(
    ("change", "exit_code", "message"),
    [
        ("model.name=nets.py:Whole", 1, r"that runs through, got nets.py, line \d+: KeyError: 'too many'"),
        ("model.name=nets.py:leave", 2, r"network of nets.py:leave with .*, line \d+: SystemExit: 3"),
        ("model.name=nets.py:products", 2, r"can be sparse, got nets.py:products with 0 \(640\): no sparse"),
        ("data.name=nets.py:quit", 2, r"data of nets.py:quit, got nets.py, line \d+: SystemExit: 3"),
        ("algorithm=ends.py", 2, "code that can be imported, got ends.py, line 1: SystemExit: 3"),
        ("model.name=ends.py:Net", 2, "code that can be imported, got ends.py, line 1: SystemExit: 3"),
        ("model.name=ends:Net", 2, "a module that can be imported, got ends: SystemExit: 3"),
    ],
)
def test_code_that_fails_is_a_sentence(here, change, exit_code, message):
    (here / "ends.py").write_text("raise SystemExit(3)")
    assert re.search(message, run(change, code_of=exit_code))


def test_models_of_a_run_with_own_code(here):
    own = ("model.name=nets.py:TinyNet", "data.name=loader.py:load", "algorithm=mine.py")
    run(*own, "model.options.hidden=4", "num_rounds=1")
    three = ("export", "run", "--client", 3)
    new_process()
    assert "allow to import mine.py" in sparsefl(*three, code_of=2)
    assert "allow to import loader.py" in sparsefl(*three, "--code", "mine.py", code_of=2)
    named = ("--code", "mine.py", "--code", "nets.py", "--code", "loader.py")
    assert "client-3 after round 0" in sparsefl(*three, *named)
    new_process()
    sparsefl(*three, "--trust", "--format", "safetensors")
    new_process()
    with pytest.raises(UntrustedError, match=r"fl.load\(..., code=\['mine.py'\]\)"):
        fl.load("run")
    loaded = fl.load("run", code=["mine.py", "nets.py", "loader.py"]).network(3)
    assert loaded.first.out_channels == 4
    for tensors in (torch.load("client-3.pt"), safetensors.torch.load_file("client-3.safetensors")):
        assert all(torch.equal(x, tensors[name]) for name, x in loaded.state_dict().items())


def test_an_algorithm_of_ones_own_and_its_section(here):
    (here / "mine.toml").write_text(
        'extends = "demo"\nalgorithm = "mine.py"\nnum_clients = 4\nnum_rounds = 2\n[mine]\nshare = 0.25\n'
        "[topology]\ndegree = 2\n[data]\ntrain_per_client = 40\ntest_per_client = 20\n"
        "[training]\nepochs = 1\n"
    )
    assert "mine.py on digits" in sparsefl("run", "mine.toml", "--out", "run", "--workers", 1)
    text = (here / "run" / "config.toml").read_text()
    assert 'algorithm = "mine.py"' in text and "[mine]\nshare = 0.25" in text
    unfinished(here / "run")
    for command in (("report", "run"), ("run", "--resume", "run"), ("run", "run")):
        new_process()
        assert "algorithm: expected that you allow to import mine.py" in sparsefl(*command, code_of=2)
    sparsefl("report", "run", "--code", "mine.py")
    new_process()
    sparsefl("run", "--resume", "run", "--trust")
    wrong = sparsefl("run", "mine.toml", "--set", "mine.share=2.0", code_of=2)
    assert "mine.share: expected a number up to 1.0, got 2.0" in wrong


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("mine.py", "", "in mine.py, got no Config and no init and no run_round"),
        ("mine.py", ALGORITHM.replace("def init", "def start"), "in mine.py, got no init"),
        (
            "mine.py",
            "Config = 3\ninit = run_round = print",
            "expected a subclass of fl.config.Section, got 3",
        ),
        (
            "mine.py",
            ALGORITHM.replace(" = 0.5", ""),
            "a default of every key of Config in mine.py, got share",
        ),
        ("mine.py", ALGORITHM + "\nx = unknown", "NameError: name 'unknown' is not defined"),
        ("da_dpfl.py", ALGORITHM, "that of a new section, got da_dpfl.py"),
        ("data.py", ALGORITHM, "that of a new section, got data.py"),
        ("my-own.py", ALGORITHM, "that of a new section, got my-own.py"),
    ],
)
def test_files_that_are_no_algorithm(here, file, text, message):
    (here / file).write_text(text)
    assert message in run(f"algorithm={file}", code_of=2)


def test_a_comparison_with_an_algorithm_of_ones_own(here):
    sets = [part for one in QUICK for part in ("--set", one)]
    arguments = ("--algorithms", "dispfl,mine.py", "--out", "both", "--workers", 1)
    assert "mine" in sparsefl("compare", "demo", *arguments, *sets)
    assert (here / "both" / "mine-seed-0" / "code.json").exists()
    new_process()
    assert "allow to import mine.py" in sparsefl("report", "both", code_of=1)
    sparsefl("report", "both", "--trust")


def test_entry_points_are_listed_and_run(here, monkeypatch):
    points = [
        EntryPoint("theirs", "mine", "sparsefl.algorithms"),
        EntryPoint("ruined", "nowhere_to_be_found", "sparsefl.algorithms"),
        EntryPoint("tiny", "nets:TinyNet", "sparsefl.networks"),
    ]
    monkeypatch.syspath_prepend(here)
    monkeypatch.setattr(code, "entry_points", lambda group: [one for one in points if one.group == group])
    caches = (code.installed, algorithms.installed)
    for one in caches:
        one.cache_clear()
    try:
        listed = sparsefl("list")
        assert (
            "theirs" in listed
            and "ruined" in listed
            and "cannot be used: " in listed
            and "(from nets:T" in listed
        )
        run("algorithm=theirs", "theirs.share=0.25", "model.name=tiny", "model.options.hidden=4")
        recorded = json.loads((here / "run" / "code.json").read_text())
        assert (
            recorded["algorithm"]["origin"] == "mine" and recorded["model.name"]["origin"] == "nets:TinyNet"
        )
        assert "expected ruined of" in run("algorithm=ruined", out="ruined", code_of=2)
    finally:
        for one in caches:
            one.cache_clear()
