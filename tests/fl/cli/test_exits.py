"""fl.cli.exits: wrong environment variables and errors of the engine are sentences, in every command."""

import io

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import sparse_engine as se
from fl.cli.app import app
from fl.cli.exits import guarded
from fl.errors import ConfigError, Interrupted
from sparse_engine.choice import plan
from sparsefl.kernels import native

COMMANDS = {
    "run": ["run", "demo"],
    "compare": ["compare", "demo", "--algorithms", "dispfl"],
    "list": ["list"],
    "demo": ["demo"],
    "doctor": ["doctor"],
    "tour": ["tour"],
    "simulate": ["simulate"],
    "bench": ["bench", "ops", "--quick"],
}
WRONG = {
    "SPARSE_THREADS": "0",
    "SPARSE_ISA": "foo",
    "SPARSE_BACKEND": "foo",
    "SPARSE_PLAN": "foo",
}


def sparsefl(*args):
    return CliRunner().invoke(app, args, prog_name="sparsefl")


def work_that_raises(error, again=lambda: None):
    """Exit code and output of a command that ends with this error."""
    shown = io.StringIO()

    def work():
        raise error

    return guarded(Console(file=shown, width=80), work, again), shown.getvalue()


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("variable", WRONG)
def test_a_wrong_environment_variable_is_a_sentence_in_every_command(
    command, variable, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "_defaults", {})
    monkeypatch.setenv(variable, WRONG[variable])
    done = sparsefl(*COMMANDS[command])
    assert done.exit_code == 2, done.output
    lines = done.output.splitlines()
    assert len(lines) == 1 and "expected" in lines[0] and variable in lines[0] and WRONG[variable] in lines[0]
    assert not [*tmp_path.iterdir()]


def test_a_backend_that_cannot_run_here_is_a_sentence(monkeypatch):
    monkeypatch.setenv("SPARSE_BACKEND", "triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    done = sparsefl("list")
    assert done.exit_code == 2 and "SPARSE_BACKEND=triton takes CUDA tensors" in done.output


def test_a_broken_file_of_measurements_is_a_sentence_that_names_it(monkeypatch, tmp_path):
    monkeypatch.setattr(plan, "_defaults", {})
    monkeypatch.setenv("SPARSE_PLAN", str(tmp_path / "plan.json"))
    (tmp_path / "plan.json").write_bytes(b"\xff\xfe{")
    done = sparsefl("list")
    assert done.exit_code == 2 and "plan.json" in done.output and "SPARSE_PLAN" in done.output


def test_kernels_that_are_not_built_are_a_sentence(monkeypatch, tiny_file, tmp_path):
    monkeypatch.setattr(native, "_extension", None)
    done = sparsefl("run", str(tiny_file), "--out", str(tmp_path / "out"), "--workers", "1")
    assert done.exit_code == 1 and "the native kernels are not built: run" in done.output
    assert "Traceback" not in done.output and isinstance(done.exception, SystemExit)


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (se.SettingError("expected this, got that"), 2, "expected this, got that"),
        (se.NotBuilt("not built"), 1, "not built"),
        (se.NoKernel("there is no such kernel"), 1, "there is no such kernel"),
        (MemoryError("expected 5 bytes of memory for x, got none"), 1, "out of memory: expected 5 bytes"),
        (RuntimeError("std::bad_alloc"), 1, "out of memory: expected more memory, got none"),
    ],
)
def test_errors_of_the_engine_are_sentences(error, code, sentence):
    found, shown = work_that_raises(error)
    assert found == code and shown.startswith(sentence)


def test_memory_that_torch_does_not_get_is_a_sentence():
    with pytest.raises(RuntimeError) as error:
        torch.empty(1 << 46)
    sentence = f"out of memory: expected {1 << 48} bytes of memory for a tensor, got none\n"
    assert work_that_raises(error.value) == (1, sentence)


@pytest.mark.parametrize("error", [ValueError("a mistake of ours"), RuntimeError("another"), KeyError("k")])
def test_mistakes_of_ours_keep_their_traceback(error):
    with pytest.raises(type(error)):
        work_that_raises(error)


def test_what_users_gave_is_neither_markup_nor_an_emoji():
    text = "name: expected something, got x[/red] :smile: " + "long " * 20
    assert work_that_raises(ConfigError(text)) == (2, f"{text}\n")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Interrupted()])
def test_ctrl_c_before_anything_was_begun_names_no_directory(error):
    assert work_that_raises(error) == (130, "stopped\n")
    command = "sparsefl run --resume 'a b'"
    assert work_that_raises(error, lambda: command) == (130, f"stopped; continue with: {command}\n")
