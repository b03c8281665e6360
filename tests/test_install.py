"""Installing: pins that fit together, bounds that hold, sentences where it cannot work, what wheels hold."""

import os
import re
import runpy
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from fl.run.runs import Options
from sparse_engine import hardware

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONSTRAINTS = (ROOT / "constraints.txt").read_text()


def tool(monkeypatch, name):
    monkeypatch.syspath_prepend(str(ROOT / ".ci" / "tools"))
    return runpy.run_path(str(ROOT / ".ci" / "tools" / f"{name}.py"))


@pytest.fixture
def requirements(monkeypatch):
    return tool(monkeypatch, "requirements")


@pytest.fixture
def wanted(requirements):
    return [*requirements["wanted"](PROJECT), *PROJECT["build-system"]["requires"]]


def pins():
    return dict(line.split("==") for line in CONSTRAINTS.splitlines() if "==" in line and line[0] != "#")


def test_triton_is_the_one_that_the_pinned_torch_asks_for():
    assert (pins()["torch"], pins()["triton"]) == ("2.13.0", "3.7.1")  # metadata of torch 2.13.0 on PyPI


def test_every_requirement_is_pinned_within_its_bounds(wanted):
    assert len(wanted) > 20
    for requirement in map(Requirement, wanted):
        assert Version(pins()[requirement.name]) in requirement.specifier, requirement


def test_every_requirement_has_a_lower_bound_and_all_but_setuptools_an_upper_one(wanted):
    for requirement in map(Requirement, wanted):
        bounds = {bound.operator for bound in requirement.specifier}
        assert bounds == ({">="} if requirement.name == "setuptools" else {">=", "<"}), requirement


def test_what_dev_needs_for_building_is_what_building_needs():
    build = {line for line in PROJECT["build-system"]["requires"] if not line.startswith("setuptools")}
    assert build <= set(PROJECT["project"]["optional-dependencies"]["dev"])
    minimum = re.search(r"cmake_minimum_required\(VERSION ([\d.]+)\)", (ROOT / "CMakeLists.txt").read_text())[
        1
    ]
    (cmake,) = (Requirement(line) for line in build if line.startswith("cmake"))
    assert Version("3.19") <= Version(minimum)  # COMMAND_ERROR_IS_FATAL
    assert not cmake.specifier.contains("3.18.4") and cmake.specifier.contains(f"{minimum}.2")


def test_versions_known_to_fail_are_not_allowed(wanted):
    allowed = {Requirement(line).name: Requirement(line).specifier for line in wanted}
    assert "0.12.0" not in allowed["typer"]  # Type not yet supported: str | None
    assert "0.15.1" not in allowed["typer"]  # --help: make_metavar() takes 1 positional argument
    assert "2.6.0" not in allowed["pydantic"]  # list --keys without meanings


def test_lowest_takes_the_lower_bound_and_keeps_the_marker(requirements):
    lowest = requirements["lowest"]
    assert lowest("typer>=0.16,<1") == "typer==0.16"
    assert lowest("triton>=3.7.1,<4; sys_platform == 'linux'") == "triton==3.7.1; sys_platform == 'linux'"
    assert lowest("setuptools>=77") == "setuptools==77"
    for bad in ("numpy", "numpy<3", "numpy==1.26"):
        with pytest.raises(
            ValueError, match=re.escape(f"expected NAME>=VERSION or NAME>=VERSION,<VERSION, got '{bad}'")
        ):
            lowest(bad)


def test_extras_are_part_of_what_is_checked_and_the_project_itself_is_not(requirements):
    names = [Requirement(line).name for line in requirements["wanted"](PROJECT)]
    assert {"torch", "ray", "nvidia-ml-py", "tensorboard", "zstandard", "hypothesis", "ruff"} <= set(names)
    assert "sparsefl" not in names and len(names) == len(set(names))


