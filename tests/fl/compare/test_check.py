"""Damaged directories of comparisons: named in a sentence, in no mean, and the others go on."""

import json
import os
import random
import shutil

import comparisons
import pytest
from typer.testing import CliRunner

from fl import config
from fl.cli.app import app
from fl.compare import check, results
from fl.compare import table as compare_table

A, B = [[0.2, 0.6, 0.5], [0.3, 0.7, 0.8]], [[0.1, 0.45, 0.4]]
QUICK = ("--set", "num_rounds=2", "--set", "training.epochs=0", "--workers", 1)


def sparsefl(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args], prog_name="sparsefl")


@pytest.fixture
def path(tmp_path):
    """Two seeds of da_dpfl, one of b, finished."""
    comparisons.make(tmp_path / "all", {"da_dpfl": A, "b": B})
    return tmp_path / "all"


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def write(file, records):
    file.write_text("".join(json.dumps(record) + "\n" for record in records))


def of_the_run(path, run="da_dpfl-seed-0"):
    """What the comparison says of one run."""
    told = results.read(path).to_json()
    return next(one for one in told["runs"] if one["folder"] == run)


def damaged(path, message):
    """Said by name and left out of the means; the other runs stay as they are."""
    found = of_the_run(path)
    assert found["state"] == "damaged" and found["figures"] is None, found
    assert message in found["message"] and "resume the comparison to run it again" in found["message"]
    told = results.read(path).to_json()
    ours, other = (told["algorithms"][name] for name in ("da_dpfl", "b"))
    assert not told["complete"] and other["finished"] == 1
    assert all(run["state"] == "finished" for run in told["runs"] if run["name"] == "b")
    left = [run["figures"]["accuracy_best"] for run in told["runs"] if run["figures"] and run["name"] != "b"]
    assert (ours["figures"] or {}).get("accuracy_best", {}).get("mean") == (
        sum(left) / len(left) if left else None
    )


def said(path, message):
    """The same on the command line, with exit code 1 and in the files of the comparison."""
    damaged(path, message)
    for command in (["report", path], ["compare", "--resume", path]):
        done = sparsefl(*command)
        assert done.exit_code == 1 and "Traceback" not in done.output, done.output
        assert "da_dpfl, seed 0: damaged: " in done.output and message in done.output
    assert "<td>damaged</td>" in (path / "report.html").read_text()
    assert message in (path / "comparison.json").read_text()
    assert f"da_dpfl, seed 0: damaged: {message}" in (path / "comparison.md").read_text()


def test_nothing_is_wrong_with_a_run_that_nobody_touched(path):
    comparison = results.read(path)
    assert comparison.complete and not comparison.damaged
    assert sparsefl("report", path).exit_code == 0


def test_swapped_directories_of_seeds_are_seen(path):
    first, second = (path / f"da_dpfl-seed-{seed}" for seed in (0, 1))
    first.rename(path / "x")
    second.rename(first)
    (path / "x").rename(second)
    said(path, "expected seed = 0 in config.toml, as the plan has it, got 1: it is another run")
    assert of_the_run(path, "da_dpfl-seed-1")["state"] == "damaged"


def test_a_run_of_another_configuration_is_seen(path):
    cfg = config.load(path / "da_dpfl-seed-0" / "config.toml", ["da_dpfl.delta_v=0.25"])
    (path / "da_dpfl-seed-0" / "config.toml").write_text(config.dumps(cfg))
    damaged(path, "expected da_dpfl.delta_v = 0.5 in config.toml, as the plan has it, got 0.25")


def test_a_lost_last_line_is_seen(path):
    file = path / "da_dpfl-seed-0" / "metrics.jsonl"
    write(file, lines(file)[:-1])
    said(path, "expected 3 rounds of a finished run in metrics.jsonl, got 2")


@pytest.mark.parametrize("how", ["empty", "gone"])
def test_lost_lines_are_seen(path, how):
    file = path / "da_dpfl-seed-0" / "metrics.jsonl"
    file.unlink()
    if how == "empty":
        file.touch()
    said(path, "expected 3 rounds of a finished run in metrics.jsonl, got 0")


def test_lines_of_another_run_are_seen(path):
    shutil.copy(path / "da_dpfl-seed-1" / "metrics.jsonl", path / "da_dpfl-seed-0" / "metrics.jsonl")
    damaged(path, "in summary.json, as metrics.jsonl has it, got")


def test_a_changed_digit_is_seen(path):
    file = path / "da_dpfl-seed-0" / "metrics.jsonl"
    first, *others = lines(file)
    write(file, [first | {"accuracy_mean": 0.9}, *others])
    damaged(path, "expected accuracy_best = 0.9 in summary.json, as metrics.jsonl has it, got 0.6")


