"""`sparsefl tune`: what it writes, keeps and refuses. The clock is made up."""

from functools import partial

import pytest
from typer.testing import CliRunner

from fl.cli import tune as command
from fl.cli.app import app
from sparse_engine.choice import clock, files, plan
from sparse_engine.choice.plan import Plan


@pytest.fixture
def tuned(monkeypatch, tmp_path):
    """A function: the output and the exit code of `sparsefl tune` with these arguments."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(command.tune, "constants", partial(command.tune.constants, most=20))

    def seconds(conv, direction, image, kernels, repeats=3):
        size = 1e3 + conv.shape.numel() * image[0] * image[1] * image[2]
        return {kernel: (1 if kernel == "dense" else 2) * 1e-9 * size for kernel in kernels}

    monkeypatch.setattr(clock, "seconds", seconds)
    monkeypatch.setattr(clock, "drawn", lambda conv: conv)  # nobody runs it

    def run(*arguments):
        done = CliRunner().invoke(app, ["tune", *arguments])
        return done.output, done.exit_code

    return run


def test_constants_are_written_to_this_machines_file(tuned):
    text, code = tuned("--quick")
    assert code == 0, text
    assert "how often a kernel was the fastest" in text and "kept aside" in text and "plan-" in text
    made = plan.from_file(files.machine_file())
    assert made.rule.is_tuned and made.measured == {}
    assert plan.from_environment().identity() == made.identity()


def test_a_network_s_layers_join_what_is_there(tuned, tmp_path):
    file = tmp_path / "mine.json"
    files.write(file, Plan({"forward x": "sparse"}).text())
    text, code = tuned("--network", "lenet5", "--batch", "4", "--density", "0.4", "--out", str(file))
    assert code == 0, text
    assert "choices differ from the rule's" in text and f"SPARSE_PLAN={file}" in text.replace("\n", "")
    made = plan.from_file(file)
    assert made.measured.pop("forward x") == "sparse"
    assert set(made.measured.values()) == {"dense"}
    for size in (4, 16):  # 16: a program's lanes
        assert any(f"image 28x28x{size} " in key for key in made.measured)
    assert not files.machine_file().exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--network", "none"], "--network: expected a network out of"),
        (
            ["--network", "lenet5", "--shape", "28"],
            "expected channels, height and width as 3x32x32, got '28'",
        ),
        (["--shape", "3x8x8"], "expected --shape with --network"),
        (["--batch", "0"], "--batch: expected sizes from 1, got 0"),
        (["--density", "1.5"], "--density: expected shares above 0 and up to 1, got 1.5"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_measured(tuned, arguments, said):
    text, code = tuned(*arguments)
    assert code == 2 and said in " ".join(text.split())
    assert not files.machine_file().exists()
