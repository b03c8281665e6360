"""Simulation: one run, round by round, from Python or under the command line. The loop: fl/run/loop.py."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from fl import algorithms, config
from fl.config import Config, ConfigError, Loaded, code
from fl.config import text as config_text
from fl.run import executor as executors
from fl.run import origins, setup
from fl.run.book import Book, Files, Memory
from fl.run.events import Listener, Several, Warner
from fl.run.loop import Options, Run, Summary
from fl.run.names import CONFIG
from fl.run.own import Own
from fl.run.result import Result
from fl.run.rundir import RunDir
from fl.train import coverage

Source = str | Path | Config | Loaded
Changes = Mapping[str, Any] | Iterable[str]
Network = nn.Module | Callable[..., nn.Module] | str
Line = dict[str, Any]


class Simulation:
    """One run. Iterating over it trains, a round at a time, and gives each round's line (a dict; what its
    keys mean: docs/reference). Leaving the loop, or Ctrl-C, stops cleanly: iterate again and it goes on.

    source      name of a preset, path of a TOML file, or a Config
    network     a torch module (copied), or a class or function that makes one: it is given those of
                `num_classes`, `in_channels`, `size` (of an image), `in_features` and `shape` that it takes,
                and more arguments with functools.partial. Or a name, as model.name: "nets.py:TinyNet"
    data        what `fl.data.as_dataset` takes: (x, y) or (x, y, x_test, y_test) of arrays or tensors, a
                Dataset of ours, a map-style one of torch, a split of Hugging Face, the path of an .npz file
    partition   a list of training samples (indices) per client, or a function (data, num_clients, seed) that
                returns them; test samples follow the classes of these. Or a Partition of fl.data
    algorithm   name of an algorithm, path of a file with one, or a module with Config, init and run_round
    set         changes to the configuration: {"training.lr": 0.05}, or ["training.lr=0.05"]
    out         directory of the run, which must not exist or be empty; None: nothing is written
    workers     clients that are trained at a time; default: one per core. No result depends on it
    executor    where clients are trained: "local" (threads of this process), or the name of one that an
                installed package brings
    listeners   who hears of rounds: objects of subclasses of `fl.Listener`, such as `fl.CSV()`
    progress    show a bar (or lines, where there is no terminal); without it, notes are warnings of Python
    overwrite   a run in `out` may be removed

    ConfigError: something does not fit; the message names it.

    >>> import fl
    >>> simulation = fl.Simulation("demo", set={"num_rounds": 2, "training.epochs": 1}, workers=1)
    >>> for line in simulation:
    ...     print(line["round"], sorted(line)[:2])
    0 ['accuracy_before', 'accuracy_max']
    1 ['accuracy_before', 'accuracy_max']
    >>> simulation.result().summary["num_rounds"]
    2
    """

    def __init__(
        self,
        source: Source,
        *,
        network: Network | None = None,
        data: Any = None,
        partition: Any = None,
        algorithm: str | Path | ModuleType | None = None,
        set: Changes | None = None,
        out: Path | str | RunDir | None = None,
        workers: int | None = None,
        executor: str = executors.LOCAL,
        listeners: Iterable[Listener] = (),
        progress: bool = False,
        overwrite: bool = False,
        options: Options | None = None,
    ) -> None:
        options = options or _options(workers, executor, [*listeners], progress, overwrite)
        named: Line = {}  # as the command line names it
        if isinstance(data, str | Path):
            named["data.name"], data = str(data), None
        if isinstance(network, str):
            named["model.name"], network = network, None
        changes = _changes(set)
        own = Own(network=network, data=data, partition=partition)
        own.check_changes(config.changed_keys(changes))
        found = _loaded(source, [*_named(algorithm), *_changes(named), *changes])
        cfg = config.settled(own.named(found.config))
        for note in (*found.notes, *config.remarks(cfg)):
            options.listener.note(note)
        setting, links = setup.prepare(cfg, own), setup.links(cfg)  # data may be missing: nothing is written
        staying = coverage.remarks(setting.network, cfg.model.name.strip("<>"), setting.data.shape)
        for note in staying:
            options.listener.note(note)
        self.config, self.loop = cfg, Run(cfg, setting, links, options)
        self._out, self._own, self._notes = out, own, (*found.notes, *staying)
        self._memory, self._written = Memory(), isinstance(out, RunDir)
        self._lines: Generator[Line, None, None] | None = None
        self._summary: Summary = {}

    def __iter__(self) -> Iterator[Line]:
        self.close()
        self._lines = self._rounds()
        return self._lines

    def __repr__(self) -> str:
        cfg, done = self.config, self.loop.after.round + 1
        return f"Simulation({cfg.name}: {cfg.algorithm}, {done} of {cfg.num_rounds} rounds)"

    def run(self) -> Result:
        """All rounds that are left, and what came out.

        >>> Simulation("demo", set={"num_rounds": 1, "training.epochs": 1}).run()
        Result(demo: da_dpfl, 1 of 1 rounds)
        """
        self.finish()
        return self.result()

    def finish(self) -> Summary:
        """All rounds that are left, and the summary alone."""
        for _ in self:
            pass
        return self._summary

    def result(self) -> Result:
        """What came out so far."""
        if self.path is not None and self._written:
            return Result.of_directory(self.path, self._own, self.loop)
        return Result.of_memory(self._memory, self.loop)

    def close(self) -> None:
        """Stop, as after Ctrl-C; the next loop over this object goes on."""
        if self._lines is not None:
            self._lines.close()

    @property
    def path(self) -> Path | None:
        """The directory of the run."""
        if self._out is None:
            return None
        return self._out.path if isinstance(self._out, RunDir) else Path(self._out)

    def _rounds(self) -> Generator[Line, None, None]:
        with self._book() as book:
            if self.loop.after.round < 0:
                book.begin(setup.shares(self.loop.setting))
            else:
                book.cut(self.loop.after.marks)
            yield from self.loop.lines(book)
            self._summary = self.loop.finish()

    @contextmanager
    def _book(self) -> Iterator[Book]:
        """The directory, locked while this is open; else lists."""
        if self._out is None:
            yield self._memory
        elif isinstance(self._out, RunDir):
            yield Files(self._out)
        elif self._written:
            with RunDir.open(self._out) as run:
                yield Files(run)
        else:
            with RunDir.create(self._out, self.loop.options.overwrite) as run:
                run.write_text(CONFIG, config.dumps(self.config, self._notes))  # from now on it holds a run
                origins.write(run, self.config)
                self._written = True
                yield Files(run)


def run(
    source: Source,
    *,
    network: Network | None = None,
    data: Any = None,
    partition: Any = None,
    algorithm: str | Path | ModuleType | None = None,
    set: Changes | None = None,
    out: Path | str | None = None,
    workers: int | None = None,
    executor: str = executors.LOCAL,
    listeners: Iterable[Listener] = (),
    progress: bool = False,
    overwrite: bool = False,
) -> Result:
    """`fl.run`: a whole run, and what came out of it. The arguments are those of `fl.Simulation`.

    >>> import fl, numpy as np, torch
    >>> x, y = np.random.default_rng(0).integers(0, 256, (400, 8, 8), dtype=np.uint8), np.arange(400) % 4
    >>> class Net(torch.nn.Sequential):
    ...     def __init__(self, in_features, num_classes):
    ...         super().__init__(torch.nn.Flatten(), torch.nn.Linear(in_features, num_classes))
    >>> changes = {"num_rounds": 2, "num_clients": 4, "topology.degree": 2, "training.lr": 0.05}
    >>> result = fl.run("demo", network=Net, data=(x, y), set=changes)
    >>> len(result.metrics), len(result.clients), result.model(3)
    (2, 8, Model(1 weights, 128 of 256 stored (density 0.5000), 1 other tensors, 0.001 MB))
    """
    return Simulation(
        source,
        network=network,
        data=data,
        partition=partition,
        algorithm=algorithm,
        set=set,
        out=out,
        workers=workers,
        executor=executor,
        listeners=listeners,
        progress=progress,
        overwrite=overwrite,
    ).run()


def _loaded(source: Source, changes: list[str]) -> Loaded:
    if isinstance(source, str | Path):
        return config.read(source, changes)
    if isinstance(source, Config):
        source = Loaded(source)
    if not isinstance(source, Loaded):
        raise ConfigError(
            f"expected the name of a preset, the path of a TOML file or a Config, got {type(source).__name__}"
        )
    return source._replace(config=config.changed(source.config, changes)) if changes else source


def _named(algorithm: str | Path | ModuleType | None) -> list[str]:
    """The change that names an algorithm. The user hands it over: its code may be imported."""
    if algorithm is None:
        return []
    if isinstance(algorithm, str | Path):
        name = str(algorithm)
        if code.reference(name) is not None:
            code.allow(name)
            algorithms.find(name)
    else:
        origin = getattr(algorithm, "__name__", type(algorithm).__name__)
        name = origin.rpartition(".")[2]
        if algorithms.registered().get(name) is not algorithm:
            algorithms.register(name, algorithm, origin)
    return [f"algorithm={config_text.value(name)}"]


def _changes(given: Changes | None) -> list[str]:
    if given is None:
        return []
    if isinstance(given, str):
        given = [given]
    if isinstance(given, Mapping):
        given = [f"{key}={_value(key, value)}" for key, value in given.items()]
    return [*given]


def _value(key: str, value: Any) -> str:
    if value is None:
        return config.NONE
    if hasattr(value, "item") and not getattr(value, "shape", ()):  # a number of numpy or torch
        value = value.item()
    items = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(item, str | int | float) for item in items):
        raise ConfigError(f"{key}: expected a number, text or a list, got {type(value).__name__}")
    return config_text.value(value)


def _options(
    workers: int | None, executor: str, listeners: list[Listener], progress: bool, overwrite: bool
) -> Options:
    if workers is not None and workers < 1:
        raise ConfigError(f"workers: expected at least 1, got {workers}")
    executors.find(executor)
    for one in listeners:
        if not isinstance(one, Listener):
            raise ConfigError(f"listeners: expected objects of fl.Listener, got {type(one).__name__}")
    told = Several([_shown() if progress else Warner(), *listeners])
    return Options(workers, told, overwrite, executor=executor)


def _shown() -> Listener:
    from rich.console import Console

    from fl.cli import display  # only for who wants to see it

    return display.for_console(Console())
