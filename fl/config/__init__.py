"""The configuration of a run: one typed tree, read once from TOML and checked as a whole.

    config = load("demo", ["training.lr=0.05"])      a preset or a file, and changes to it
    dumps(config)                                    complete TOML: reading it gives the same tree

Every algorithm brings its own section (`fl.algorithms.<name>.Config`) under its name: a file may hold those
of several, `algorithm` says which one runs. A file may start from a preset (`extends = "cifar10"`). A wrong
key or value is answered with the key, what was expected and what came (`ConfigError`).
"""

import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError, create_model, model_validator

from fl.config import code, effect, words
from fl.config import source as config_source
from fl.config import text as config_text
from fl.config.effect import only_if, unless
from fl.config.schema import (
    Config,
    Count,
    Data,
    Devices,
    Messages,
    Model,
    NotNegative,
    Positive,
    Presence,
    Run,
    Section,
    Share,
    Topology,
    Training,
    Watts,
    Whole,
)
from fl.config.source import NONE, PRESETS, Origin
from fl.errors import ConfigError

__all__ = [
    "PRESETS",
    "ConfigError",
    "only_if",
    "unless",
    "Count",
    "Whole",
    "Share",
    "Positive",
    "NotNegative",
    "Watts",
    "Section",
    "Data",
    "Model",
    "Training",
    "Topology",
    "Messages",
    "Devices",
    "Presence",
    "Run",
    "Config",
]


AnySection = TypeVar("AnySection", bound=Section)


class Loaded(NamedTuple):
    """A configuration, and what the user should know of it: sentences."""

    config: Config
    notes: tuple[str, ...] = ()


def load(source: str | Path, changes: Iterable[str] = ()) -> Config:
    """The configuration in a file, or of a preset's name, with `changes` like "training.lr=0.05"."""
    return read(source, changes).config


def read(source: str | Path, changes: Iterable[str] = (), *, algorithm: str | None = None) -> Loaded:
    """What `load` gives, and its notes. A change without effect is refused; a key without effect in a file of
    the user's is noted, and keys that must not be there (a width of a network that has none) are left out.

    `algorithm` runs in place of the one named, among others: then it is the caller that refuses changes
    which none of them reads (`refuse_unread`).
    """
    found = config_source.read(source, _complete)
    with found.renamed():
        found.change(changes, _unsets)
    if algorithm is not None:
        found.tree["algorithm"] = algorithm
    _allow_code(found, Path(source).is_dir(), algorithm)
    config = parse(found.tree)
    if algorithm is None:
        refuse_unread([config], found.keys(Origin.CHANGE))
    notes = _noted(found, config, effect.unfit if algorithm else effect.without_effect)
    return Loaded(parse(found.tree) if notes else config, tuple(notes))


def _allow_code(found: config_source.Source, of_a_run: bool, algorithm: str | None) -> None:
    """What the user named may be imported: in a file of theirs (`of_a_run`: it is not), in changes, or as the
    algorithm."""
    for key, name in code.named(found.tree).items():
        if not of_a_run or found.origin.get(key) is Origin.CHANGE or name == algorithm:
            code.allow(name)


def refuse_unread(configs: Iterable[Config], keys: Iterable[str]) -> None:
    """ConfigError where none of `configs` reads one of the `keys`, which somebody set."""
    unread = [effect.without_effect(config, _algorithms()) for config in configs]
    wrong = {key: unread[0][key] for key in keys if unread and all(key in one for one in unread)}
    if wrong:
        lines = (f"{key}: expected a key that has an effect here: {why}" for key, why in wrong.items())
        raise ConfigError("\n".join(lines))


def changed_keys(changes: Iterable[str]) -> list[str]:
    """The keys of changes like "training.lr=0.05"."""
    source = config_source.Source({})
    source.change(changes, _unsets)
    return source.keys(Origin.CHANGE)


def _noted(found: config_source.Source, config: Config, rule: effect.Rule) -> list[str]:
    """Notes of what has no effect by the rule; in the tree, keys that may be unset are."""
    notes = []
    unfit = effect.unfit(config, _algorithms())
    for key, why in rule(config, _algorithms()).items():
        layer, section = found.origin.get(key), key.split(".")[0]
        if layer is None or (section in _algorithms() and section != config.section):
            continue  # a file may hold the sections of several algorithms
        unset = key in unfit and _default_at(key) in (None, {})
        if unset:
            found.drop(key)
        if unset or layer is Origin.FILE:
            notes.append(f"{key} has no effect{' and is left out' if unset else ''}: {why}")
    return notes


def loads(text: str) -> Config:
    """The configuration that `dumps` wrote."""
    return parse(tomllib.loads(text))


def parse(tree: Mapping[str, Any]) -> Config:
    """The checked configuration of a tree of plain values."""
    running = str(tree.get("algorithm", Config.model_fields["algorithm"].default))
    _imported(running)
    return section(_type(), tree, _algorithms().keys() - {code.stem(running)})


def section(kind: type[AnySection], values: Mapping[str, Any], others: Collection[str] = ()) -> AnySection:
    """The checked section of these values, or ConfigError. `others`: algorithms that do not run."""
    try:
        return kind.model_validate(values)
    except ValidationError as wrong:
        keys = [key for key, *_ in _keys(kind, "")]
        lines = (words.explain(error, keys, others) for error in wrong.errors())
        raise ConfigError("\n".join(lines)) from None


