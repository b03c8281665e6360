"""Whether the directory of a run holds what its comparison thinks: the run of the plan, whole and unchanged.

    config.toml      is the plan's configuration of this run
    partition.json   has the samples of every client
    and what is true of every run (fl/run/recorded.py): all rounds, in order, with figures, and a summary
    that says of the rounds what they say themselves

What does not hold is damage: the run is named with a sentence, and is in no mean and no figure.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fl import config
from fl.compare.plan import Plan, Run
from fl.config import Config
from fl.errors import ConfigError, Expected
from fl.run import recorded
from fl.run.recorded import Recorded
from fl.run.rundir import CONFIG, METRICS, PARTITION, SUMMARY


def examined(plan: Plan, run: Run, folder: Path) -> tuple[Recorded | None, str | None]:
    """What `folder` has of the run, None if it was not begun; and what is wrong with it, None if nothing is.

    A damaged run is not handed on.
    """
    if not (folder / CONFIG).is_file():
        beside = [name for name in (SUMMARY, METRICS) if (folder / name).exists()]
        return None, f"expected {CONFIG} beside {beside[0]}, got none" if beside else None
    try:
        found = recorded.read(folder, clients=False)
        wrong = next(_problems(plan.config(run), found), None)
    except Expected as refused:
        where = f"{CONFIG}: " if isinstance(refused, ConfigError) else ""
        return None, where + "; ".join(str(refused).splitlines())
    return (found, None) if wrong is None else (None, wrong)


def _problems(wanted: Config, found: Recorded) -> Iterator[str]:
    yield from _config(wanted, found.config)
    if found.partition is not None and len(found.partition["train"]) != wanted.num_clients:
        yield f"expected the samples of {wanted.num_clients} clients by class in {PARTITION}, got others"


def _config(wanted: Config, found: Config) -> Iterator[str]:
    ours, theirs = (_flat(config.plain(config.loads(config.dumps(cfg)))) for cfg in (wanted, found))
    for key in ours | theirs:
        if ours.get(key) != theirs.get(key):
            a, b = (tree.get(key, config.NONE) for tree in (ours, theirs))
            yield f"expected {key} = {a} in {CONFIG}, as the plan has it, got {b}: it is another run"


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat
