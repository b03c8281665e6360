"""What pyproject.toml asks for, as lines for pip, so that no list of packages is typed twice.

python .ci/tools/requirements.py            the project's dependencies and those of all extras
python .ci/tools/requirements.py --lowest   the same, each at the lowest version that it allows
python .ci/tools/requirements.py --build    what building needs; --build --lowest: at its lowest
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BOUNDED = re.compile(r"(?P<name>[A-Za-z0-9._-]+)>=(?P<low>[0-9][^,;\s]*)(,<[^,;\s]+)?\s*(?P<marker>;.*)?")


def wanted(table: dict) -> list[str]:
    """Every requirement of the project and of its extras; an extra that names others stands for theirs."""
    project = table["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    own = f"{project['name']}["
    return sorted({line for lines in lists for line in lines if not line.startswith(own)})


def lowest(requirement: str) -> str:
    """`typer>=0.16,<1` as `typer==0.16`."""
    found = _BOUNDED.fullmatch(requirement)
    if not found:
        raise ValueError(f"expected NAME>=VERSION or NAME>=VERSION,<VERSION, got {requirement!r}")
    return f"{found['name']}=={found['low']}{found['marker'] or ''}"


def main(options: list[str]) -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = table["build-system"]["requires"] if "--build" in options else wanted(table)
    print("\n".join(map(lowest, lines) if "--lowest" in options else lines))


if __name__ == "__main__":
    main(sys.argv[1:])
