"""Documents and docstrings name files and modules that exist; the map shows every folder."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
)
PACKAGES = ("kernels", "sparse_engine", "fl", "bench")
FOLDERS = (*PACKAGES, "tests", "docs", "examples", "sparsefl")
PATH = re.compile(rf"(?<![\w/.-])(?:{'|'.join(FOLDERS)})/[\w./<>*-]*\w")
MODULE = re.compile(rf"(?<![\w/.-])(?:sparsefl\.)?({'|'.join(PACKAGES)})\.([a-z_]\w*)")
PLACEHOLDERS = re.compile(r"[<>*]")  # fl/algorithms/<name>.py


def missing_paths(text):
    return [p for p in PATH.findall(text) if not PLACEHOLDERS.search(p) and not (ROOT / p).exists()]


def missing_modules(text):
    """Dotted names whose second part is neither a module nor a name of the package's `__init__.py`."""
    return [f"{package}.{name}" for package, name in MODULE.findall(text) if not in_package(package, name)]


def in_package(package, name):
    folder = ROOT / package
    offered = re.search(rf"\b{name}\b", (folder / "__init__.py").read_text())
    return (folder / name).is_dir() or (folder / f"{name}.py").exists() or offered or name == "py"


def docstrings(path):
    """The docstrings of a source file, those of its fields too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.value.value


@pytest.mark.parametrize("document", DOCUMENTS)
def test_paths_and_modules_in_documents_exist(document):
    text = (ROOT / document).read_text()
    assert not missing_paths(text) + missing_modules(text)


@pytest.mark.parametrize("package", [*PACKAGES, "tests"])
def test_paths_and_modules_in_docstrings_exist(package):
    wrong = {
        path.relative_to(ROOT).as_posix(): found
        for path in sorted((ROOT / package).rglob("*.py"))
        for text in docstrings(path)
        if (found := missing_paths(text) + missing_modules(text))
    }
    assert not wrong


def test_the_walk_sees_a_missing_file_and_module():
    assert missing_paths("see `fl/nowhere.py`, tests/test_docs.py and fl/algorithms/<name>.py") == [
        "fl/nowhere.py"
    ]
    assert missing_modules("see sparse_engine.nowhere, fl.run.loop and sparsefl.kernels.registry") == [
        "sparse_engine.nowhere"
    ]


def the_map():
    """(folder, file or sub-folder named there) of every line of the map in ARCHITECTURE.md."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    folder = inner = ""
    for line in re.findall(r"```\n(.*?)```", text, re.DOTALL)[0].splitlines():
        start = re.match(r"( *)((?:\w+/ ?)+)", line)
        if start and not start[1]:
            folder = inner = start[2].strip()
        elif start and len(start[1]) == 2:
            inner = folder + start[2].split()[0]
            yield from ((folder, name) for name in start[2].split())
        elif re.match(r" {2}\S", line):
            inner = folder
        yield from ((inner, name) for name in re.findall(r"(?<![\w/])\w+\.py\b", line))


def test_the_map_names_what_exists():
    named = list(the_map())
    assert len(named) > 50
    assert not [f"{folder}{name}" for folder, name in named if not (ROOT / folder / name).exists()]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_map_shows_every_folder(package):
    named = {f"{folder}{name}".rstrip("/") for folder, name in the_map()}
    folders = {path.parent for path in (ROOT / package).glob("*/*.py")}
    assert not {path.relative_to(ROOT).as_posix() for path in folders} - named


def test_the_index_of_docs_names_every_document():
    index = (ROOT / "docs" / "README.md").read_text()
    others = [path for path in DOCUMENTS if path.startswith("docs/") and path != "docs/README.md"]
    assert not [path for path in others if f"({path.removeprefix('docs/')})" not in index]


def links(text):
    """Targets of links and pictures inside the project, without the part after #; code does not count."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    return [link.partition("#")[0] for link in found if not link.startswith(("http", "#", "mailto:"))]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    path = ROOT / document
    assert not [link for link in links(path.read_text()) if not (path.parent / link).exists()]


def test_the_walk_sees_links():
    assert links("[a](b.md#c) ![d](e.png) [f](https://g) [h](#i) ```[j](k)```") == ["b.md", "e.png"]


def test_the_site_shows_every_page():
    named = re.findall(r": ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {path.removeprefix("docs/") for path in DOCUMENTS if path.startswith("docs/")}
    assert pages <= set(named) and len(set(named)) == len(named)


def blocks(document):
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


@pytest.mark.parametrize("document", ["docs/tutorial.md", "docs/python.md"])
def test_the_blocks_run_in_order(document, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    names = {}
    assert len(blocks(document)) >= 3
    for block in blocks(document):
        exec(compile(block, document, "exec"), names)
    assert capsys.readouterr().out


def test_the_notebook_is_the_tutorial():
    """If not: python .ci/tools/notebook.py"""
    cells = json.loads((ROOT / "examples" / "tutorial.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert code[1:] == [block.strip() for block in blocks("docs/tutorial.md")]


@pytest.mark.parametrize("page", ["config", "api"])
def test_the_reference_is_current(page):
    """If not: make docs. In a process of its own: other tests register algorithms of their own."""
    command = [sys.executable, "-m", f"fl.run.reference_{page}"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert (ROOT / "docs" / "reference" / f"{page}.md").read_text() == made


def test_the_version_is_one():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(rf"^## {re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_the_examples_of_documents_run(capsys):
    """What docs/programs.md shows is what its example prints, but for kernels and bytes."""
    text = (ROOT / "docs" / "programs.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (shown,) = re.findall(r"```\n(LeNet5.*?)```", text, re.DOTALL)
    exec(compile(example, "docs/programs.md", "exec"), {})
    printed = capsys.readouterr().out
    assert steps_of(shown) == steps_of(printed) and len(steps_of(shown)) == 10


def steps_of(text):
    """The title, and (step, what) of every row above the totals."""
    rows = text.split("training:")[0].splitlines()
    return [tuple(re.split(r"  +", row)[:2]) for row in rows]
