"""Imports point one way: kernels <- sparse_engine <- fl, bench sees all; and inside fl as ORDER has it."""

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
ORDER = (  # a part of fl imports those before it, and itself; those of one line do not import each other
    ("errors", "keys", "rng", "units"),
    ("config",),
    ("data", "world"),
    ("train",),
    ("clients",),
    ("algorithms",),
    ("run",),
    ("report",),
    ("compare", "simulate"),
    ("cli",),
    ("__init__", "__main__"),
)
RANK = {name: rank for rank, line in enumerate(ORDER) for name in line}
LAZY = {  # only inside a function
    ("fl/cli/app.py", "bench"),  # `sparsefl bench` hands over
    ("fl/cli/energy.py", "bench"),  # so does `sparsefl energy bench`
    ("fl/run/result.py", "fl.report"),  # Result.report() writes one
    ("fl/run/given.py", "fl.cli"),  # progress=True shows what the command line does
    ("fl/config/__init__.py", "fl.algorithms"),  # algorithms bring sections of their own
}


def sources(package):
    return sorted((ROOT / package).rglob("*.py"))


def imports(tree, lazy=False):
    """(imported module, inside a function?) of everything below `tree`."""
    for node in ast.iter_child_nodes(tree):
        inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(node, ast.Import):
            yield from ((alias.name, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the layer"
            yield from ((f"{node.module}.{alias.name}", inside) for alias in node.names)
        elif (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", getattr(node.func, "id", "")) in ("import_module", "__import__")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield node.args[0].value, inside
        yield from imports(node, inside)


def violations(path, source):
    """What the source of `path` imports although it must not."""
    package, part = path.split("/")[0], path.split("/")[1].removesuffix(".py")
    for name, lazy in imports(ast.parse(source)):
        parts = name.split(".")
        if parts[0] in ("kernels", "bench"):
            yield f"{path} imports {name}, which is another's name: sparsefl.{name}"
            continue
        layer = (parts[1] if len(parts) > 1 else "") if parts[0] == "sparsefl" else parts[0]
        if layer in MAY_IMPORT and layer not in MAY_IMPORT[package]:
            if not (lazy and (path, layer) in LAZY):
                yield f"{path} imports {name}"
        elif package == layer == "fl" and len(parts) > 1 and parts[1] != part:
            allowed = RANK[parts[1]] < RANK[part]
            if not allowed and not (lazy and (path, f"fl.{parts[1]}") in LAZY):
                yield f"{path} imports {name}"


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_point_one_way(package):
    assert sources(package)
    found = [
        one for p in sources(package) for one in violations(p.relative_to(ROOT).as_posix(), p.read_text())
    ]
    assert not found


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("kernels/x.py", "import sparse_engine"),
        ("kernels/x.py", "def f():\n    from fl.cli import app"),
        ("kernels/x.py", "from kernels import layout"),
        ("sparse_engine/x.py", "from sparsefl.bench import ops"),
        ("sparse_engine/x.py", "from sparsefl import bench"),
        ("sparse_engine/x.py", "import importlib\nimportlib.import_module('fl.cli.app')"),
        ("fl/run/x.py", "from sparsefl.kernels.pqi import pqi"),
        ("fl/run/x.py", "def f():\n    import sparsefl.bench"),
        ("fl/cli/app.py", "import sparsefl.bench"),
        ("fl/data/x.py", "from fl.world import topology"),
        ("fl/algorithms/x.py", "from fl.run.metrics import mean"),
        ("fl/errors.py", "from fl import config"),
        ("fl/config/__init__.py", "from fl import algorithms"),
    ],
)
def test_the_walk_sees_a_violation(path, source):
    assert list(violations(path, source))


def test_the_exceptions_are_lazy_only():
    assert not list(violations("fl/cli/app.py", "def f():\n    from sparsefl.bench.cli import main"))
    assert not list(violations("fl/config/__init__.py", "def f():\n    from fl import algorithms"))
    assert not list(violations("fl/run/loop.py", "from fl import config\nfrom fl.algorithms.base import Env"))


def test_setup_finds_every_folder_with_sources(monkeypatch):
    given = {}
    monkeypatch.setattr("setuptools.setup", lambda **arguments: given.update(arguments))
    monkeypatch.chdir(ROOT)
    runpy.run_path(str(ROOT / "setup.py"))
    folders = {
        path.parent.relative_to(ROOT).as_posix() for package in MAY_IMPORT for path in sources(package)
    }
    names = {folder.replace("/", ".") for folder in folders}
    linked = {f"sparsefl.{name}" if name.split(".")[0] in ("kernels", "bench") else name for name in names}
    assert set(given["packages"]) == {"sparsefl", *linked}
