"""The configuration of a run: one typed tree, read once from TOML and checked as a whole.

    config = load("demo", ["training.lr=0.05"])      a preset or a file, and changes to it
    dumps(config)                                    complete TOML: reading it gives the same tree

Every algorithm brings its own section (`fl.algorithms.<name>.Config`) under its name: a file may hold those
of several, `algorithm` says which one runs. A file may start from a preset (`extends = "cifar10"`). A wrong
key or value is answered with the key, what was expected and what came (`ConfigError`).
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    model_validator,
)

from fl import config_effect, config_source, config_text, config_words
from fl.config_effect import Counts, only_if, unless
from fl.config_source import NONE, PRESETS, Origin, is_path
from fl.errors import ConfigError
from fl.names import run_name

__all__ = ["PRESETS", "ConfigError", "only_if", "unless"]


Count = Annotated[int, Field(ge=1, lt=2**31)]
Whole = Annotated[int, Field(ge=0, lt=2**63)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Watts = Annotated[float, Field(ge=0, le=1e9)]


class Section(BaseModel):
    """A table of the file. Unknown keys are refused, values are not converted, nothing changes later."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _none(cls, given: Any) -> Any:
        """TOML has no null: "none" is one where a key that may be unset is set by default."""
        if not isinstance(given, dict):
            return given
        return {key: None if value == NONE and cls.unsets(key) else value for key, value in given.items()}

    @classmethod
    def unsets(cls, key: str) -> bool:
        """Whether None is allowed, and not the default."""
        field = cls.model_fields.get(key)
        return field is not None and field.default is not None and type(None) in get_args(field.annotation)

    def fits(self, run: "Config") -> None:
        """Raises ValueError("key: expected ..., got ...") where an algorithm cannot run like this."""

    def settled(self, run: "Config") -> "Section":
        """An algorithm's section with the keys that follow from others, as they are in this run."""
        return self

    def trainings(self, given: "Training") -> tuple["Training", ...]:
        """The local trainings of a client in a round of an algorithm, one after the other.

        Keys of the algorithm's section that `training` has too take the place of those.
        """
        own = {key: getattr(self, key) for key in Training.model_fields if key in type(self).model_fields}
        return (given.model_copy(update=own),)

    def unread(self) -> Mapping[str, str]:
        """Keys and sections of others that the algorithm does not read, each with a reason."""
        return {}


_LOOKED_FOR = Counts(
    lambda data: data.name != "digits" and not is_path(data.name),
    lambda at: f"with another {at}name than digits or a path",
)


class Data(Section):
    name: str = "digits"
    """digits, cifar10, cifar100, ham10000, NAME of a file NAME.npz in the directory of the data sets, or the
    path of an .npz file (with a / in it, or ending in .npz), from the working directory"""
    root: Annotated[str | None, _LOOKED_FOR] = None
    """directory of the data sets; default: the environment variable SPARSE_DATA, else ./data"""
    size: Annotated[int, Field(ge=1, le=4096)] | None = None
    """resize images to size x size pixels"""
    augment: bool | None = None
    """random crops and flips in training; default: as usual for the data set (yes for CIFAR)"""
    partition: Literal["dirichlet", "pathological", "iid"] = "dirichlet"
    """how samples are divided among clients: class shares drawn at random, few classes, or any samples"""
    alpha: Annotated[Positive, only_if(partition="dirichlet")] = 0.3
    """concentration of the class shares: the smaller, the more clients differ"""
    classes_per_client: Annotated[Count, only_if(partition="pathological")] = 2
    """classes that every client has samples of"""
    train_per_client: Count | None = None
    """training samples of every client; default: as many as there are for everybody"""
    test_per_client: Count | None = None
    """test samples of every client, about; default: the test set divided by the clients, at least 100"""
    disjoint: bool = True
    """no training sample belongs to two clients"""
    copies: list[Count] | None = None
    """how often training samples of each class occur, to make up for rare classes; default: once"""


class Model(Section):
    name: str = "small_cnn"
    """small_cnn, lenet5, mlp, resnet18, vgg11 or alexnet"""
    norm: Annotated[Literal["group", "batch"] | None, only_if(name=("resnet18", "vgg11"))] = None
    """norm layers; default: the network's own, group"""
    width: Annotated[Count | None, only_if(name="small_cnn")] = None
    """channels of the first layer; default 32"""
    hidden: Annotated[list[Count] | None, only_if(name="mlp")] = None
    """widths of the hidden layers; default [128]"""
    dropout: Annotated[Annotated[float, Field(ge=0, lt=1)] | None, only_if(name="alexnet")] = None
    """dropout before the linear layers; default 0.5"""
    exempt: list[str] = ["*shortcut*"]
    """weights that are never pruned: names or glob patterns. ResNet's 1x1 shortcuts, as the authors' code"""


