"""Nasty configurations, through the real command: a sentence, exit code 2, no traceback, nothing written."""

import os

import numpy as np
import pytest
from typer.testing import CliRunner

from fl.cli.app import app

HUGE = "9" * 400


def refused(*args, code=2):
    """The sentence with which `sparsefl run` refuses."""
    done = CliRunner().invoke(app, ["run", *map(str, args)])
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output and "Warning" not in done.output and done.output.strip()
    assert len(done.output) < 5_500  # names may be that long
    assert not os.path.exists("runs")
    return done.output


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


CHANGES = [
    # types
    "seed=zero",
    "seed=1.5",
    "seed=true",
    "seed=[1]",
    "seed={a = 1}",
    "name=3",
    "name=[]",
    "algorithm=[]",
    "algorithm={a = 1}",
    "algorithm=",
    "data=3",
    "data=[]",
    "data.name={x = 1}",
    "data.name=[]",
    "model.hidden=[[1]]",
    "model.exempt=[1]",
    "model.exempt=word",
    "training.lr=1979-05-27",
    "topology.edges=7",
    "da_dpfl.pqi=1",
    "da_dpfl.pqi.p={}",
    # ranges
    "seed=-1",
    f"seed={HUGE}",
    f"seed={'9' * 5000}",
    "num_clients=1",
    f"num_clients={HUGE}",
    "num_clients=5000",
    "num_clients=2147483647",
    f"num_rounds={HUGE}",
    "num_rounds=-3",
    f"training.epochs={HUGE}",
    f"training.batch_size={HUGE}",
    "training.lr=inf",
    "training.lr=nan",
    "training.lr=-0.0",
    "training.lr=1e999",
    "training.lr_decay=1.0000001",
    "training.momentum=1",
    "training.weight_decay=-1e-300",
    "data.alpha=1e-300",
    "data.alpha=inf",
    "data.size=0",
    "data.size=1000000",
    "data.size=1",
    "data.train_per_client=1000000",
    "data.test_per_client=1000000",
    "model.width=0",
    "model.width=1000000",
    "model.width=2147483647",
    f"model.width={HUGE}",
    "model.name=lenet5",
    "model.name=vgg11",
    "model.name=alexnet",
    "model.name=by_name",
    "model.name=__class__",
    "model.name=",
    "topology.degree=0",
    "topology.degree=12",
    f"topology.degree={HUGE}",
    "topology.kind=regular ring",
    "topology.kind=edges",
    "devices.peak_flops=1e-300",
    "devices.peak_flops=1e300",
    "devices.bandwidth=0",
    "devices.bandwidth=1e-300",
    "devices.compute_watts=1e300",
    "devices.over_peak=1e-300",
    "da_dpfl.density=0",
    "da_dpfl.density=1e999",
    "da_dpfl.c=1",
    "da_dpfl.pqi.p=1e308",
    # unknown, nested, odd
    "x=1",
    "=",
    "==",
    ".=1",
    "a..b=1",
    "data.=1",
    ".data=1",
    "__class__=1",
    "model_fields=1",
    "data.__class__=1",
    "data.name.x.y.z=1",
    "nothing.at.all.there=1",
    "extends=demo",
    "data.nаme=1",  # a Cyrillic a
    "\u202edata=1",
    "na\udcffme=1",
    "seed=\udcff",
    "name=\udcff",
    "seed=" + "[" * 5000,
    "seed=" + "{a=" * 3000,
    "data.alpha=0.1\x00",
    "training.lr=" + "1" * 100_000,
    ".".join(["a"] * 5_000) + "=1",
    "x=" + "{a=" * 40 + "1" + "}" * 40,
]


@pytest.mark.parametrize("change", CHANGES, ids=[ascii(change)[:60] for change in CHANGES])
def test_a_hostile_change_is_a_sentence(change):
    refused("demo", "--set", change)


