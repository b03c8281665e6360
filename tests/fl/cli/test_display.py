"""What a run says within a round: lines where there is no terminal, one output in a notebook, bars."""

import sys
from io import StringIO
from types import ModuleType

import pytest
from rich.console import Console

from fl.cli import display
from fl.run import runs


def console(**options):
    return Console(file=StringIO(), width=200, **options)


def test_long_rounds_have_lines_of_their_own(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(display.Lines, "every_s", 0.0)
    out = console()
    runs.start(tiny("num_rounds=2"), tmp_path / "run", runs.Options(1, display.for_console(out)))
    lines = [line for line in out.file.getvalue().splitlines() if line.startswith("round ")]
    within = [line for line in lines if "clients/s" in line]
    made = [line for line in out.file.getvalue().splitlines() if line.startswith("before the rounds  ")]
    assert [line.split("  ")[1] for line in made] == [f"{k} of 4 clients" for k in (1, 2, 3, 4)]
    assert len(lines) == 2 + 2 * 4 and len(within) == 2 * 4
    assert within[0].startswith("round    0/1  1 of 4 clients  wave 1, ")
    assert all("round left" in line and "memory" in line for line in within)
    assert "accuracy" in lines[4] and lines[4].startswith("round    0/1")


def test_short_rounds_have_one_line(tiny, tmp_path):
    out = console()
    runs.start(tiny("num_rounds=2"), tmp_path / "run", runs.Options(1, display.for_console(out)))
    assert sum(line.startswith("round ") for line in out.file.getvalue().splitlines()) == 2


def test_present_clients_are_told(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(display.Lines, "every_s", 0.0)
    out, away = console(), ("presence.kind=rate", "presence.rate=0.5")
    runs.start(tiny("num_rounds=3", *away), tmp_path / "run", runs.Options(1, display.for_console(out)))
    text = out.file.getvalue()
    rounds = [line for line in text.splitlines() if line.startswith("round ")]
    assert any("  present 2  " in line for line in rounds)
    assert any(" of 2 clients  wave" in line for line in rounds)


def test_an_empty_round_is_a_line(tiny, tmp_path):
    for terminal in (False, True):
        out = console(force_terminal=terminal)
        nobody = ("presence.kind=rate", "presence.rate=1.0", "num_rounds=1")
        path = tmp_path / f"run-{terminal}"
        runs.start(tiny(*nobody), path, runs.Options(1, display.for_console(out)))
        text = out.file.getvalue()
        assert "round 0 is empty: no client is there" in text and "present 0" in text
        assert "accuracy none" in text


class Output:
    def __init__(self):
        self.shown = []

    def update(self, bundle, raw):
        assert raw
        self.shown.append(bundle["text/plain"])


@pytest.fixture
def ipython(monkeypatch):
    """IPython's `display`, as far as it is used."""
    made = []

    def shown(bundle, *more, raw=False, display_id=False, **_):
        if not display_id:  # rich prints notes
            return None
        assert raw and not more
        made.append(Output())
        made[-1].shown.append(bundle["text/plain"])
        return made[-1]

    module, parent = ModuleType("IPython.display"), ModuleType("IPython")
    module.display = shown
    monkeypatch.setitem(sys.modules, "IPython", parent)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return made


def test_a_notebook_has_one_output_that_changes(ipython, tiny, tmp_path, monkeypatch):
    from fl.cli.notebook import Cell

    monkeypatch.setattr(Cell, "every_s", 0.0)
    out = console()
    monkeypatch.setattr(out, "is_jupyter", True)
    listener = display.for_console(out)
    assert isinstance(listener, Cell)
    runs.start(tiny("num_rounds=2"), tmp_path / "run", runs.Options(1, listener))
    (output,) = ipython
    assert output.shown[0].startswith("no round is over yet\nbefore the rounds  1 of 4 clients")
    assert output.shown[4].startswith("no round is over yet\nround    0/1  1 of 4 clients")
    assert output.shown[-1].startswith("round    1/1  accuracy") and "\n" not in output.shown[-1]
    assert "clients/s" in output.shown[-2]
