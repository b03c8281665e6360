"""The configuration of a run: one typed tree, read once from TOML and checked as a whole.

    config = load("demo", ["training.lr=0.05"])      a preset or a file, and changes to it
    dumps(config)                                    complete TOML: reading it gives the same tree

Every algorithm brings its own section (`fl.algorithms.<name>.Config`) under its name: a file may hold those
of several, `algorithm` says which one runs. A file may start from a preset (`extends = "cifar10"`). A wrong
key or value is answered with the key, what was expected and what came (`ConfigError`).
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator
from pydantic.fields import FieldInfo

from fl.errors import ConfigError

PRESETS = Path(__file__).with_name("presets")
NONE = "none"

Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


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


class Data(Section):
    name: str = "digits"
    """digits, cifar10, cifar100, ham10000, or the name of an .npz file"""
    root: str | None = None
    """directory of the data sets; default: the environment variable SPARSE_DATA, else ./data"""
    size: Count | None = None
    """resize images to size x size pixels"""
    augment: bool | None = None
    """random crops and flips in training; default: as usual for the data set (yes for CIFAR)"""
    partition: Literal["dirichlet", "pathological", "iid"] = "dirichlet"
    """how samples are divided among clients"""
    alpha: Positive = 0.3
    """concentration of the class shares (dirichlet)"""
    classes_per_client: Count = 2
    """classes of a client (pathological)"""
    train_per_client: Count | None = None
    """training samples of a client; default: as many as there are for everybody"""
    test_per_client: Count | None = None
    """test samples of a client, about; default: the test set divided by the clients, at least 100"""
    disjoint: bool = True
    """no training sample belongs to two clients"""


class Model(Section):
    name: str = "small_cnn"
    """small_cnn, lenet5, mlp, resnet18, vgg11 or alexnet"""
    norm: Literal["group", "batch"] | None = None
    """norm layers (resnet18, vgg11); default: the network's own, group"""
    width: Count | None = None
    """channels of the first layer (small_cnn); default 32"""
    hidden: list[Count] | None = None
    """widths of the hidden layers (mlp); default [128]"""
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """dropout before the linear layers (alexnet); default 0.5"""
    exempt: list[str] = ["*shortcut*"]
    """weights that are never pruned: names or glob patterns. ResNet's 1x1 shortcuts, as the authors' code"""


class Training(Section):
    epochs: Whole = 5
    """E: epochs of local training in a round"""
    batch_size: Count = 128
    lr: Positive = 0.1
    """learning rate of round 0"""
    lr_decay: Annotated[float, Field(gt=0, le=1)] = 0.998
    """the learning rate of round t is lr * lr_decay^t"""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """fresh every round"""
    weight_decay: NotNegative = 5e-4
    """on all parameters"""
    max_norm: Positive | None = None
    """clip the norm of the gradient; default: no clipping"""
    kernels: Literal["sparse", "dense"] = "sparse"
    """sparse: only stored weights are touched; dense: plain torch with masks, for comparison"""


class Topology(Section):
    kind: Literal["random", "regular", "ring", "line", "star", "grid", "full", "edges"] = "random"
    """who can take models from whom; random: a fresh M-subset of the others for every client and round"""
    degree: Count = 10
    """M: neighbours of a client (random, regular)"""
    redraw: bool | None = None
    """a new graph each round; default: for random only"""
    edges: str | None = None
    """file with an edge list or adjacency matrix (edges)"""


class Messages(Section):
    values: Literal["fp32", "bf16", "fp16", "q16", "q8"] = "fp32"
    """numbers in messages: exact, or in 16 or 8 bits, rounded"""
    error_feedback: bool = True
    """what a rounded message lost is added to the client's next one"""


class Devices(Section):
    """The modelled devices (fl/devices.py): simulated time and energy, and who counts as fastest."""

    kind: Literal["homogeneous", "uniform", "lognormal"] = "homogeneous"
    """all alike; different hardware, drawn once a client; stragglers, drawn each round"""
    spread: NotNegative = 0.5
    """how much clients differ (uniform, lognormal)"""
    peak_flops: Positive = 80e12
    """FLOP a second of a device"""
    over_peak: Positive = 5.0
    """how much longer real programs take than the peak allows"""
    bandwidth: Positive = 1e9
    """bit a second of a link"""
    compute_watts: NotNegative = 450.0
    radio_watts: NotNegative = 1.0
    idle_watts: NotNegative = 0.0

    @model_validator(mode="after")
    def _spread_fits(self) -> "Devices":
        if self.kind == "uniform" and self.spread >= 1:
            raise ValueError(f"expected a spread below 1 of uniform devices, got {self.spread}")
        return self