def changed(config: Config, changes: Iterable[str]) -> Config:
    """`config` with changes like "training.kernels='dense'"."""
    source = config_source.Source(plain(config))
    source.change(changes, _unsets)
    return parse(source.tree)


def settled(config: Config) -> Config:
    """`config` with the keys of its algorithm that follow from others: what config.toml of a run holds."""
    return config.model_copy(update={config.section: config.settings.settled(config)})


def remarks(config: Config) -> list[str]:
    """What a user should know before a run like this."""
    epochs = [one.epochs for one in config.settings.trainings(config.training)]
    if sum(epochs) == config.training.epochs:
        return []
    shown, usual = " + ".join(map(str, epochs)), config.training.epochs
    return [
        f"{config.algorithm} trains {shown} epochs per round with training.epochs = {usual}: not equal work"
    ]


def plain(section: Section) -> dict[str, Any]:
    """The tree that `parse` makes a configuration of: parse(plain(config)) == config, also through JSON.

    A key that is None by default is left out; one that was set to none is "none", and stays none.
    """
    values = {name: getattr(section, name) for name in type(section).model_fields}
    tree = {name: plain(x) if isinstance(x, Section) else x for name, x in values.items()}
    there = {name: x for name, x in tree.items() if x is not None or section.unsets(name)}
    return {name: NONE if x is None else x for name, x in there.items()}


def presets() -> dict[str, str]:
    """The presets that ship with the package: name and description."""
    found = config_source.presets()
    return {path.stem: config_source.parse_file(path).get("description", "") for path in found}


def keys() -> Iterator[tuple[str, str, str, str]]:
    """Every key there is: name, type, default, and what it means."""
    return _keys(_type(), "")


def dumps(config: Config, notes: Iterable[str] = ()) -> str:
    """TOML with every key of the run, so that later changes of a default do not change it; `notes` on top."""
    others = set(_algorithms()) - {config.section}
    head = "".join(f"# {config_text.printable(note)}\n" for note in notes)
    return head + config_text.dump(config, "", skip=others)


def _type() -> type[Config]:
    return _make_type(tuple(_algorithms().items()))


@cache
def _make_type(sections: tuple[tuple[str, type[Section]], ...]) -> type[Config]:
    def known(self: Config) -> Config:
        names = [name for name, _ in sections]
        if self.section not in names:
            near = words.nearest(self.algorithm, names)
            raise ValueError(f"algorithm: expected FILE.py or one of {names}, got {self.algorithm!r}{near}")
        try:
            self.settings.fits(self)
        except ValueError as wrong:
            elsewhere = str(wrong).partition(".")[0] in Config.model_fields  # another section's key
            raise ValueError(str(wrong) if elsewhere else f"{self.section}.{wrong}") from wrong
        return self

    fields: dict[str, Any] = {name: (section, section()) for name, section in sections}
    checks: dict[str, Any] = {"_known": model_validator(mode="after")(known)}
    return create_model("Config", __base__=Config, __validators__=checks, **fields)


def _algorithms() -> dict[str, type[Section]]:
    from fl import algorithms  # imports torch, and this module

    return {name: algorithm.Config for name, algorithm in algorithms.registered().items()}


def _imported(algorithm: str) -> None:
    """A file that is named as the algorithm brings its section; an installed is there, or says why not."""
    if code.reference(algorithm) is not None or algorithm in code.installed("algorithm"):
        from fl import algorithms

        algorithms.find(algorithm)


def _complete(tree: Mapping[str, Any]) -> bool:
    """Whether a file sets every key, as `dumps` writes it: then none of them says what the user wants."""
    given = set(config_source.leaves(tree))
    skip = _algorithms().keys() - {code.stem(str(tree.get("algorithm")))}
    there = (key for key, _, default, _ in keys() if default != NONE and key not in config_source.FREE)
    return all(key in given for key in there if key.split(".")[0] not in skip)


def _unsets(path: list[str]) -> bool:
    """Whether None is allowed for the key, and not its default."""
    section = _section_at(path[:-1])
    return section is not None and section.unsets(path[-1])


def _default_at(key: str) -> Any:
    *path, last = key.split(".")
    section = _section_at(path)
    assert section is not None
    return section.model_fields[last].default


def _section_at(path: Iterable[str]) -> type[Section] | None:
    section: type[Section] = _type()
    for part in path:
        field = section.model_fields.get(part)
        annotation = field.annotation if field else None
        if not (isinstance(annotation, type) and issubclass(annotation, Section)):
            return None
        section = annotation
    return section


def _keys(section: type[Section], prefix: str) -> Iterator[tuple[str, str, str, str]]:
    for name, field in section.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, Section):
            yield from _keys(annotation, f"{prefix}{name}.")
        else:
            meaning = "; ".join(filter(None, [field.description, effect.condition(field)]))
            default = NONE if field.default is None else config_text.value(field.default)
            meaning = " ".join(meaning.split())
            yield prefix + name, config_text.type_name(annotation), default, meaning
