"""Do the pins of constraints.txt fit together on plain PyPI? Asked of pip in a dry run: nothing is installed.

python .ci/tools/resolve.py    exit 1 where they conflict or leave a package out; a skip without an index
python .ci/tools/resolve.py --write    pins anew what the packages above MARK bring

pip's configuration is left out: local folders and indices of one machine hide what others meet. Kept are the
settings that say how to get to an index (certificate, proxy, a mirror in PIP_INDEX_URL).
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from requirements import ROOT, wanted

CONSTRAINTS = ROOT / "constraints.txt"
MARK = "# What these bring on plain PyPI"
KEPT = {
    f"PIP_{name}" for name in ("CERT", "CLIENT_CERT", "DEFAULT_TIMEOUT", "INDEX_URL", "PROXY", "TRUSTED_HOST")
}
# fast-deps reads metadata from the ends of wheels; without it older pips fetch GBs to look inside
DRY = ["--dry-run", "--ignore-installed", "--only-binary=:all:", "--use-feature=fast-deps"]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(text: str) -> set[str]:
    """Names of the packages that a text in the form of constraints.txt pins."""
    return {canonical(line.split("==")[0]) for line in text.splitlines() if "==" in line and line[0] != "#"}


def environment(given: dict[str, str]) -> dict[str, str]:
    """The environment for a pip without configuration."""
    kept = {name: value for name, value in given.items() if name in KEPT or not name.startswith("PIP_")}
    return kept | {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", *arguments]
    return subprocess.run(command, env=environment(dict(os.environ)), capture_output=True, text=True)


def reaches_an_index() -> bool:
    """pip itself is on every index: does one answer?"""
    return pip("install", *DRY, "--no-deps", "--retries=1", "--timeout=20", "pip").returncode == 0


def resolve(constraints: str) -> dict[str, str]:
    """{package: version} of all that pip would install; SystemExit with pip's words where it finds no way."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    with tempfile.TemporaryDirectory() as work:
        pins, report = Path(work, "constraints.txt"), Path(work, "report.json")
        pins.write_text(constraints)
        asked = [*wanted(table), *table["build-system"]["requires"]]
        done = pip("install", *DRY, "-c", str(pins), "--report", str(report), *asked)
        if done.returncode:
            cause = re.search(r"The conflict is caused by:.*?\n\n", done.stdout, re.DOTALL)
            raise SystemExit(
                f"constraints.txt does not resolve on plain PyPI\n{cause[0] if cause else done.stderr}"
            )
        found = json.loads(report.read_text())["install"]
    return {canonical(one["metadata"]["name"]): one["metadata"]["version"] for one in found}


def main(options: list[str]) -> None:
    text = CONSTRAINTS.read_text()
    if not reaches_an_index():
        print("SKIPPED: no package index can be reached without pip's configuration; nothing was checked")
        return
    if "--write" in options:
        head, mark, tail = text.partition(MARK)
        if not mark:
            raise SystemExit(f"expected the line {MARK!r} in constraints.txt, got none")
        first = pinned(head)
        rest = [f"{name}=={version}" for name, version in sorted(resolve(head).items()) if name not in first]
        CONSTRAINTS.write_text("\n".join([head + mark + tail.splitlines()[0], *rest]) + "\n")
        print(f"pinned {len(rest)} packages more")
        return
    found = resolve(text)
    if missing := sorted(set(found) - pinned(text)):
        raise SystemExit(f"expected a pin for every package, got none for {missing}: run make constraints")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    cuda = sum(name.startswith(("nvidia-", "cuda-")) for name in found)
    print(f"constraints.txt resolves on plain PyPI, Python {version}: {len(found)} packages, {cuda} of CUDA")


if __name__ == "__main__":
    main(sys.argv[1:])