class Run(Section):
    checkpoint_every: Count = 1
    """rounds between checkpoints; a resumed run repeats what came after the last"""
    record_clients: bool = True
    """write clients.jsonl: one line a client and round"""


class Config(Section):
    """What every run has. The tree that files are read into has a section for each algorithm as well."""

    name: str = "run"
    """appears in reports and in the name of the run directory"""
    description: str = ""
    algorithm: str = "da_dpfl"
    """which algorithm runs; its settings are in the section of that name"""
    seed: Whole = 0
    """every random draw of a run follows from it"""
    num_clients: Annotated[int, Field(ge=2)] = 100
    """K"""
    num_rounds: Count = 500
    """T"""
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
        if (self.topology.kind == "edges") != (self.topology.edges is not None):
            raise ValueError(
                f"topology.edges: expected a file with kind 'edges' and no other, "
                f"got {self.topology.edges!r} with {self.topology.kind!r}"
            )
        return self


def load(source: str | Path, changes: Iterable[str] = ()) -> Config:
    """The configuration in a file, or of a preset's name, with `changes` like "training.lr=0.05"."""
    tree = _read(_find(source))
    for change in changes:
        _set(tree, change)
    return parse(tree)


def loads(text: str) -> Config:
    """The configuration that `dumps` wrote."""
    return parse(tomllib.loads(text))


def parse(tree: Mapping[str, Any]) -> Config:
    """The checked configuration of a tree of plain values."""
    try:
        return _type().model_validate(tree)
    except ValidationError as wrong:
        raise ConfigError("\n".join(_explain(error, tree) for error in wrong.errors())) from None


def changed(config: Config, changes: Iterable[str]) -> Config:
    """`config` with changes like "training.kernels='dense'"."""
    tree = plain(config)
    for change in changes:
        _set(tree, change)
    return parse(tree)


def settled(config: Config) -> Config:
    """`config` with the keys of its algorithm that follow from others: what config.toml of a run holds."""
    return config.model_copy(update={config.algorithm: config.settings.settled(config)})


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
    return {path.stem: _read(path).get("description", "") for path in sorted(PRESETS.glob("*.toml"))}


def keys() -> Iterator[tuple[str, str, str, str]]:
    """Every key there is: name, type, default, and what it means."""
    return _keys(_type(), "")


def dumps(config: Config) -> str:
    """TOML with every key of the run, so that later changes of a default do not change it."""
    others = set(_algorithms()) - {config.algorithm}
    return _dump(config, "", skip=others)


def _type() -> type[Config]:
    return _make_type(tuple(_algorithms().items()))


@cache
def _make_type(sections: tuple[tuple[str, type[Section]], ...]) -> type[Config]:
    def known(self: Config) -> Config:
        names = [name for name, _ in sections]
        if self.algorithm not in names:
            near = _nearest(self.algorithm, names)
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


def _find(source: str | Path) -> Path:
    path = Path(source)
    if path.suffix == ".toml" or path.exists():
        return path / "config.toml" if path.is_dir() else path
    preset = PRESETS / f"{source}.toml"
    if not preset.is_file():
        names = list(presets())
        near = _nearest(str(source), names)
        raise ConfigError(f"expected a preset out of {names}, or a .toml file, got {str(source)!r}{near}")
    return preset