def test_rounds_in_another_order_are_seen(path):
    file = path / "da_dpfl-seed-0" / "metrics.jsonl"
    write(file, lines(file)[::-1])
    damaged(path, "expected round 0 in line 1 of metrics.jsonl, got 2")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("bytes_total", "many", "expected a number as bytes_total of round 1 in metrics.jsonl, got 'many'"),
        ("flop_round", None, "expected a number as flop_round"),
        ("wall_s", float("nan"), "line 2: expected JSON, got NaN"),
        ("density_mean", True, "expected a number as density_mean"),
        ("accuracy_mean", "x", "expected a number as accuracy_mean"),
        ("sim_time_s", 1e200, "expected a number as sim_time_s"),
        ("round", "1", "expected round 1 in line 2"),
    ],
)
def test_values_that_are_no_figures_are_seen(path, key, value, message):
    file = path / "da_dpfl-seed-0" / "metrics.jsonl"
    first, second, third = lines(file)
    write(file, [first, second | {key: value}, third])
    damaged(path, message)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("summary.json", "{}", "summary.json: environment: expected versions and hardware"),
        ("summary.json", "null", "expected an object of JSON in summary.json, got None"),
        ("summary.json", "{", "expected JSON in"),
        ("metrics.jsonl", "[1]\n", "line 1: expected an object of JSON, got list of 1"),
        ("metrics.jsonl", "no\n", "line 1: expected JSON, got"),
        ("config.toml", "seed = ", "expected TOML"),
        ("config.toml", "sed = 1", "expected a known key"),
        ("partition.json", "[]", "expected names of classes and counts of samples"),
        ("partition.json", '{"classes": 1}', "expected names of classes and counts of samples"),
    ],
)
def test_files_that_are_something_else_are_seen(path, name, text, message):
    (path / "da_dpfl-seed-0" / name).write_text(text)
    damaged(path, message)


def test_a_lost_configuration_is_seen(path):
    (path / "da_dpfl-seed-0" / "config.toml").unlink()
    damaged(path, "expected config.toml beside summary.json, got none")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["plan.json", "da_dpfl-seed-0/failed.txt", "da_dpfl-seed-0/metrics.jsonl"])
@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_what_is_no_file_is_neither_followed_nor_waited_for(path, name, kind, tmp_path):
    (tmp_path / "elsewhere").write_text("secret")
    (path / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path / name)
    elif kind == "link":
        (path / name).symlink_to(tmp_path / "elsewhere")
    else:
        (path / name).mkdir()
    done = sparsefl("report", path)
    assert f"expected a file, got a {kind}" in done.output or name.endswith("failed.txt"), done.output
    assert done.exit_code == (0 if name.endswith("failed.txt") else 1) and "Traceback" not in done.output
    assert "secret" not in done.output and (tmp_path / "elsewhere").read_text() == "secret"


def test_rounds_of_an_unfinished_run_are_checked_too(tmp_path):
    comparisons.make(tmp_path / "all", {"a": [[0.1, 0.2, 0.3]], "b": [[0.4, 0.5]]})
    assert of_the_run(tmp_path / "all", "b-seed-0")["state"] == "unfinished"
    file = tmp_path / "all" / "b-seed-0" / "metrics.jsonl"
    write(file, lines(file)[1:])
    found = of_the_run(tmp_path / "all", "b-seed-0")
    assert found["state"] == "damaged" and "expected round 0 in line 1" in found["message"]


def test_a_summary_of_another_python_is_the_same(path):
    """Its sums may differ in the last digit."""
    file = path / "da_dpfl-seed-0" / "summary.json"
    told = json.loads(file.read_text())
    file.write_text(json.dumps(told | {"sim_time_s": told["sim_time_s"] * (1 + 1e-14)}))
    assert results.read(path).complete


def test_one_damaged_run_does_not_stop_those_that_are_left(tiny_file, tmp_path):
    """Neither one that is finished nor one that would go on."""
    path = tmp_path / "all"
    names = "da_dpfl,b=da_dpfl"
    assert sparsefl("compare", tiny_file, "--algorithms", names, *QUICK, "--out", path).exit_code == 0
    (path / "b-seed-0" / "summary.json").unlink()
    (path / "b-seed-0" / "config.toml").write_text(config.dumps(config.load(tiny_file, ["seed=9"])))
    (path / "da_dpfl-seed-0" / "metrics.jsonl").unlink()
    before = {file: file.read_bytes() for file in (path / "b-seed-0").rglob("*") if file.is_file()}
    done = sparsefl("compare", "--resume", path, "--algorithms", "c=da_dpfl", "--workers", 1)
    assert done.exit_code == 1, done.output
    states = {
        run["folder"]: run["state"] for run in json.loads((path / "comparison.json").read_text())["runs"]
    }
    assert states == {"da_dpfl-seed-0": "damaged", "b-seed-0": "damaged", "c-seed-0": "finished"}
    assert "b, seed 0 failed: damaged: expected " in done.output
    assert "3 runs, 1 of them damaged, in" in done.output  # before hours of work
    assert "run 1/3  da_dpfl, seed 0 is damaged: expected 2 rounds" in done.output
    assert before == {file: file.read_bytes() for file in (path / "b-seed-0").rglob("*") if file.is_file()}
    shutil.rmtree(path / "b-seed-0")  # as the note says
    shutil.rmtree(path / "da_dpfl-seed-0")
    assert sparsefl("compare", "--resume", path, "--workers", 1).exit_code == 0


def test_a_directory_that_its_run_refuses_does_not_stop_the_others(tiny_file, tmp_path):
    """An unfinished run whose lines were cut."""
    path = tmp_path / "all"
    assert (
        sparsefl("compare", tiny_file, "--algorithms", "da_dpfl,b=da_dpfl", *QUICK, "--out", path).exit_code
        == 0
    )
    (path / "da_dpfl-seed-0" / "summary.json").unlink()
    (path / "da_dpfl-seed-0" / "metrics.jsonl").write_text("")
    (path / "b-seed-0" / "summary.json").unlink()
    done = sparsefl("compare", "--resume", path, "--workers", 1)
    assert done.exit_code == 1 and "da_dpfl, seed 0 failed: expected at least" in done.output, done.output
    states = {
        run["folder"]: run["state"] for run in json.loads((path / "comparison.json").read_text())["runs"]
    }
    assert states == {"da_dpfl-seed-0": "failed", "b-seed-0": "finished"}


NASTY = [
    "",
    "null",
    "[]",
    "{}",
    "0",
    "NaN",
    '"x"',
    "[[[[",
    "\x00",
    "{}\n{}\n",
    '{"round": 0}\n',
    "[" * 10**5 + "\n",
]


def _mutated(data: bytes, rng: random.Random) -> bytes:
    """A line lost or doubled, a byte changed, the end cut off, a value replaced, or something else."""
    rows = data.splitlines(keepends=True) or [b""]
    row, byte = rng.randrange(len(rows)), rng.randrange(max(len(data), 1))
    kind = rng.randrange(6)
    if kind == 0:
        return b"".join(rows[:row] + rows[row + 1 :])
    if kind == 1:
        return b"".join(rows[: row + 1] + rows[row:])
    if kind == 2:
        return data[:byte] + bytes([rng.randrange(256)]) + data[byte + 1 :]
    if kind == 3:
        return data[:byte]
    if kind == 4:
        words = [b"null", b"-1", b"1e999", b"NaN", b'"x"', b"[]", b"{}", b"true", b"99999999999999999999"]
        head, colon, tail = rows[row].partition(rng.choice([b": ", b" = "]))
        end = min((i for i in map(tail.find, (b",", b"\n")) if i >= 0), default=len(tail))
        return b"".join([*rows[:row], head + colon + rng.choice(words) + tail[end:], *rows[row + 1 :]])
    return rng.choice(NASTY).encode()


def test_whatever_the_files_hold_there_is_a_sentence(tmp_path):
    """Mutations of every file of a comparison: never anything but a report or a sentence."""
    from fl.errors import Expected

    comparisons.make(tmp_path / "all", {"da_dpfl": A, "b": B, "c": [[0.1]]})
    files = [file for file in sorted((tmp_path / "all").rglob("*")) if file.is_file()]
    rng, seen = random.Random(20240415), {"refused": 0, "damaged": 0, "same": 0}
    for _ in range(300):
        file = rng.choice(files)
        data = file.read_bytes()
        file.write_bytes(_mutated(data, rng))
        try:
            comparison = results.read(tmp_path / "all")
            told = comparison.to_json()
            json.dumps(told, allow_nan=False)
            compare_table.markdown(told)
            seen["damaged" if comparison.damaged else "same"] += 1
        except Expected as refused:
            assert str(refused)
            seen["refused"] += 1
        file.write_bytes(data)
    assert min(seen.values()) > 10, seen
    assert not check.examined(*_first(tmp_path / "all"))[1]


def _first(path):
    plan = results.read(path).plan
    return plan, plan.runs[0], plan.runs[0].below(path)
