"""Every command of `sparsefl` and `sparsefl bench`: help for each option, a sentence for each wrong use."""

import pytest
import typer
from typer.testing import CliRunner

from fl.cli.app import app
from fl.cli.commands import _repeated, near_command
from sparsefl.bench import authors, cases, layers, models, theory
from sparsefl.bench import cli as bench

COMMANDS = [
    *((name,) for name in typer.main.get_command(app).commands),
    *(("bench", name) for name in typer.main.get_command(bench.app).commands),
]


def sparsefl(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args], prog_name="sparsefl")


def said(done):
    """What was printed, without typer's frame."""
    return " ".join(done.output.replace("│", " ").split())


def command(path):
    found = typer.main.get_command(bench.app if path[0] == "bench" and len(path) > 1 else app)
    return found.commands[path[-1]]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_explains_the_command_and_every_option(path):
    done = sparsefl(*path, "--help")
    assert done.exit_code == 0 and "Usage: sparsefl" in done.output and "Traceback" not in done.output
    assert command(path).help
    for option in command(path).params:
        assert option.help, f"{option.name} of {path} has no help"


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_an_unknown_option_is_one_sentence(path):
    done = sparsefl(*path, "--xyzzy")
    assert done.exit_code == 2 and "No such option: --xyzzy" in said(done)
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("run", "expected either a configuration (a preset or a file) or --resume DIR"),
        ("run demo --workers x", "Invalid value for '--workers'"),
        ("demo --workers 0", "--workers: expected at least 1, got 0"),
        ("demo --resume x", "expected either a configuration"),
        ("run demo --set alpha", "expected a change as key=value"),
        ("compare demo", "expected --algorithms"),
        ("compare demo --algorithms nobody", "got 'nobody'"),
        (
            "compare demo --algorithms beer --target 2",
            "--target: expected an accuracy above 0, up to 1, got 2",
        ),
        (
            "compare demo --algorithms beer --plot x.pdf",
            "--plot: expected a name that ends in .html, .png or .svg",
        ),
        ("list xyzzy", "expected part of the name of a preset or algorithm, got 'xyzzy'"),
        ("simulate --degree 100", "expected a degree from 1 to 99 (all others), got 100"),
        ("bench modles", "got 'modles'; did you mean 'models'?"),
        ("bench ops --density 2", "--density: expected numbers above 0, up to 1, got '2'"),
        ("bench ops --density 0.5,x", "--density: expected numbers above 0, up to 1, got 'x'"),
        ("bench ops --density 0.5 nan", "--density: expected numbers above 0, up to 1, got 'nan'"),
        ("bench ops --op sort", "--op: expected names out of ['masked_sgd_'"),
        ("bench ops --threads 0", "Invalid value for '--threads'"),
        ("bench layers --family conv9x9", "--family: expected names out of ['conv3x3'"),
        ("bench layers --sparsity 1", "--sparsity: expected numbers from 0 to below 1, got '1'"),
        (
            "bench models --model gpt",
            "--model: expected names out of ['resnet18', 'vgg11', 'alexnet', 'mobilenet',",
        ),
        ("bench models --batch 0", "--batch: expected whole numbers from 1 on, got '0'"),
        ("bench models --threads 2 --cpu-time", "--cpu-time: expected --threads 1"),
        ("bench clients --network gpt", "--network: expected names out of ['mlp', 'lenet5'"),
        ("bench rounds --preset dmeo", "did you mean 'demo'?"),
        ("bench rounds --seeds 0", "Invalid value for '--seeds'"),
        ("bench cost --neighbours 1", "expected M > 1"),
        ("bench cost --plot x.pdf", "expected a name that ends in .html, .png or .svg, got x.pdf"),
        ("bench wire --density -1", "--density: expected numbers above 0, up to 1, got '-1'"),
        ("bench authors /nowhere", "expected a checkout of EricLoong/da-dpfl, got /nowhere"),
        ("bench table /nowhere/x.json", "expected a result file, got /nowhere/x.json"),
        ("bench table setup.py", "setup.py: expected JSON"),
        ("bench table strange.json", "strange.json: expected the result of a benchmark or a comparison"),
        ("bench join out.json comparison.json", "expected results of one benchmark, got a comparison"),
        ("bench join out.json /nowhere/x.json", "expected a result file, got /nowhere/x.json"),
    ],
)
def test_wrong_values_are_one_sentence(arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = {"setup.py": "no result", "strange.json": '{"meta": {}}', "comparison.json": '{"algorithms": []}'}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    done = sparsefl(*arguments.split())
    assert done.exit_code == 2 and sentence in said(done), done.output
    assert "Traceback" not in done.output
    assert {path.name for path in tmp_path.iterdir()} == set(texts)


def test_a_list_may_be_written_in_three_ways(monkeypatch):
    given = []
    monkeypatch.setattr("sparsefl.bench.models.run", lambda *args, **how: given.append(args) or iter(()))
    monkeypatch.setattr("sparsefl.bench.running.finish", lambda *args, **how: 0)
    for form in ("--density 0.5 0.2", "--density 0.5,0.2", "--density 0.5 --density=0.2"):
        assert sparsefl("bench", "models", *form.split(), "--batch", "32", "--model", "vgg11").exit_code == 0
    assert given == [(("vgg11",), (32,), (0.5, 0.2))] * 3


@pytest.mark.parametrize(
    ("name", "option", "values"),
    [
        ("ops", "density", cases.DENSITIES),
        ("layers", "batch", layers.BATCHES),
        ("layers", "sparsity", layers.SPARSITIES),
        ("models", "model", models.MODELS),
        ("models", "batch", models.BATCHES),
        ("models", "density", models.DENSITIES),
        ("wire", "density", models.DENSITIES),
        ("authors", "density", authors.GOALS),
        ("cost", "neighbours", theory.NEIGHBOURS),
    ],
)
def test_help_names_the_defaults_that_benchmarks_have(name, option, values):
    (found,) = [one for one in command(("bench", name)).params if one.name == option]
    assert found.help.endswith(f"default: {','.join(map(str, values))}")


def test_only_repeatable_options_take_several_values():
    args = ["PATH", "--a", "1", "2", "--b", "3", "4", "--a=5", "6"]
    assert [*_repeated(args, {"--a"})] == ["PATH", "--a", "1", "--a", "2", "--b", "3", "4", "--a=5", "6"]


def test_near_commands():
    known = ["run", "list", "bench"]
    assert near_command("benhc", known) == "; did you mean 'bench'?"
    assert near_command("train", known) == "; did you mean 'run'?" and near_command("train", ["list"]) == ""
    assert near_command("xyzzy", known) == ""
