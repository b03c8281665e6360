"""The smoke tests: does the installation of this interpreter work, at a glance?

PYTHON .ci/tools/smoke.py runs some commands as a user would and the test files of TESTS on the sparsefl that
is installed beside PYTHON: it works in a copy of tests/ without the sources, where no other can be found.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SMALL = ["--set", "num_rounds=2", "--set", "num_clients=4", "--set", "topology.degree=2"]
COMMANDS = [
    ["doctor"],
    ["list", "--keys"],
    ["run", "demo", *SMALL, "--out", "run", "--log", "tensorboard"],
    ["run", "--resume", "run"],
    ["compare", "demo", "--algorithms", "da_dpfl,fedavg", *SMALL, "--out", "comparison"],
    ["simulate", "--clients", "1000"],
]
TESTS = [
    "kernels/test_aot.py",
    "kernels/test_masked_sgd.py",
    "kernels/test_native.py",
    "sparse_engine/wire/test_message.py",
    "fl/run/test_checkpoint.py",
    "fl/cli/test_app.py",
    "fl/config/test_init.py",
    "fl/report/test_page.py",
]


def run(command: list[str], directory: Path) -> str:
    print("$", *command[1:], flush=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=directory, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}\nexpected exit code 0, got {done.returncode}")
    return done.stdout


def check_meanings(listing: str) -> None:
    """`list --keys` prints name, type, default, meaning: an old pydantic loses the meanings."""
    keys = [line.split(maxsplit=3) for line in listing.splitlines()]
    explained = sum(len(fields) == 4 for fields in keys)
    if explained < 0.75 * len(keys):
        raise SystemExit(f"expected a meaning for most of {len(keys)} keys, got {explained}")


def main() -> None:
    with tempfile.TemporaryDirectory() as work:
        directory = Path(work)
        shutil.copytree(ROOT / "tests", directory / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", directory)
        sparsefl = [sys.executable, "-m", "fl"]
        for command in COMMANDS:
            output = run([*sparsefl, *command], directory)
            if command == ["list", "--keys"]:
                check_meanings(output)
        tests = [f"tests/{name}" for name in TESTS]
        output = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests], directory)
        print(output.splitlines()[-1])


if __name__ == "__main__":
    main()
