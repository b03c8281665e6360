"""Every Python that the project supports and this machine has: install sparsefl, run the smoke tests.

Each gets an environment of its own in build/, removed when it passed. Without a CPU build of torch (README)
that is several GB per interpreter. A missing interpreter is named, not counted as passed.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from requirements import ROOT

VERSIONS = ("3.11", "3.12", "3.13")
TOOLS = ["setuptools", "cmake", "ninja", "nanobind"]


def candidates(version: str) -> Iterator[str]:
    """Where an interpreter of this version may be: the one that runs this, on PATH, below pyenv."""
    yield sys.executable
    if found := shutil.which(f"python{version}"):
        yield found
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python")))


def find(version: str) -> str | None:
    """An interpreter that starts and is of this version; a shim of pyenv may do neither."""
    say = "import sys; print('%d.%d' % sys.version_info[:2])"
    for python in candidates(version):
        done = subprocess.run([python, "-c", say], capture_output=True, text=True)
        if done.stdout.strip() == version:
            return python
    return None


def check(python: str, version: str) -> bool:
    """Install for this interpreter with the pins of constraints.txt, and run the smoke tests."""
    venv = ROOT / "build" / f"python-{version}"
    shutil.rmtree(venv, ignore_errors=True)
    install = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "-c", "constraints.txt"]
    path = f"{venv / 'bin'}:{os.environ['PATH']}"
    for command in (
        [python, "-m", "venv", str(venv)],
        [*install, *TOOLS],
        [*install, "--no-build-isolation", ".[test,tensorboard]"],
        [str(venv / "bin" / "python"), ".ci/tools/smoke.py"],
    ):
        if subprocess.run(command, cwd=ROOT, env=os.environ | {"PATH": path}).returncode:
            return False
    shutil.rmtree(venv)
    return True


def main(versions: list[str]) -> None:
    results = {}
    for version in versions or VERSIONS:
        python = find(version)
        print(f"== Python {version}", flush=True)
        results[version] = "not on this machine" if not python else check(python, version)
    words = {True: "passed", False: "FAILED"}
    print("\n".join(f"Python {version}: {words.get(result, result)}" for version, result in results.items()))
    if False in results.values() or True not in results.values():
        raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
