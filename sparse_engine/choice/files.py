"""Plans as files: which kernels were measured to be the fastest, and the constants of the rule for the rest.

    {"version": 2, "rule": "zen", "costs": {}, "kernels": {"forward 64x64x3x3 ... threads 1": "sparse:avx2"}}

`rule` names constants of the package, or is "tuned": then `costs` has them (sparse_engine/choice/cost.py).
`sparsefl tune` and SPARSE_PLAN=measure write them; a run keeps its own.
"""

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from sparse_engine.choice import rule as rules
from sparse_engine.choice.rule import TUNED, Rule
from sparse_engine.hardware import cpu_model
from sparsefl.kernels import native, sparse_conv
from sparsefl.kernels.errors import SettingError

VERSION = 2
_HELP = "SPARSE_PLAN takes off (no file), measure, or a file that measure or `sparsefl tune` wrote"


class Content(NamedTuple):
    kernels: dict[str, str]
    rule: Rule


def machine_file() -> Path:
    """Return the file of this machine's measurements."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    isa = native.isa() if native.isas() else "none"
    name = re.sub(r"[^A-Za-z0-9]+", "-", f"{cpu_model()} {os.cpu_count()} {isa}").strip("-")
    return cache / "sparsefl" / f"plan-{name}.json"


def read(path: Path) -> Content:
    """Return what a file says; raise a SettingError that names it if it is no plan."""
    try:
        return parsed(path.read_text())
    except (OSError, ValueError) as error:  # also text that is no UTF-8
        why = (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
        raise SettingError(f"expected a kernel plan in {path}, got {why}; {_HELP}") from error


def parsed(text: str) -> Content:
    """Return what `text` says; raise a ValueError if it is no plan."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"text that is no JSON ({error})") from error
    if not isinstance(found, dict) or found.get("version") != VERSION:
        version = found.get("version") if isinstance(found, dict) else None
        raise ValueError(f"a file that is none of version {VERSION} (version: {version!r})")
    kernels, costs = found.get("kernels"), found.get("costs")
    if not isinstance(kernels, dict) or not isinstance(costs, dict):
        raise ValueError("a file without the tables kernels and costs")
    wrong = next((kernel for kernel in kernels.values() if not _is_kernel(kernel)), None)
    if wrong is not None:
        raise ValueError(f"the kernel {wrong!r} where there are {', '.join(sparse_conv.KERNELS)}")
    return Content(kernels, _rule(found.get("rule"), costs))


def write(path: Path, text: str) -> None:
    """Write the file at once: others may read or write it at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    os.replace(file.name, path)


def text(content: Content) -> str:
    kernels, rule = content
    told = {
        "version": VERSION,
        "rule": rule.name,
        "costs": dict(sorted(rule.costs.items())) if rule.is_tuned else {},
        "kernels": dict(sorted(kernels.items())),
    }
    return json.dumps(told, indent=1) + "\n"


def _rule(name: Any, costs: dict[str, Any]) -> Rule:
    if name == TUNED:
        for key, constants in costs.items():
            rules.check(key, constants)
        return Rule(TUNED, {key: tuple(constants) for key, constants in costs.items()})
    if costs or not isinstance(name, str):
        raise ValueError(f"a rule {name!r} with costs of its own")
    return rules.named(name)


def _is_kernel(name: object) -> bool:
    return isinstance(name, str) and sparse_conv.split(name)[0] in sparse_conv.KERNELS