def _read(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            tree = tomllib.load(file)
    except OSError as wrong:
        raise ConfigError(f"expected a configuration file, got {path}: {wrong.strerror}") from wrong
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as wrong:
        raise ConfigError(f"{path}: expected TOML, got {wrong}") from wrong
    base = tree.pop("extends", None)
    if base is None:
        return tree
    if not isinstance(base, str):
        raise ConfigError(f"{path}: extends: expected the name of a preset, got {base!r}")
    return _merged(_read(_find(base)), tree)


def _merged(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(base.get(key), dict)
        base[key] = _merged(base[key], value) if both else value
    return base


def _set(tree: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise ConfigError(f"expected a change as key=value, such as training.lr=0.05, got {change!r}")
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{key.strip()}: expected a key of a section, got one below the value {part!r}")
    if text.strip() == NONE:  # TOML has no null: back to the default, which is None where that is allowed
        if _unsets(path):
            tree[path[-1]] = NONE
        else:
            tree.pop(path[-1], None)
        return
    try:
        tree[path[-1]] = tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        tree[path[-1]] = text.strip()  # a bare word is a string


def _unsets(path: list[str]) -> bool:
    """Whether None is allowed for the key, and not its default."""
    section: Any = _type()
    for part in path[:-1]:
        field = section.model_fields.get(part)
        section = field.annotation if field else None
        if not (isinstance(section, type) and issubclass(section, Section)):
            return False
    return section.unsets(path[-1])


def _explain(error: Any, tree: Mapping[str, Any]) -> str:
    """One line for one of pydantic's errors."""
    key, context = ".".join(map(str, error["loc"])), error.get("ctx", {})
    given = error["input"]
    match error["type"]:
        case "extra_forbidden":
            known = list(_section_at(error["loc"][:-1]).model_fields)
            near = _nearest(str(error["loc"][-1]), known)
            return f"{key}: expected a known key, got {key} = {given!r}{near or f'; known are {known}'}"
        case "value_error":
            return f"{key}: {context['error']}" if key else str(context["error"])
        case "literal_error":
            near = _nearest(given, re.findall("'([^']*)'", context["expected"]))
            return f"{key}: expected {context['expected']}, got {given!r}{near}"
        case kind if kind in _BOUNDS:
            return f"{key}: expected a number {_BOUNDS[kind].format(**context)}, got {given!r}"
        case kind if kind in _TYPES:
            return f"{key}: expected {_TYPES[kind]}, got {given!r}"
    return f"{key}: {error['msg']}, got {given!r}"


_BOUNDS = {
    "greater_than": "above {gt}",
    "greater_than_equal": "from {ge} on",
    "less_than": "below {lt}",
    "less_than_equal": "up to {le}",
    "finite_number": "that is finite",
}
_TYPES = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "list_type": "a list",
    "model_type": "a section (a table of keys)",
}


def _nearest(word: object, known: list[str]) -> str:
    near = difflib.get_close_matches(str(word), known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def _section_at(path: Iterable[Any]) -> type[Section]:
    section: type[Section] = _type()
    for part in path:
        annotation = section.model_fields[part].annotation
        assert isinstance(annotation, type) and issubclass(annotation, Section)
        section = annotation
    return section


def _keys(section: type[Section], prefix: str) -> Iterator[tuple[str, str, str, str]]:
    for name, field in section.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, Section):
            yield from _keys(annotation, f"{prefix}{name}.")
        else:
            yield prefix + name, _type_name(annotation), _default(field), field.description or ""


def _type_name(annotation: Any) -> str:
    """In words: int, list of int, one of "a", "b"."""
    parts = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return _type_name(parts[0])
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(map(_value, parts))
    if get_origin(annotation) is list:
        return f"list of {_type_name(parts[0])}"
    if parts:  # only unions with None
        return _type_name(next(part for part in parts if part is not type(None)))
    return annotation.__name__


def _default(field: FieldInfo) -> str:
    return "none" if field.default is None else _value(field.default)


def _dump(section: Section, path: str, skip: Iterable[str] = ()) -> str:
    """The section's own keys, then its tables: in TOML a table ends only where the next one starts."""
    lines, tables = [], []
    for name in type(section).model_fields:
        value = getattr(section, name)
        if name in skip:
            continue
        if isinstance(value, Section):
            table = f"{path}.{name}" if path else name
            tables.append(f"\n[{table}]\n{_dump(value, table)}")
        else:
            shown = NONE if value is None and section.unsets(name) else value
            lines.append(f"# {name} is not set" if shown is None else f"{name} = {_value(shown)}")
    return "".join(line + "\n" for line in lines) + "".join(tables)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    assert isinstance(value, str), value
    return '"' + "".join(_ESCAPES.get(c, c if c.isprintable() else f"\\U{ord(c):08x}") for c in value) + '"'


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}
