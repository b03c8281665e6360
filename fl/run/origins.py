"""code.json: where the code of others that a run imports came from, and whether it is still the same.

    {"model.name": {"name": "nets.py:TinyNet", "origin": "nets.py", "sha256": "9f8e..."}}

By key of the configuration; `name` as it stands there, `origin` the file, module or package with its version,
`sha256` of the source file that was imported ("": there is none). Runs without such code have no such file.
"""

from typing import Any

from fl import algorithms
from fl.config import Config, code
from fl.config.schema import NETWORKS
from fl.errors import RunDirError
from fl.run import files
from fl.run.events import Listener
from fl.run.names import CODE
from fl.run.rundir import RunDir

Origins = dict[str, dict[str, str]]
_PARTS = {"name", "origin", "sha256"}


def of(cfg: Config) -> Origins:
    """What a run like this imports: it has been imported, or is now."""
    names = dict(zip(code.KEYS, (cfg.algorithm, cfg.data.name, cfg.model.name), strict=True))
    return {key: _origin(name, key) for key, name in names.items() if _is_foreign(name, key)}


def write(run: RunDir, cfg: Config) -> None:
    """Write down where the code of a new run comes from."""
    found = of(cfg)
    if found:
        run.write_json(CODE, found)


def compare(run: RunDir, cfg: Config, listener: Listener) -> None:
    """Tell where code is not what the run was started with."""
    before = _read(run)
    for key, now in of(cfg).items():
        if key not in before:
            listener.note(f"{CODE} does not say which {now['name']} ({key}) the run was started with")
        elif before[key] != now:
            listener.note(
                f"{now['name']} ({key}) is not what the run was started with: {_shown(before[key])} then, "
                f"{_shown(now)} now; its rounds are of two kinds"
            )


def _is_foreign(name: str, key: str) -> bool:
    if code.reference(name) is not None:
        return True
    ours = name in algorithms.shipped() if key == "algorithm" else name in NETWORKS
    return not ours and key in code.ENTRY_POINTS and name in code.installed(key)


def _origin(name: str, key: str) -> dict[str, str]:
    found = code.load(name, key)
    return {"name": name, "origin": found.origin, "sha256": found.sha256}


def _shown(one: dict[str, str]) -> str:
    return f"{one['origin']} with SHA-256 {one['sha256'][:12] or 'unknown'}"


def _read(run: RunDir) -> Origins:
    if not files.exists(run.path, CODE):
        return {}
    told: Any = files.read_json(run.path, CODE)
    if not isinstance(told, dict) or not all(_is_origin(one) for one in told.values()):
        raise RunDirError(f"expected {sorted(_PARTS)} of each key in {CODE}, got {files.shown(told)}")
    return told


def _is_origin(one: Any) -> bool:
    return isinstance(one, dict) and one.keys() == _PARTS and all(isinstance(x, str) for x in one.values())
