"""What an algorithm is given (Env) and what it gives back (Round).

An algorithm is a module with

    Config                               a config.Section, its table in the file
    init(env) -> State                   before round 0
    run_round(state, t, env) -> Round    one round

and, so that models can be taken out of a run (fl/run/models.py), where its State is not made of `clients`
that each have a `model`, or where it has a server

    client_models(state) -> Population of se.Model    one per client: the model that it would use
    server_model(state) -> se.Model

State is a frozen dataclass (`Peers`, or one of its own), made of se.Model (a model), se.Bitmap (a mask),
numbers, strings, None, and Clients (one value per client, made by `env.clients`), tuples or further
dataclasses of these: that is what checkpoints can hold (fl/clients/plain.py). An algorithm neither logs nor
times nor saves: `fl.run` does that for all, from what Round and its reports say."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from statistics import fmean
from typing import Any, Generic, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

import sparse_engine as se
from fl import rng
from fl.algorithms.messages import Sent
from fl.algorithms.tasks import Inputs, P, Peer, Readers, Tasks
from fl.clients.base import C, Clients, Population
from fl.clients.columns import column, counts
from fl.clients.memory import InMemory
from fl.clients.stored import Stored
from fl.clients.view import View
from fl.config import Devices, Messages, Section, Training
from fl.train.cost import Costs
from fl.train.local import Local
from fl.train.report import Done, Report
from fl.train.trainer import Trainer
from fl.train.visit import Start, Visit, Visited
from fl.train.work import Executor, Results, Task, Value, Work, collect
from fl.world.clock import Clock
from fl.world.presence import EVERYBODY, Attendance
from fl.world.schedule import Schedule, plan
from fl.world.topology import Neighbours, Topology, from_links

Bytes = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Env:
    """The world around an algorithm."""

    config: Any  # the algorithm's own section
    num_clients: int
    num_rounds: int
    seed: int
    initial: se.Model  # w0, everything stored: all clients start from it
    topology: Topology
    executor: Executor
    devices: Devices
    training: Training
    costs: Costs
    messages: Messages = Messages()
    attendance: Attendance = EVERYBODY  # who is there in this round
    store: Callable[[Iterable[Any]], Clients[Any]] = InMemory  # where populations are kept
    spend: bool = False  # may a round drop models of the last one that nobody will read again?

    def clients(self, values: Iterable[C]) -> Clients[C]:
        """The first population, of one value per client."""
        return self.store(values)

    def alike(self, value: C) -> Clients[C]:
        """The first population, where all are alike."""
        return self.clients([value] * self.num_clients)

    def rng(self, purpose: str, t: int = 0, k: int = 0) -> np.random.Generator:
        return rng.stream(self.seed, purpose, t, k)

    def clock(self, t: int) -> Clock:
        """The clock of round t: an algorithm plans with it, `fl.run` reports with it."""
        clock, there = Clock.of(self.devices, self.num_clients, self.seed, t), self.attendance.there
        return clock if there is None else replace(clock, absent=int((~there).sum()))

    def local(self, t: int, **changes: Any) -> Local:
        """Local training in round t, with `changes` as `Local.of` takes them."""
        return Local.of(self.training, t, **changes)

    def map(self, work: Work[Task, Value], tasks: Mapping[int, Task]) -> Results[Value]:
        """`work(trainer, k, task)` for every task, side by side: values and reports, by client.

        `work`: a function that pickle finds.
        """
        return collect(self.executor, work, tasks)

    def update(
        self,
        clients: Clients[C],
        work: Work[Task, C],
        tasks: Mapping[int, Task],
        done: Callable[[int], None] = lambda k: None,
    ) -> tuple[Clients[C], dict[int, Report]]:
        """`clients` after the `work` of those who have a task, each kept as it comes, and the reports.
        `done(k)` is called when client k is kept."""
        reports: dict[int, Report] = {}

        def values() -> Iterator[tuple[int, C]]:
            for k, value, report in self.executor.run(work, tasks):
                if report is not None:
                    reports[k] = report
                yield k, value
                done(k)

        return clients.with_(values()), reports


@dataclass(frozen=True)
class Peers(Generic[P]):
    """The state of an algorithm that keeps its clients and no more."""

    clients: Clients[P]


@dataclass(frozen=True)
class Visiting(Generic[P]):
    """Work whose clients take visits (fl/train/visit.py) in round t, several at a time where that is faster.

    start(given)             what a client's visit begins with
    finish(k, given, done)   what comes of it
    """

    t: int
    visit: Visit
    start: Callable[[Inputs[P]], Start]
    finish: Callable[[int, Inputs[P], Visited], P]

    def __call__(self, trainer: Trainer, k: int, given: Inputs[P]) -> Done[P]:
        return self.many(trainer, {k: given})[k]

    def many(self, trainer: Trainer, tasks: Mapping[int, Inputs[P]]) -> dict[int, Done[P]]:
        """The same for several clients."""
        starts = {k: self.start(given) for k, given in tasks.items()}
        done = trainer.visits(self.t, starts, self.visit)
        return {k: Done(self.finish(k, given, done[k]), done[k].report) for k, given in tasks.items()}


class Traffic(NamedTuple):
    """Bytes that every client sent and received, int64 [clients, 3]: real, the paper's count, dense.

    Where there is a server, it has one more row, the last.
    """

    up: Bytes
    down: Bytes


@dataclass(frozen=True)
class Round:
    """One round's outcome. The clients that changed are those with `reports`. `facts` go to metrics.jsonl,
    `columns` (a value per client) to clients.jsonl.

    `schedule` says who waited for whom. The seconds that are reported follow from it, from the operations of
    `reports` and from the bytes of `traffic` (fl/world/clock.py).

    Accuracies are reported over all clients. Where everybody trains, `reports` have them, and `accuracy` and
    `accuracy_before` stay None. An algorithm in which clients sit out says what the model that each client
    would use reaches on its test samples (None: it has none), after and before this round's training. Clients
    that are absent (`env.attendance`) do not train and need no accuracy: a line is over those that are there.
    """

    state: Any
    models: Population[se.Model]  # what every client ends the round with, read when it is asked for
    schedule: Schedule
    traffic: Traffic
    reports: Mapping[int, Report]  # of the clients that trained
    accuracy: Sequence[float | None] | None = None
    accuracy_before: Sequence[float | None] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)


@runtime_checkable
class Algorithm(Protocol):
    Config: type[Section]

    def init(self, env: Env) -> Any: ...
    def run_round(self, state: Any, t: int, env: Env) -> Round: ...


def message_sizes(messages: Iterable[Sent]) -> Bytes:
    """[messages, 3]: their bytes; 4 bytes per stored value, as the paper counts; 4 bytes per weight."""
    return np.array([_sizes(sent) for sent in messages], dtype=np.int64).reshape(-1, 3)


def peer_sizes(clients: Population[Peer]) -> Bytes:
    """`message_sizes` of what every client sent last."""
    sent = column(clients, "sent.nbytes")
    layout = clients_layout(clients)
    stored = counts(clients, "sent.model").sum(1)
    other = layout.num_floats
    sizes = np.empty((len(clients), 3), np.int64)
    sizes[:, 0] = sent
    sizes[:, 1] = 4 * (stored + other)
    sizes[:, 2] = 4 * (layout.segments.numel + other)
    return sizes


def clients_layout(clients: Population[Peer]) -> se.Layout:
    """That of everybody's model."""
    return clients.store.layout if isinstance(clients, Stored) else clients[0].model.layout


