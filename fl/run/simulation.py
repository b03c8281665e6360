"""Simulation: one run, round by round, from Python or under the command line. The loop: fl/run/loop.py."""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from fl import config
from fl.config import code
from fl.run import checkpoint, given, origins, recorded, setup, standing
from fl.run import executor as executors
from fl.run.book import Book, Files, Memory
from fl.run.events import Listener
from fl.run.given import CONFIGURED, Changes, Source
from fl.run.loop import Options, Run, Summary
from fl.run.names import CHECKPOINT, CONFIG
from fl.run.own import Own
from fl.run.result import Result
from fl.run.rundir import RunDir
from fl.train import coverage, places
from fl.train.trainer import Trainer
from fl.train.worker import Worker
from fl.units import counted

Network = nn.Module | Callable[..., nn.Module] | str
Line = dict[str, Any]


class Simulation:
    """One run. Iterating over it trains, a round at a time, and gives each round's line (a dict; what its
    keys mean: docs/reference). Leaving the loop, or Ctrl-C, stops cleanly: iterate again and it goes on, or
    `close` it, and another may go on in its directory (`resume`).

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
    executor    where clients are trained: "local" (threads of this process), "ray" (a cluster, at `address`:
                docs/cluster.md), or the name of one that an installed package brings
    listeners   what hears of rounds: objects of subclasses of `fl.Listener`, such as `fl.CSV()`
    progress    show a bar (or lines, where there is no terminal); without it, notes are warnings of Python
    overwrite   a run in `out` may be removed
    energy      measure the joules of every round, with the meters that this machine has (docs/energy.md)
    device      where clients are trained: "cpu", "cuda" (the first GPU), "cuda:1", "all" (every GPU), or
                several with commas: "all,cpu"; a GPU has one worker (docs/gpu.md)

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
        data: Any = CONFIGURED,
        partition: Any = None,
        algorithm: str | Path | ModuleType | None = None,
        set: Changes | None = None,
        out: Path | str | RunDir | None = None,
        workers: int | None = None,
        executor: str = executors.LOCAL,
        address: str | None = None,
        listeners: Iterable[Listener] = (),
        progress: bool = False,
        overwrite: bool = False,
        energy: bool = False,
        device: str = places.CPU,
        options: Options | None = None,
    ) -> None:
        how = workers, executor, [*listeners], progress, overwrite, energy, device, address
        options = options or given.options(*how)
        options.check_device()
        where = places.find(options.device)
        named: Line = {}  # as the command line names it
        data = given.data(data)
        if isinstance(data, str | Path):
            named["data.name"], data = str(data), None
        if isinstance(network, str):
            named["model.name"], network = network, None
        changes = given.changes(set)
        own = Own(network=network, data=data, partition=partition)
        own.check_changes(config.changed_keys(changes))
        found = given.loaded(source, [*given.algorithm(algorithm), *given.changes(named), *changes])
        cfg = config.settled(own.named(found.config))
        for note in (*found.notes, *config.remarks(cfg)):
            options.listener.note(note)
        setting, links = (
            setup.prepare(cfg, own, where),
            setup.links(cfg),
        )  # data may be missing: nothing is written
        staying = coverage.remarks(setting.network, cfg.model.name.strip("<>"), setting.data.shape)
        mixture = [note for note in (places.note(where),) if note is not None]
        for note in (*staying, *mixture):
            options.listener.note(note)
        self.config, self.loop = cfg, Run(cfg, setting, links, options)
        self._out, self._own, self._notes = out, own, (*found.notes, *staying)
        self._memory, self._written = Memory(), isinstance(out, RunDir)
        self._lines: Generator[Line, None, None] | None = None
        self._summary: Summary = {}

    @classmethod
    def resume(
        cls,
        path: Path | str,
        *,
        network: Network | None = None,
        data: Any = CONFIGURED,
        partition: Any = None,
        algorithm: str | Path | ModuleType | None = None,
        workers: int | None = None,
        executor: str = executors.LOCAL,
        address: str | None = None,
        listeners: Iterable[Listener] = (),
        progress: bool = False,
        energy: bool = False,
        device: str = places.CPU,
        allow_mixed: bool = False,
        trust: bool = False,
    ) -> "Simulation":
        """The run in the directory `path`, after its last whole checkpoint; iterating goes on with it.

        network, data, partition, algorithm     what the run was started with from Python, once more: a
                    directory holds none of it
        workers, executor, address, listeners, progress, energy, device  as for a new one
        allow_mixed     go on where numbers come out otherwise than before (another machine, version)
        trust           import whatever code the directory names: only where you know who made it

        RunDirError: there is no run, or it is damaged. ConfigError: something that it was started with is not
        given, or is another.

        >>> import fl, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     first = fl.Simulation("demo", set={"num_rounds": 3, "training.epochs": 1}, out=folder)
        ...     line = next(iter(first))
        ...     first.close()
        ...     [line["round"] for line in fl.Simulation.resume(folder)]
        [1, 2]
        """
        how = workers, executor, [*listeners], progress, False, energy, device, address
        options = given.options(*how)
        options = replace(options, allow_mixed=allow_mixed)
        if trust:
            code.trust()
        given.algorithm(algorithm)  # its settings are a section of the configuration
        with RunDir.open(path) as run:
            cfg, _ = recorded.config_of(run.path)
            made = cls(cfg, network=network, data=data, partition=partition, out=path, options=options)
            made._written = True
            made._stand(run)
        return made

    def _stand(self, run: RunDir) -> None:
        """Where the run in the directory does."""
        checkpoint.clean(run / CHECKPOINT)
        if checkpoint.rounds(run / CHECKPOINT):
            origins.compare(run, self.config, self.loop.options.listener)
            standing.put(run, self.loop)
        else:
            standing.check_not_begun(run, self.config, len(recorded.rounds_of(run.path)))
            origins.write(run, self.config)  # no round is done: it starts now

    def __iter__(self) -> Iterator[Line]:
        self.close()
        self._lines = self._rounds()
        return self._lines

    def __repr__(self) -> str:
        cfg, done = self.config, self.loop.after.round + 1
        return f"Simulation({cfg.name}: {cfg.algorithm}, {done} of {counted(cfg.num_rounds, 'round')})"

    def run(self) -> Result:
        """All rounds that are left, and what came out.

        >>> Simulation("demo", set={"num_rounds": 1, "training.epochs": 1}).run()
        Result(demo: da_dpfl, 1 of 1 round)
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

    def trainer(self) -> Trainer:
        """Who takes single turns of this run's clients, outside of its rounds, one after the other.

        >>> import fl
        >>> from fl.train.local import Local
        >>> simulation = fl.Simulation("demo")
        >>> trainer = simulation.trainer()
        >>> turn = trainer.turn(3, 0, trainer.initial)                  # client 3, round 0, from w0
        >>> report = turn.train(Local.of(simulation.config.training, 0, epochs=1))
        >>> report.samples == trainer.num_samples(3), turn.model().density
        (True, 1.0)
        """
        return Worker(self.loop.setting)

    def close(self) -> None:
        """Stop, as after Ctrl-C, and let go of the directory; the next loop over this object goes on."""
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
                notes = (*self._notes, f"clients train as {self.loop.path}")
                run.write_text(CONFIG, config.dumps(self.config, notes))  # from now on it holds a run
                origins.write(run, self.config)
                self._written = True
                yield Files(run)


def run(
    source: Source,
    *,
    network: Network | None = None,
    data: Any = CONFIGURED,
    partition: Any = None,
    algorithm: str | Path | ModuleType | None = None,
    set: Changes | None = None,
    out: Path | str | None = None,
    workers: int | None = None,
    executor: str = executors.LOCAL,
    address: str | None = None,
    listeners: Iterable[Listener] = (),
    progress: bool = False,
    overwrite: bool = False,
    energy: bool = False,
    device: str = places.CPU,
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
        address=address,
        listeners=listeners,
        progress=progress,
        overwrite=overwrite,
        energy=energy,
        device=device,
    ).run()
