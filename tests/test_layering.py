"""Imports point one way: kernels <- sparse_engine <- fl, and bench sees all. setup.py finds every package."""

import ast
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "kernels": {"kernels"},
    "sparse_engine": {"kernels", "sparse_engine"},
    "fl": {"sparse_engine", "fl"},
    "bench": {"kernels", "sparse_engine", "fl", "bench"},
}
LAZY = {("fl/cli.py", "bench")}  # `sparsefl bench` hands over; only inside a function


def sources(package):
    return sorted((ROOT / package).rglob("*.py"))


def imports(tree, lazy=False):
    """(imported top-level package, inside a function?) of everything below `tree`."""
    for node in ast.iter_child_nodes(tree):
        inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the layer"
            yield node.module.split(".")[0], inside
        elif (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", getattr(node.func, "id", "")) in ("import_module", "__import__")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield node.args[0].value.split(".")[0], inside
        yield from imports(node, inside)


def violations(path, package, source):
    for name, lazy in imports(ast.parse(source)):
        if name not in MAY_IMPORT or name in MAY_IMPORT[package]:
            continue
        if not (lazy and (path, name) in LAZY):
            yield f"{path} imports {name}"


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_point_one_way(package):
    assert sources(package)
    for path in sources(package):
        assert not list(violations(path.relative_to(ROOT).as_posix(), package, path.read_text()))


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("kernels/x.py", "import sparse_engine"),
        ("kernels/x.py", "def f():\n    from fl.cli import app"),
        ("sparse_engine/x.py", "from bench import ops"),
        ("sparse_engine/x.py", "import importlib\nimportlib.import_module('fl.cli')"),
        ("fl/x.py", "from kernels.pqi import pqi"),
        ("fl/x.py", "def f():\n    import bench"),
        ("fl/cli.py", "import bench"),
    ],
)
def test_the_walk_sees_a_violation(path, source):
    assert list(violations(path, path.split("/")[0], source))


def test_the_exception_is_lazy_only():
    assert not list(violations("fl/cli.py", "fl", "def f():\n    from bench.__main__ import main"))


def test_setup_finds_every_folder_with_sources(monkeypatch):
    given = {}
    monkeypatch.setattr("setuptools.setup", lambda **arguments: given.update(arguments))
    monkeypatch.chdir(ROOT)
    runpy.run_path(str(ROOT / "setup.py"))
    folders = {path.parent.relative_to(ROOT) for package in MAY_IMPORT for path in sources(package)}
    assert set(given["packages"]) == {folder.as_posix().replace("/", ".") for folder in folders}
