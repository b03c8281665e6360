"""What a configuration may say: its sections, their keys, types, defaults and meanings.

A key states beside it what it means and when it counts (`only_if`, `unless`: fl/config/effect.py).
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from fl.config import code, links
from fl.config.effect import Counts, only_if, unless
from fl.config.hardware import HARDWARE, Name
from fl.config.links import Kind
from fl.config.source import NONE, is_path
from fl.config.words import free_table, run_name

Count = Annotated[int, Field(ge=1, lt=2**31)]
Whole = Annotated[int, Field(ge=0, lt=2**63)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Watts = Annotated[float, Field(ge=0, le=1e9)]
Rounds = Annotated[float, Field(ge=1, le=1e9)]


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
    path of an .npz file (with a / in it, or ending in .npz), from the working directory, or a function of
    your own that returns the data: FILE.py:NAME or package.module:NAME"""
    root: Annotated[str | None, _LOOKED_FOR] = None
    """directory of the data sets; default: the environment variable SPARSE_DATA, else ./data"""
    size: Annotated[int, Field(ge=1, le=4096)] | None = None
    """resize images to size x size pixels"""
    normalise: bool = False
    """floats become (x - mean) / std of the training samples, as bytes always do"""
    augment: bool | None = None
    """random crops and flips in training; default: as usual for the data set (yes for CIFAR)"""
    partition: Literal["dirichlet", "pathological", "iid", "groups"] = "dirichlet"
    """how samples are divided among clients: class shares drawn at random, few classes, any samples, or one
    client per group of the data (the num_clients largest)"""
    alpha: Annotated[Positive, only_if(partition="dirichlet")] = 0.3
    """concentration of the class shares: the smaller, the more clients differ"""
    classes_per_client: Annotated[Count, only_if(partition="pathological")] = 2
    """classes that every client has samples of"""
    train_per_client: Count | None = None
    """training samples of every client (at most, of groups); default: as many as there are for everybody"""
    test_per_client: Count | None = None
    """test samples of every client, about; default: the test set divided by the clients, at least 100"""
    disjoint: Annotated[bool, unless(partition="groups")] = True
    """no training sample belongs to two clients"""
    copies: list[Count] | None = None
    """how often training samples of each class occur, to make up for rare classes; default: once"""


NETWORKS = ("small_cnn", "lenet5", "mlp", "resnet18", "vgg11", "alexnet")


class Model(Section):
    name: str = "small_cnn"
    """small_cnn, lenet5, mlp, resnet18, vgg11, alexnet, one of an installed package, or a class or function
    of your own: FILE.py:NAME, from the working directory, or package.module:NAME"""
    options: Annotated[dict[str, Any], AfterValidator(free_table), unless(name=NETWORKS)] = {}
    """what a network of your own is given, by name"""
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
    path: Annotated[Literal["program", "layers"], only_if(kernels="sparse")] = "program"
    """program: a whole training is one native call, if the network can be captured; layers: layer by layer"""
    precision: Annotated[Literal["fp32", "bf16"], only_if(kernels="sparse")] = "fp32"
    """of activations and their gradients: bf16 halves their memory; weights and sums stay float32"""


class Topology(Section):
    kind: Kind = "random"
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


_BY_HAND = only_if(hardware=None)


class Devices(Section):
    """The modelled devices (fl/world/devices.py): simulated time and energy, and who counts as fastest."""

    kind: Literal["homogeneous", "uniform", "lognormal", "trace"] = "homogeneous"
    """all alike; different hardware, drawn once per client; stragglers, drawn each round; as a file says"""
    spread: Annotated[float, Field(ge=0, le=4), unless(kind=("homogeneous", "trace"))] = 0.5
    """how much clients differ: half the range (uniform), deviation of the logarithm (lognormal)"""
    trace: Annotated[str | None, only_if(kind="trace")] = None
    """CSV file with the speed and bandwidth of every client (docs/devices.md), from the working directory"""
    hardware: Name | None = None
    """a real device, which the keys below follow (sparsefl list); default: they are set one by one"""
    peak_flops: Annotated[float, Field(ge=1e3, le=1e24), _BY_HAND] = 80e12
    """FLOP per second of a device"""
    over_peak: Annotated[float, Field(ge=1e-3, le=1e6), _BY_HAND] = 5.0
    """how much longer real programs take than the peak allows"""
    bandwidth: Annotated[float, Field(ge=1, le=1e18), _BY_HAND] = 1e9
    """bits per second of a link"""
    compute_watts: Annotated[Watts, _BY_HAND] = 450.0
    """power of a device that trains"""
    radio_watts: Annotated[Watts, _BY_HAND] = 1.0
    """power of a link that carries messages"""
    idle_watts: Annotated[Watts, _BY_HAND] = 0.0
    """power of a device that waits"""

    @model_validator(mode="before")
    @classmethod
    def _of_hardware(cls, given: Any) -> Any:
        """The figures of real hardware take the place of all others."""
        name = given.get("hardware") if isinstance(given, dict) else None
        known = HARDWARE.get(name) if isinstance(name, str) else None
        return given | known.values() if known else given

    @model_validator(mode="after")
    def _spread_fits(self) -> "Devices":
        if self.kind == "uniform" and self.spread >= 1:
            raise ValueError(f"expected a spread below 1 of uniform devices, got {self.spread}")
        _has_trace(self.kind, self.trace)
        return self