def inputs(
    clients: Clients[P], neighbours: Neighbours, attendance: Attendance = EVERYBODY
) -> Mapping[int, Inputs[P]]:
    """Of everybody who is there, in a round in which nobody waits for anybody."""
    live, stale = attendance.live(neighbours), attendance.stale(neighbours)
    return Tasks(attendance.present(len(clients)), together(live), clients, stale=stale)


def together(neighbours: Neighbours) -> Schedule:
    """A round in which nobody waits for anybody: no times are needed to plan it."""
    return plan(neighbours, np.arange(neighbours.num_clients), 0)


def at_once(state: Peers[P], neighbours: Neighbours, update: Work[Inputs[P], P], env: Env) -> Round:
    """A round in which everybody who is there takes what its neighbours sent last and does its `update`."""
    live, stale = env.attendance.live(neighbours), env.attendance.stale(neighbours)
    schedule, traffic = together(live), exchange(live, peer_sizes(state.clients))
    who = env.attendance.present(env.num_clients)
    readers = Readers(who, schedule, state.clients, stale, spend=env.spend)
    tasks = Tasks(who, schedule, state.clients, stale=stale)
    clients, reports = env.update(state.clients, update, tasks, readers.done)
    readers.flush()
    return Round(
        Peers(clients), models=models_of(clients), schedule=schedule, traffic=traffic, reports=reports
    )


def models_of(clients: Population[Peer]) -> View[se.Model]:
    """The model of every client."""
    return View(clients, attrgetter("model"), "model")


def apart(num_clients: int) -> Schedule:
    """A round in which clients talk to a server only."""
    nobody = np.empty(0, np.int64)
    return together(from_links(num_clients, nobody, nobody))


def exchange(neighbours: Neighbours, sizes: Bytes) -> Traffic:
    """Every client receives one message from each neighbour; `sizes` as `message_sizes` has them."""
    up, down = np.zeros_like(sizes), np.zeros_like(sizes)
    _carry(neighbours, sizes, up, down)
    return Traffic(up, down)


def server(num_clients: int, clients: Sequence[int], down: Sent, up: Sequence[Sent]) -> Traffic:
    """The server sends `down` to each of `clients`, and receives one message `up` from each."""
    one, each = message_sizes([down])[0], message_sizes(up)
    sent, received = np.zeros((2, num_clients + 1, 3), np.int64)
    sent[clients], received[clients] = each, one
    sent[num_clients], received[num_clients] = len(clients) * one, each.sum(0)
    return Traffic(sent, received)


def gossip(schedule: Schedule, before: Iterable[Sent], after: Iterable[Sent]) -> Traffic:
    """Every client receives one model from each neighbour: `after` this round where it waited for it."""
    return gossip_sizes(schedule, message_sizes(before), message_sizes(after))


def gossip_sizes(schedule: Schedule, old: Bytes, new: Bytes) -> Traffic:
    """The same, of the sizes of messages."""
    up, down = exchange(schedule.neighbours, old)
    _carry(schedule.wait, new - old, up, down)
    return Traffic(up, down)


def _carry(links: Neighbours, sizes: Bytes, up: Bytes, down: Bytes) -> None:
    carried = sizes[links.indices]
    np.add.at(up, links.indices, carried)
    np.add.at(down, links.takers(), carried)


def _sizes(sent: Sent) -> tuple[int, int, int]:
    bitmap, other = sent.model.bitmap, sent.model.layout.num_floats  # counts: the model may lie elsewhere
    return sent.nbytes, 4 * (bitmap.nnz + other), 4 * (bitmap.segments.numel + other)


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are not None; None if there are none."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
