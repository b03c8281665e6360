"""In which settings the entries of a comparison differ, beside those that only one algorithm has. Entries of
one algorithm are compared in its own section too.

    differs: clipping (max_norm): da_dpfl none, all others 10

Of the section `training` what counts is what clients really train with: an algorithm may have a key of its
own in its place (`Section.trainings`). "1 + 1" are two trainings in a round, one after the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fl import algorithms, config
from fl.compare.plan import Plan, Run
from fl.config import Config, ConfigError, Training

_WORDS = {
    "training.epochs": "epochs per round",
    "training.batch_size": "batch size",
    "training.lr": "learning rate",
    "training.max_norm": "clipping (max_norm)",
    "training.momentum": "momentum",
    "training.weight_decay": "weight decay",
}
_NOT_COMPARED = ("name", "description", "algorithm", "seed", "run")  # they change no result, or always differ
_MANY = 3  # names, from which on they are "all others"


@dataclass(frozen=True)
class Difference:
    key: str
    values: Mapping[str, str]  # of every entry
    equal_work: bool = True  # false: clients of some entries train for more epochs than those of others

    @property
    def text(self) -> str:
        """In a line: the values that few have, then those of most."""
        names: dict[str, list[str]] = {}
        for name, value in self.values.items():
            names.setdefault(value, []).append(name)
        groups = sorted(names.items(), key=lambda group: len(group[1]))
        *few, (usual, most) = [(value, ", ".join(who)) for value, who in groups]
        others = "all others" if len(groups[-1][1]) >= _MANY else most
        shown = "; ".join(f"{who} {value}" for value, who in [*few, (usual, others)])
        work = "" if self.equal_work else ": not the same work"
        return f"differs: {_WORDS.get(self.key, self.key)}: {shown}{work}"

    def to_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "values": dict(self.values),
            "equal_work": self.equal_work,
            "text": self.text,
        }


def differences(plan: Plan) -> list[Difference]:
    """Return how the entries that can run differ, in the order of a configuration."""
    configs = {}
    for name, entry in plan.entries.items():
        try:
            configs[name] = plan.config(Run(name, entry.seeds[0]))
        except ConfigError:  # it fails, and says so
            continue
    found = {name: _settings(cfg) for name, cfg in configs.items()}
    epochs = {sum(one.epochs for one in cfg.settings.trainings(cfg.training)) for cfg in configs.values()}
    keys = dict.fromkeys(key for one in found.values() for key in one)
    values = {key: {name: one.get(key, config.NONE) for name, one in found.items()} for key in keys}
    for algorithm in dict.fromkeys(cfg.algorithm for cfg in configs.values()):
        same = {name: _section(cfg) for name, cfg in configs.items() if cfg.algorithm == algorithm}
        values |= {key: {name: one[key] for name, one in same.items()} for key in next(iter(same.values()))}
    return [
        Difference(key, told, key != "training.epochs" or len(epochs) == 1)
        for key, told in values.items()
        if len(set(told.values())) > 1
    ]


def _settings(cfg: Config) -> dict[str, str]:
    """{key: value} of everything but the sections of algorithms, with the trainings that take place."""
    tree = {key: value for key, value in config.plain(cfg).items() if key not in _NOT_COMPARED}
    found: dict[str, str] = {}
    for key, value in tree.items():
        if key == "training":
            found |= _trainings(cfg.settings.trainings(cfg.training))
        elif key not in algorithms.registered():
            found |= _flat(value, key)
    return found


def _section(cfg: Config) -> dict[str, str]:
    """{key: value} of the algorithm's own, without those of its training, which `_settings` has."""
    found = _flat(config.plain(cfg)[cfg.section], cfg.section)
    return {key: value for key, value in found.items() if key.split(".")[-1] not in Training.model_fields}


def _trainings(trainings: tuple[Training, ...]) -> dict[str, str]:
    found = {}
    for key in Training.model_fields:
        each = [_shown(getattr(one, key)) for one in trainings]
        same = len(set(each)) == 1 and key != "epochs"
        found[f"training.{key}"] = each[0] if same else " + ".join(each)
    return found


def _flat(value: Any, key: str) -> dict[str, str]:
    if not isinstance(value, dict):
        return {key: _shown(value)}
    return {k: v for name, one in value.items() for k, v in _flat(one, f"{key}.{name}").items()}


def _shown(value: Any) -> str:
    return config.NONE if value is None else f"{value:g}" if isinstance(value, float) else str(value)
