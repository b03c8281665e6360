"""Every Triton kernel, in every configuration that can be launched, compiles for the cards of `aot.ARCHS`:
without spills, and within a budget of registers."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sparsefl.kernels import aot, registry, tile

ROOT = Path(aot.__file__).parent
SOURCES = [ROOT / "tile.py", *ROOT.glob("*/_triton.py")]

# Registers per thread. A multiprocessor has 65536: 64 leave room for 32 warps, 112 for 18.
BUDGET = 64
LARGER = {
    "_average_kernel": 112,
    "_backward_kernel": 96,
    "_csr_kernel": 72,
    "_histogram_kernel": 80,
    "_index_kernel": 80,
    "_mean_kernel": 96,
    "_opened_kernel": 80,
    "_sgd_kernel": 96,
}


@pytest.fixture(scope="module")
def every_row() -> list[dict]:
    """In a process of its own: this one may have Triton's interpreter on, and that is decided at import."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "sparsefl.kernels.aot", "--json", "--arch", *map(str, aot.ARCHS)]
    done = subprocess.run(command, env=env, cwd=ROOT.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def rows(every_row) -> list[dict]:
    """Those of the card that users have most."""
    return [row for row in every_row if row["arch"] == aot.ARCH]


def test_no_spills(every_row, record_property):
    print("\n" + aot.text(every_row))  # pytest -s
    record_property("aot", every_row)
    assert [row for row in every_row if row["spills"]] == []


def test_every_card_gets_every_configuration(every_row, rows):
    assert sorted({row["arch"] for row in every_row}) == sorted(aot.ARCHS)
    assert len(every_row) == len(rows) * len(aot.ARCHS)


def test_registers_stay_within_their_budget(every_row):
    most = {
        kernel: max(r["registers"] for r in every_row if r["kernel"] == kernel)
        for kernel in kernels(every_row)
    }
    assert {kernel: n for kernel, n in most.items() if n > LARGER.get(kernel, BUDGET)} == {}
    assert LARGER.keys() <= most.keys(), "a budget for a kernel that is gone"


def kernels(rows):
    return {row["kernel"] for row in rows}


def test_every_configuration_is_compiled(rows):
    wanted = [(config.op, config.kernel.__name__) for config in aot.configs()]
    assert sorted(wanted) == sorted((row["op"], row["kernel"]) for row in rows)


def test_every_kernel_has_a_configuration(rows):
    sources = "\n".join(path.read_text() for path in SOURCES)
    found = re.findall(r"^@(?:tile\.)?kernel\ndef (\w+)", sources, re.MULTILINE)
    assert set(found) == {row["kernel"] for row in rows}


COMPOSED = {
    "grow",
    "mean",
    "drift_of_runs",
    "group_dense_gradient",
}  # made of another operation's kernels (select, layer by layer), or of torch's


def test_every_operation_has_a_kernel(rows):
    aot.configs()
    registered = {op for op, backend in registry._implementations if backend == "triton"}
    assert registered - COMPOSED == {row["op"] for row in rows}


def test_only_configurations_are_launched():
    launches = [path.name for path in SOURCES if re.search(r"kernel\[", path.read_text())]
    assert launches == ["tile.py"]


def test_streams_load_128_bits(rows):
    streams = [row for row in rows if "ALIGNED=True" in row["config"]]
    assert streams and all(row["vector_loads"] or row["vector_stores"] for row in streams)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="about the interpreter")
def test_refuses_the_interpreter():
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET unset"):
        aot.table()


def test_launch_refuses_other_types():
    with pytest.raises(AssertionError, match="is compiled for"):
        tile.CONFIGS[0].launch(1, 1.0)
