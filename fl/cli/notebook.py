"""What a run says in a notebook: one output that changes in place, and notes below it."""

from importlib import import_module
from typing import Any

from rich.console import Console

from fl.cli.display import Lines
from fl.run.events import Record

_EVERY_S = 0.5


class Cell(Lines):
    """The last round and the one that runs, in two lines. Needs IPython, which a notebook has."""

    every_s = _EVERY_S

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._last, self._now = "no round is over yet", ""
        self._output: Any = None
        self._display = import_module("IPython.display").display

    def round_finished(self, record: Record) -> None:
        self._last, self._now = self._line(record), ""
        self._show()

    def _progress(self, text: str) -> None:
        self._now = text
        self._show()

    def _show(self) -> None:
        bundle = {"text/plain": f"{self._last}\n{self._now}".rstrip()}
        if self._output is None:
            self._output = self._display(bundle, raw=True, display_id=True)
        else:
            self._output.update(bundle, raw=True)
