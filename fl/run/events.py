"""Who is told what a run does.

A Listener hears of rounds from the loop's thread, and of waves and clients from others.
"""

import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fl.config import Config
from fl.run.meters.energy import NONE as NO_METER

Record = dict[str, Any]


class Listener:
    """`fl.Listener`: hears everything, does nothing. One of your own is a subclass with the methods that it
    wants; an error in it ends the run. `client_finished` comes from workers' threads, several at a time.

    >>> import fl
    >>> class Best(fl.Listener):
    ...     accuracy = 0.0
    ...     def round_finished(self, record):
    ...         self.accuracy = max(self.accuracy, record["accuracy_mean"])
    >>> best = Best()
    >>> result = fl.run("demo", set={"num_rounds": 2, "training.epochs": 1}, listeners=[best])
    >>> best.accuracy == result.summary["accuracy_best"]
    True
    """

    def run_started(self, config: Config, path: Path | None, first: int) -> None:
        """Round `first` comes next. `path`: the directory of the run; None: it has none."""

    def path_chosen(self, path: str) -> None:
        """How clients are trained, and why so: "program (23 steps)", "layers (no program: ...)"."""

    def meters_chosen(self, facts: Mapping[str, str]) -> None:
        """Where measured joules come from, or why there are none: {"energy of CPU": "no meter: ..."}. Only
        where somebody asked for them."""

    def round_started(self, t: int) -> None:
        """Round t begins."""

    def clients_present(self, clients: int) -> None:
        """`clients` clients are there in the round that begins; said only where clients come and go."""

    def wave_started(self, clients: int) -> None:
        """`clients` clients begin to train."""

    def client_finished(self, k: int) -> None:
        """Client k is done, in the thread that trained it."""

    def round_finished(self, record: Record) -> None:
        """`record`: the line of the round in metrics.jsonl."""

    def note(self, text: str) -> None:
        """Something that the user should know."""

    def run_stopped(self) -> None:
        """Finished, failed or interrupted."""


class Warner(Listener):
    """Notes as warnings of Python, for users who see nothing else."""

    def meters_chosen(self, facts: Mapping[str, str]) -> None:
        if all(what.startswith(NO_METER) for what in facts.values()):
            self.note("; ".join(f"{fact}: {what}" for fact, what in facts.items()))

    def note(self, text: str) -> None:
        warnings.warn(text, stacklevel=_outside())


def _outside() -> int:
    """The stack level of the first caller that is not this package: its line is what a warning is about."""
    package, level = str(Path(__file__).parents[1]), 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        frame, level = frame.f_back, level + 1
    return level


class Several(Listener):
    """Hands everything on to each."""

    def __init__(self, listeners: Iterable[Listener]) -> None:
        self.listeners = [*listeners]

    def run_started(self, config: Config, path: Path | None, first: int) -> None:
        for one in self.listeners:
            one.run_started(config, path, first)

    def path_chosen(self, path: str) -> None:
        for one in self.listeners:
            one.path_chosen(path)

    def meters_chosen(self, facts: Mapping[str, str]) -> None:
        for one in self.listeners:
            one.meters_chosen(facts)

    def round_started(self, t: int) -> None:
        for one in self.listeners:
            one.round_started(t)

    def clients_present(self, clients: int) -> None:
        for one in self.listeners:
            one.clients_present(clients)

    def wave_started(self, clients: int) -> None:
        for one in self.listeners:
            one.wave_started(clients)

    def client_finished(self, k: int) -> None:
        for one in self.listeners:
            one.client_finished(k)

    def round_finished(self, record: Record) -> None:
        for one in self.listeners:
            one.round_finished(record)

    def note(self, text: str) -> None:
        for one in self.listeners:
            one.note(text)

    def run_stopped(self) -> None:
        for one in self.listeners:
            one.run_stopped()
