"""Frame: lines as a table, without pandas; `to_pandas` where that is installed."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, overload

from fl.errors import Missing

Record = dict[str, Any]
_SHOWN = 20  # lines of a table in a notebook: the first and the last half of so many


class Frame(Sequence[Record]):
    """A list of dicts with columns.

    >>> frame = Frame([{"round": 0, "loss": 2.0}, {"round": 1, "loss": 1.5, "pruned": 3}])
    >>> len(frame), frame[1]["loss"], frame.columns
    (2, 1.5, ['round', 'loss', 'pruned'])
    >>> frame["loss"], frame["pruned"]
    ([2.0, 1.5], [None, 3])
    """

    def __init__(self, lines: Sequence[Record]) -> None:
        self._lines = [*lines]

    @property
    def columns(self) -> list[str]:
        """The keys of all lines, in the order in which they come."""
        return [*dict.fromkeys(key for line in self._lines for key in line)]

    @overload
    def __getitem__(self, at: int) -> Record: ...
    @overload
    def __getitem__(self, at: slice) -> "Frame": ...
    @overload
    def __getitem__(self, at: str) -> list[Any]: ...
    def __getitem__(self, at: Any) -> Any:
        """A line by its number, some lines, or a column by its name (None where a line has no such key)."""
        if not isinstance(at, str):
            return Frame(self._lines[at]) if isinstance(at, slice) else self._lines[at]
        if at not in self.columns:
            raise KeyError(f"expected a column out of {self.columns}, got {at!r}")
        return [line.get(at) for line in self._lines]

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._lines)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frame) and self._lines == other._lines

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __repr__(self) -> str:
        return f"Frame({len(self)} lines, {len(self.columns)} columns)"

    def to_pandas(self) -> Any:
        """A pandas.DataFrame. Missing: pandas is not installed."""
        try:
            import pandas  # type: ignore[import-untyped]
        except ImportError as missing:
            raise Missing(
                "expected the package pandas for to_pandas, got none: pip install pandas"
            ) from missing
        return pandas.DataFrame(self._lines, columns=self.columns)

    def _repr_html_(self) -> str:
        """What notebooks show."""
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        half = _SHOWN // 2
        if len(self) <= _SHOWN:
            rows = "".join(map(self._row, self._lines))
        else:
            gap = f'<tr><td colspan="{len(self.columns)}">... {len(self) - _SHOWN} more ...</td></tr>'
            first, last = self._lines[:half], self._lines[-half:]
            rows = "".join(map(self._row, first)) + gap + "".join(map(self._row, last))
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"

    def _row(self, line: Record) -> str:
        return "<tr>" + "".join(f"<td>{_cell(line.get(name))}</td>" for name in self.columns) + "</tr>"


def _cell(value: Any) -> str:
    shown = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return escape(shown[:80])