class Presence(Section):
    """Clients that come and go (fl/world/presence.py): who is there in a round. The others do not train, send
    or receive."""

    kind: Literal["always", "rate", "sessions", "trace"] = "always"
    """everybody in every round; absent at random, round by round; sessions of random length; by a file"""
    rate: Annotated[Share, only_if(kind="rate")] = 0.1
    """probability that a client is absent in a round"""
    online: Annotated[Rounds, only_if(kind="sessions")] = 10.0
    """rounds that a client stays, mean"""
    offline: Annotated[Rounds, only_if(kind="sessions")] = 5.0
    """rounds that it stays away, mean"""
    trace: Annotated[str | None, only_if(kind="trace")] = None
    """CSV file with the hours in which clients are online (docs/devices.md), from the working directory"""
    round_hours: Annotated[Positive, only_if(kind="trace")] = 1.0
    """hours of the trace from the start of a round to that of the next"""
    start_hour: Annotated[NotNegative, only_if(kind="trace")] = 0.0
    """hour of the trace in which round 0 starts"""
    absent: Annotated[Literal["last_model", "skip"], unless(kind="always")] = "last_model"
    """what neighbours of an absent client do: take the model that it sent last, or leave it out"""

    @model_validator(mode="after")
    def _trace_fits(self) -> "Presence":
        _has_trace(self.kind, self.trace)
        return self


def _has_trace(kind: str, trace: str | None) -> None:
    if kind == "trace" and trace is None:
        raise ValueError("expected the name of a file as trace with kind = trace, got none")


class Run(Section):
    store: Literal["memory", "files"] = "memory"
    """where clients' models lie between their turns: in memory, or in files of the run directory that are
    mapped into it and may be larger. The results are the same"""
    at_rest: Literal["fp32", "bf16"] = "fp32"
    """weights of clients between their turns: as they are, or rounded to bfloat16, which takes half the room
    and changes results"""
    checkpoint_every: Count | None = None
    """rounds between checkpoints; default: 1 up to 64 MB, then as often as a twentieth of the time allows"""
    checkpoint_seconds: Annotated[NotNegative | None, only_if(checkpoint_every=None)] = None
    """seconds between checkpoints, at least: they are written after rounds; default: see checkpoint_every"""
    eval_clients: Count | None = None
    """clients whose models are tested, a sample that the seed draws; default: all. Means are over them"""
    record_clients: bool = True
    """write clients.jsonl: one line per client and round"""
    patience: Count | None = None
    """stop early: after this many tested rounds without a gain in accuracy_mean; default: all rounds run"""
    min_gain: Annotated[float, Field(ge=0, lt=1), unless(patience=None)] = 0.0
    """what counts as a gain: more than this above the last one (0.01: a percentage point)"""


class Config(Section):
    """What every run has. The tree that files are read into has a section for each algorithm as well."""

    name: Annotated[str, AfterValidator(run_name)] = "run"
    """appears in reports and in the name of the run directory; default: that of the preset, with the data
    set and the algorithm where a file or --set changes them (demo-mine, demo-dispfl)"""
    description: str = ""
    """what the run is, in a sentence: appears in reports"""
    algorithm: str = "da_dpfl"
    """which algorithm runs; its settings are in the section of that name. FILE.py: one of your own, from the
    working directory; its section is named after the file, without .py"""
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
    presence: Presence = Presence()
    run: Run = Run()

    @property
    def settings(self) -> Section:
        """The section of the algorithm that runs."""
        return getattr(self, self.section)

    @property
    def section(self) -> str:
        """Its name."""
        return code.stem(self.algorithm)

    @model_validator(mode="after")
    def _fits_together(self) -> "Config":
        given = self.topology
        edges = given.edges if given.kind == "edges" else None  # else without effect, and said to be
        try:
            links.check(given.kind, self.num_clients, given.degree, given.redraw, edges)
        except ValueError as wrong:
            raise ValueError(f"topology: {wrong}") from wrong
        return self
