"""PTX of every configuration of the project, compiled ahead of time for an RTX 4090 in a process of its
own.

This process may have Triton's interpreter on, and that is decided when kernels are imported. Triton keeps
what it compiled, so it takes seconds after the first time. `python -m virtual_card.compiled` writes the
table; `MODULE` names another module with a table `KERNELS` of configurations (those that test the card
itself).
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from sparsefl.kernels import aot, tile

ROOT = Path(__file__).parents[2]


class Binary(NamedTuple):
    """What a launch needs."""

    ptx: str
    shared: int  # bytes per program


def key(config: tile.Config) -> str:
    """The name of a configuration, the same in every process."""
    constants = sorted((name, repr(value)) for name, value in config.constants.items())
    return repr((config.op, config.kernel.__name__, config.types, constants, sorted(config.options.items())))


@cache
def binaries(module: str = "") -> dict[str, Binary]:
    """By `key`: all configurations of the project, or those in KERNELS of `module`."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests"), env.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "virtual_card.compiled", *([module] if module else [])]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"kernels do not compile: {done.stderr}")
    return {name: Binary(*binary) for name, binary in json.loads(done.stdout).items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m virtual_card.compiled", description=__doc__.splitlines()[0]
    )
    parser.add_argument("module", nargs="?", help="a module with KERNELS")
    module = parser.parse_args().module
    configs: Any = importlib.import_module(module).KERNELS if module else aot.configs()
    found = {}
    for config in configs:
        made = aot.compiled(config)
        found[key(config)] = Binary(made.asm["ptx"], made.metadata.shared)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