class Training(Section):
    epochs: Whole = 5
    """E: epochs of local training per round"""
    batch_size: Count = 128
    """samples per step of SGD; the last batch of an epoch may be smaller"""
    lr: Positive = 0.1
    """learning rate of round 0"""
    lr_decay: Annotated[float, Field(gt=0, le=1)] = 0.998
    """the learning rate of round t is lr * lr_decay^t"""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """of SGD; it starts from 0 every round"""
    weight_decay: NotNegative = 5e-4
    """on all parameters"""
    max_norm: Positive | None = None
    """clip the norm of the gradient; default: no clipping"""
    kernels: Literal["sparse", "dense"] = "sparse"
    """sparse: only stored weights are touched; dense: plain torch with masks, for comparison"""


class Topology(Section):
    kind: Literal["random", "regular", "ring", "line", "star", "grid", "full", "edges"] = "random"
    """who can take models from whom; random: a fresh M-subset of the others for every client and round"""
    degree: Annotated[Count, only_if(kind=("random", "regular"))] = 10
    """M: neighbours of every client"""
    redraw: Annotated[bool | None, unless(kind=("full", "edges"))] = None
    """a new graph each round; default: for random only"""
    edges: Annotated[str | None, only_if(kind="edges")] = None
    """file with an edge list or adjacency matrix"""


class Messages(Section):
    values: Literal["fp32", "bf16", "fp16", "q16", "q8"] = "fp32"
    """numbers in messages: exact, or in 16 or 8 bits, rounded"""
    error_feedback: Annotated[bool, unless(values="fp32")] = True
    """what a rounded message lost is added to the client's next one"""


class Devices(Section):
    """The modelled devices (fl/devices.py): simulated time and energy, and who counts as fastest."""

    kind: Literal["homogeneous", "uniform", "lognormal"] = "homogeneous"
    """all alike; different hardware, drawn once per client; stragglers, drawn each round"""
    spread: Annotated[float, Field(ge=0, le=4), unless(kind="homogeneous")] = 0.5
    """how much clients differ: half the range (uniform), deviation of the logarithm (lognormal)"""
    peak_flops: Annotated[float, Field(ge=1e3, le=1e24)] = 80e12
    """FLOP per second of a device"""
    over_peak: Annotated[float, Field(ge=1e-3, le=1e6)] = 5.0
    """how much longer real programs take than the peak allows"""
    bandwidth: Annotated[float, Field(ge=1, le=1e18)] = 1e9
    """bits per second of a link"""
    compute_watts: Watts = 450.0
    """power of a device that trains"""
    radio_watts: Watts = 1.0
    """power of a link that carries messages"""
    idle_watts: Watts = 0.0
    """power of a device that waits"""

    @model_validator(mode="after")
    def _spread_fits(self) -> "Devices":
        if self.kind == "uniform" and self.spread >= 1:
            raise ValueError(f"expected a spread below 1 of uniform devices, got {self.spread}")
        return self


class Run(Section):
    checkpoint_every: Count | None = None
    """rounds between checkpoints; default: 1 up to 64 MB, then as often as a twentieth of the time allows"""
    record_clients: bool = True
    """write clients.jsonl: one line per client and round"""


class Config(Section):
    """What every run has. The tree that files are read into has a section for each algorithm as well."""

    name: Annotated[str, AfterValidator(run_name)] = "run"
    """appears in reports and in the name of the run directory; default: that of the preset, with the data
    set and the algorithm where a file or --set changes them (demo-mine, demo-dispfl)"""
    description: str = ""
    """what the run is, in a sentence: appears in reports"""
    algorithm: str = "da_dpfl"
    """which algorithm runs; its settings are in the section of that name"""
    seed: Whole = 0
    """every random draw of a run follows from it"""
    num_clients: Annotated[int, Field(ge=2, lt=2**31)] = 100
    """K: clients of the federation"""
    num_rounds: Count = 500
    """T: rounds of the run"""
    data: Data = Data()
    model: Model = Model()
    training: Training = Training()
    topology: Topology = Topology()
    messages: Messages = Messages()
    devices: Devices = Devices()
    run: Run = Run()

    @property
    def settings(self) -> Section:
        """The section of the algorithm that runs."""
        return getattr(self, self.algorithm)

    @model_validator(mode="after")
    def _fits_together(self) -> "Config":
        if self.topology.kind in ("random", "regular") and self.topology.degree >= self.num_clients:
            raise ValueError(
                f"topology.degree: expected fewer neighbours than num_clients = {self.num_clients}, "
                f"got {self.topology.degree}"
            )
        if self.topology.kind == "edges" and self.topology.edges is None:
            raise ValueError("topology.edges: expected a file with topology.kind = edges, got none")
        return self


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
    config = parse(found.tree)
    if algorithm is None:
        refuse_unread([config], found.keys(Origin.CHANGE))
    notes = _noted(found, config, config_effect.unfit if algorithm else config_effect.without_effect)
    return Loaded(parse(found.tree) if notes else config, tuple(notes))


