"""Is this wheel fit to be published? A manylinux tag, licences and data inside, no libraries of others.

python .ci/tools/check_wheel.py dist/sparsefl-*.whl
"""

import re
import sys
import zipfile
from pathlib import Path

NEEDED = [
    r"sparsefl/kernels/_native\..*\.so",
    r"fl/data/digits\.npz",
    r"fl/config/presets/demo\.toml",
    r"fl/py\.typed",
    r"sparse_engine/py\.typed",
    r".*\.dist-info/licenses/LICENSE",
    r".*\.dist-info/licenses/NOTICE",
]
REFUSED = [r".*\.libs/.*", r".*libgomp.*", r".*\.(cpp|h)", r"(tests|\.ci)/.*"]


def complaints(name: str, files: list[str]) -> list[str]:
    """What is wrong with a wheel of this file name that holds these files."""
    found = []
    if not re.search(r"-manylinux_\d+_\d+_\w+\.whl$", name):
        found.append(f"expected a manylinux tag, got {name}")
    for pattern in NEEDED:
        if not any(re.fullmatch(pattern, file) for file in files):
            found.append(f"expected a file {pattern}, got none")
    for pattern in REFUSED:
        found += [f"expected no file {pattern}, got {file}" for file in files if re.fullmatch(pattern, file)]
    return found


def main(paths: list[str]) -> None:
    if not paths:
        raise SystemExit("expected a wheel, got none")
    for path in paths:
        with zipfile.ZipFile(path) as wheel:
            if found := complaints(Path(path).name, wheel.namelist()):
                raise SystemExit("\n".join(found))
        print(f"{path}: as it should be")


if __name__ == "__main__":
    main(sys.argv[1:])