FILES = {
    "empty name": b'"" = 1',
    "binary": bytes(range(256)),
    "utf-16": 'name = "x"'.encode("utf-16"),
    "a zero byte": b'name = "a\x00b"',
    "not closed": b'name = "x',
    "twice": b"seed = 1\nseed = 2",
    "a table and a key": b"data = 1\n[data]\nname = 'x'",
    "tables in a list": b"[[data]]\nname = 'digits'",
    "deep lists": b"seed = " + b"[" * 20_000,
    "deep tables": b"[" + b".".join([b"a"] * 5_000) + b"]\nx = 1",
    "huge number": b"seed = " + b"9" * 5_000,
    "huge float": b"[training]\nlr = 1e99999",
    "dates": b"[training]\nlr = 1979-05-27T07:32:00Z",
    "large": b"#" * (2 << 20),
    "unknown keys": b"x = 1\n[y]\nz = 2\n[data]\nw = 3",
    "another's section": b"[nobody]\ndensity = 0.1",
    "extends a number": b"extends = 3",
    "extends a list": b"extends = ['demo']",
    "extends nobody": b"extends = 'nobody'",
    "extends nothing": b"extends = ''",
    "extends a missing file": b"extends = 'missing.toml'",
    "extends itself": b"extends = 'hostile.toml'",
    "extends a directory": b"extends = '/'",
    "extends a device": b"extends = '/dev/zero'",
    "extends a zero byte": b'extends = "a\\u0000b"',
    "extends a long name": b"extends = '" + b"x" * 5_000 + b"'",
    "extends upwards": b"extends = '../presets/../../etc/passwd'",
    "more clients than samples last for": b"num_clients = 200\n[data]\npartition = 'pathological'\n"
    b"classes_per_client = 10",
    "a network without its images": b"num_clients = 12\n[model]\nname = 'resnet18'\nnorm = 'batch'\n"
    b"[data]\ntrain_per_client = 33\n[training]\nbatch_size = 32",
}


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_a_hostile_file_is_a_sentence(here, text):
    (here / "hostile.toml").write_bytes(text)
    refused("hostile.toml")


def test_files_that_extend_each_other_are_a_sentence(here):
    (here / "a.toml").write_text("extends = 'b.toml'")
    (here / "b.toml").write_text("extends = 'a.toml'")
    assert "extends: expected a file that does not lead back here, got a.toml -> b.toml -> a.toml" in refused(
        "a.toml"
    )


@pytest.mark.parametrize(
    "source", ["", ".", "/", "..", "/dev/null", "/dev/zero", "no.toml", "x" * 5000, "de mo", "ä"]
)
def test_a_hostile_source_is_a_sentence(source):
    refused(source)


def test_a_pipe_is_no_file(here):
    """It would wait for a writer for ever."""
    os.mkfifo(here / "pipe.toml")
    assert "which is no regular file" in refused("pipe.toml")


EDGES = {
    "text": (b"one two\nthree", "edges.txt"),
    "binary": (bytes(range(256)), "edges.txt"),
    "three columns": (b"0 1 2\n1 2 3", "edges.txt"),
    "of nobody": (b"0 99", "edges.txt"),
    "of itself": (b"1 1", "edges.txt"),
    "negative": (b"-1 2", "edges.txt"),
    "nan": (b"nan 2", "edges.txt"),
    "infinite": (b"0 inf", "edges.txt"),
    "empty": (b"", "edges.txt"),
    "no npy": (b"0 1", "edges.npy"),
    "no npz": (b"0 1", "edges.npz"),
    "half an npz": (b"PK\x03\x04 and no more", "edges.npz"),
}


@pytest.mark.parametrize(("text", "name"), EDGES.values(), ids=EDGES)
def test_hostile_edges_are_a_sentence(here, text, name):
    (here / name).write_bytes(text)
    refused("demo", "--set", "topology.kind=edges", "--set", f"topology.edges={name}")


@pytest.mark.parametrize("edges", ["missing.txt", ".", "/dev/null", "edges.npz"])
def test_edges_that_are_no_file_are_a_sentence(here, edges):
    np.savez(here / "edges.npz", x=np.zeros(3))
    refused("demo", "--set", "topology.kind=edges", "--set", f"topology.edges={edges}")


DATA = {
    "no images": {"x": np.zeros((20, 0, 4), np.uint8), "y": np.arange(20) % 2},
    "floats": {"x": np.zeros((20, 4, 4)), "y": np.arange(20) % 2},
    "objects": {"x": np.array([{}], dtype=object), "y": np.zeros(1, int)},
    "gaps": {"x": np.zeros((20, 8, 8), np.uint8), "y": np.full(20, 65535)},
    "one image": {"x": np.zeros((1, 8, 8), np.uint8), "y": np.zeros(1, int)},
    "few images": {"x": np.zeros((10, 8, 8), np.uint8), "y": np.arange(10) % 2},
    "one pixel": {"x": np.zeros((200, 1, 1), np.uint8), "y": np.arange(200) % 2},
}


@pytest.mark.parametrize("arrays", DATA.values(), ids=DATA)
def test_hostile_data_are_a_sentence(here, arrays):
    np.savez(here / "hostile.npz", **arrays)
    refused("demo", "--set", "data.name=hostile.npz")


@pytest.mark.parametrize("name", ["missing", "missing.npz", "a/b/c.npz", "..", "/", "/dev/zero", "x" * 5000])
def test_data_that_are_not_there_are_a_sentence(name):
    refused("demo", "--set", f"data.name={name}", code=1)