def refuse_unread(configs: Iterable[Config], keys: Iterable[str]) -> None:
    """ConfigError where none of `configs` reads one of the `keys`, which somebody set."""
    unread = [config_effect.without_effect(config, _algorithms()) for config in configs]
    wrong = {key: unread[0][key] for key in keys if unread and all(key in one for one in unread)}
    if wrong:
        lines = (f"{key}: expected a key that has an effect here: {why}" for key, why in wrong.items())
        raise ConfigError("\n".join(lines))


def changed_keys(changes: Iterable[str]) -> list[str]:
    """The keys of changes like "training.lr=0.05"."""
    source = config_source.Source({})
    source.change(changes, _unsets)
    return source.keys(Origin.CHANGE)


def _noted(found: config_source.Source, config: Config, rule: config_effect.Rule) -> list[str]:
    """Notes of what has no effect by the rule; in the tree, keys that may be unset are."""
    notes = []
    unfit = config_effect.unfit(config, _algorithms())
    for key, why in rule(config, _algorithms()).items():
        layer, section = found.origin.get(key), key.split(".")[0]
        if layer is None or (section in _algorithms() and section != config.algorithm):
            continue  # a file may hold the sections of several algorithms
        unset = key in unfit and _default_at(key) is None
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
    try:
        return _type().model_validate(tree)
    except ValidationError as wrong:
        keys = [key for key, *_ in _keys(_type(), "")]
        running = str(tree.get("algorithm", Config.model_fields["algorithm"].default))
        others = _algorithms().keys() - {running}
        lines = (config_words.explain(error, keys, others) for error in wrong.errors())
        raise ConfigError("\n".join(lines)) from None


def changed(config: Config, changes: Iterable[str]) -> Config:
    """`config` with changes like "training.kernels='dense'"."""
    source = config_source.Source(plain(config))
    source.change(changes, _unsets)
    return parse(source.tree)


def settled(config: Config) -> Config:
    """`config` with the keys of its algorithm that follow from others: what config.toml of a run holds."""
    return config.model_copy(update={config.algorithm: config.settings.settled(config)})


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
    others = set(_algorithms()) - {config.algorithm}
    head = "".join(f"# {config_text.printable(note)}\n" for note in notes)
    return head + config_text.dump(config, "", skip=others)


def _type() -> type[Config]:
    return _make_type(tuple(_algorithms().items()))


@cache
def _make_type(sections: tuple[tuple[str, type[Section]], ...]) -> type[Config]:
    def known(self: Config) -> Config:
        names = [name for name, _ in sections]
        if self.algorithm not in names:
            near = config_words.nearest(self.algorithm, names)
            raise ValueError(f"algorithm: expected one of {names}, got {self.algorithm!r}{near}")
        try:
            self.settings.fits(self)
        except ValueError as wrong:
            elsewhere = str(wrong).partition(".")[0] in Config.model_fields  # another section's key
            raise ValueError(str(wrong) if elsewhere else f"{self.algorithm}.{wrong}") from wrong
        return self

    fields: dict[str, Any] = {name: (section, section()) for name, section in sections}
    checks: dict[str, Any] = {"_known": model_validator(mode="after")(known)}
    return create_model("Config", __base__=Config, __validators__=checks, **fields)


def _algorithms() -> dict[str, type[Section]]:
    from fl import algorithms  # imports torch, and this module

    return {name: algorithm.Config for name, algorithm in algorithms.registered().items()}


def _complete(tree: Mapping[str, Any]) -> bool:
    """Whether a file sets every key, as `dumps` writes it: then none of them says what the user wants."""
    given = set(config_source.leaves(tree))
    skip = _algorithms().keys() - {str(tree.get("algorithm"))}
    wanted = (key for key, _, default, _ in keys() if default != NONE and key.split(".")[0] not in skip)
    return all(key in given for key in wanted)


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
            meaning = "; ".join(filter(None, [field.description, config_effect.condition(field)]))
            default = NONE if field.default is None else config_text.value(field.default)
            meaning = " ".join(meaning.split())
            yield prefix + name, config_text.type_name(annotation), default, meaning
