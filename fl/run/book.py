"""Where a run writes what it gives: into its directory (`Files`), or nowhere but memory (`Memory`).

The loop (fl/run/loop.py) appends lines to a book, asks it for marks of how far it goes, and hands it the
state to save. A mark of a book in memory is a number of lines.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from fl import config
from fl.config import Config
from fl.run import checkpoint, history, recorded
from fl.run.growing import NOTHING, Mark
from fl.run.history import History
from fl.run.names import CHECKPOINT, CLIENTS, GROWING, HISTORY, METRICS, PARTITION, SUMMARY
from fl.run.rundir import RunDir

Record = dict[str, Any]
Marks = Mapping[str, Mark]


class Book(Protocol):
    @property
    def path(self) -> Path | None:
        """The directory; None: there is none."""

    def begin(self, shares: Record) -> None:
        """Before the first round: empty, but for who has how many samples of each class."""

    def cut(self, marks: Marks) -> None:
        """Forget what was written after `marks`."""

    def parts(self, history: History) -> None:
        """Where and how rounds are computed from now on."""

    def append(self, line: Record, clients: list[Record]) -> None:
        """What one round gave."""

    def marks(self) -> dict[str, Mark]: ...

    def save(self, cfg: Config, t: int, marks: Marks, history: History, state: Any) -> int:
        """Keep the state after round t; the bytes that were written."""

    def rounds(self) -> list[Record]:
        """The lines of all rounds."""

    def finish(self, summary: Record) -> Record:
        """The last thing that is written; the summary as it was."""


class Files:
    """The directory of a run (fl/run/rundir.py)."""

    def __init__(self, run: RunDir) -> None:
        self.run = run

    @property
    def path(self) -> Path:
        return self.run.path

    def begin(self, shares: Record) -> None:
        self.run.write_json(PARTITION, shares)
        self.run.begin()

    def cut(self, marks: Marks) -> None:
        self.run.cut(marks)

    def parts(self, parts: History) -> None:
        self.run.write_json(HISTORY, history.to_json(parts))

    def append(self, line: Record, clients: list[Record]) -> None:
        self.run.append(METRICS, [line])
        if clients:
            self.run.append(CLIENTS, clients)

    def marks(self) -> dict[str, Mark]:
        return self.run.marks()

    def save(self, cfg: Config, t: int, marks: Marks, parts: History, state: Any) -> int:
        folder, text = self.run / CHECKPOINT, config.dumps(cfg)
        return checkpoint.save_checkpoint(folder, t, text, dict(marks), parts, state)

    def rounds(self) -> list[Record]:
        return recorded.rounds_of(self.run.path)

    def finish(self, summary: Record) -> Record:
        whole = summary | recorded.twins(self.run.path)
        self.run.write_json(SUMMARY, whole)
        return whole


class Memory:
    """Lines in lists. The state is kept by the loop alone."""

    path = None

    def __init__(self) -> None:
        self.lines: dict[str, list[Record]] = {name: [] for name in GROWING}

    def begin(self, shares: Record) -> None:
        self.cut(dict.fromkeys(GROWING, NOTHING))

    def cut(self, marks: Marks) -> None:
        for name, lines in self.lines.items():
            del lines[marks[name].bytes :]

    def parts(self, parts: History) -> None: ...

    def append(self, line: Record, clients: list[Record]) -> None:
        self.lines[METRICS].append(line)
        self.lines[CLIENTS].extend(clients)

    def marks(self) -> dict[str, Mark]:
        return {name: Mark(len(lines), "") for name, lines in self.lines.items()}

    def save(self, cfg: Config, t: int, marks: Marks, parts: History, state: Any) -> int:
        return 0

    def rounds(self) -> list[Record]:
        return self.lines[METRICS]

    def finish(self, summary: Record) -> Record:
        return summary