def test_the_dry_run_leaves_pips_configuration_out(monkeypatch):
    given = {
        "PIP_FIND_LINKS": "wheels",
        "PIP_EXTRA_INDEX_URL": "there",
        "PIP_CONSTRAINT": "other.txt",
        "PIP_CONFIG_FILE": "pip.conf",
        "PIP_CERT": "a.pem",
        "PATH": "/bin",
    }
    used = tool(monkeypatch, "resolve")["environment"](given)
    assert used == {
        "PATH": "/bin",
        "PIP_CERT": "a.pem",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def dry_run(monkeypatch, tmp_path, answers):
    """.ci/tools/resolve.py with a pip that gives these answers: (exit code, stdout, stderr, installed)."""
    import json
    from subprocess import CompletedProcess

    def run(command, **_):
        code, out, err, installed = answers.pop(0)
        if "--report" in command:
            found = {"install": [{"metadata": {"name": n, "version": v}} for n, v in installed.items()]}
            Path(command[command.index("--report") + 1]).write_text(json.dumps(found))
        return CompletedProcess(command, code, out, err)

    resolve = tool(monkeypatch, "resolve")
    (tmp_path / "constraints.txt").write_text(f"a==1\n{resolve['MARK']} (made)\nold==3\n")
    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.setitem(resolve["main"].__globals__, "CONSTRAINTS", tmp_path / "constraints.txt")
    return resolve


INDEX = (0, "", "", {})


def test_pins_that_conflict_fail_with_pips_reason(monkeypatch, tmp_path):
    said = "INFO\nThe conflict is caused by:\n    torch depends on triton==3.7.1\n\nTo fix this\n"
    resolve = dry_run(monkeypatch, tmp_path, [INDEX, (1, said, "ResolutionImpossible", {})])
    with pytest.raises(
        SystemExit, match=r"does not resolve on plain PyPI\nThe conflict.*\n.*triton==3.7.1\n"
    ):
        resolve["main"]([])


def test_a_package_without_a_pin_fails(monkeypatch, tmp_path):
    resolve = dry_run(monkeypatch, tmp_path, [INDEX, (0, "", "", {"A": "1", "b_c": "2"})])
    with pytest.raises(SystemExit, match=r"expected a pin for every package, got none for \['b-c'\]"):
        resolve["main"]([])


def test_no_index_is_a_visible_skip(monkeypatch, tmp_path, capsys):
    dry_run(monkeypatch, tmp_path, [(1, "", "no such host", {})])["main"]([])
    assert capsys.readouterr().out.startswith("SKIPPED: no package index")


def test_what_the_pinned_packages_bring_is_written_anew(monkeypatch, tmp_path):
    resolve = dry_run(monkeypatch, tmp_path, [INDEX, (0, "", "", {"A": "1", "b_c": "2"})])
    resolve["main"](["--write"])
    assert (tmp_path / "constraints.txt").read_text() == f"a==1\n{resolve['MARK']} (made)\nb-c==2\n"


@pytest.mark.parametrize("system", ["Windows", "Darwin"])
def test_other_systems_get_a_sentence_from_setup(monkeypatch, system):
    monkeypatch.setattr("platform.system", lambda: system)
    with pytest.raises(SystemExit, match=rf"^sparsefl builds on Linux \(.*\), got {system}: use .*WSL$"):
        runpy.run_path(str(ROOT / "setup.py"))


def test_an_extension_that_cmake_did_not_make_gets_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr("setuptools.setup", lambda **_: None)
    built = runpy.run_path(str(ROOT / "setup.py"))["built"]
    with pytest.raises(SystemExit, match="expected _native.so from CMake in .*, got no file _native"):
        built(tmp_path, "_native.so")
    (tmp_path / "_native.cpython-39.so").touch()  # left by another interpreter
    with pytest.raises(SystemExit, match=r"got \['_native.cpython-39.so'\]"):
        built(tmp_path, "_native.so")
    (tmp_path / "_native.so").touch()
    assert built(tmp_path, "_native.so") == tmp_path / "_native.so"


def test_workers_have_a_default_where_the_system_knows_no_affinity(monkeypatch):
    assert Options().num_workers == len(os.sched_getaffinity(0))
    monkeypatch.delattr("os.sched_getaffinity")  # as on macOS
    assert Options().num_workers == hardware.cores() == os.cpu_count()
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert Options().num_workers == 1


def test_the_notice_goes_into_sdist_and_wheel():
    assert {"LICENSE", "NOTICE"} == set(PROJECT["project"]["license-files"])
    notice = (ROOT / "NOTICE").read_text()
    for words in ("fl/data/digits.npz", "Alpaydin", "Kaynak", "CC BY 4.0", "scikit-learn developers"):
        assert words in notice


def test_a_wheel_without_manylinux_tag_or_with_libraries_of_others_is_refused(monkeypatch):
    complaints = tool(monkeypatch, "check_wheel")["complaints"]
    good = "sparsefl-0.1.0-cp311-cp311-manylinux_2_34_x86_64.whl"
    files = [
        "sparsefl/kernels/_native.cpython-311-x86_64-linux-gnu.so",
        "fl/data/digits.npz",
        "fl/config/presets/demo.toml",
        "fl/py.typed",
        "sparse_engine/py.typed",
        "sparsefl-0.1.0.dist-info/licenses/LICENSE",
        "sparsefl-0.1.0.dist-info/licenses/NOTICE",
    ]
    assert complaints(good, files) == []
    assert complaints(good.replace("manylinux_2_34", "linux"), files)
    for left_out in range(len(files)):
        assert len(complaints(good, files[:left_out] + files[left_out + 1 :])) == 1
    for added in ("sparsefl.libs/libgomp-1.so", "kernels/csrc/models/pqi.cpp", "tests/test_install.py"):
        assert complaints(good, [*files, added])


def test_smoke_tests_name_files_that_exist(monkeypatch):
    smoke = tool(monkeypatch, "smoke")
    for name in smoke["TESTS"]:
        assert (ROOT / "tests" / name).is_file(), name


def test_smoke_tests_notice_keys_without_meanings(monkeypatch):
    check = tool(monkeypatch, "smoke")["check_meanings"]
    check("seed  int  0  every random draw follows from it\n" * 4)
    with pytest.raises(SystemExit, match="expected a meaning for most of 4 keys, got 0"):
        check("seed  int  0\n" * 4)


def test_every_interpreter_is_found_or_named_as_missing(monkeypatch, capsys):
    pythons = tool(monkeypatch, "pythons")
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert pythons["find"](here) and pythons["find"]("2.99") is None
    assert here in pythons["VERSIONS"]
    monkeypatch.setitem(pythons["main"].__globals__, "check", lambda python, version: True)
    pythons["main"]([here, "2.99"])
    assert f"Python {here}: passed\nPython 2.99: not on this machine\n" in capsys.readouterr().out
    with pytest.raises(SystemExit):  # nothing ran: not a pass
        pythons["main"](["2.99"])
