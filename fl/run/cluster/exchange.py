"""Models and masks between processes: brought from keepers (`taken`), and left there (`Copies`)."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from fl.run.cluster import packing
from fl.run.cluster.far import Name, Near

PIECE = 64 << 20  # bytes that one call to a keeper asks for or sends, about


class Lost(Exception):
    """A keeper did not answer, or has not what it should."""


def answer(call: Any) -> Any:
    """The result of a call to a keeper. Lost: it died."""
    import ray

    try:
        return ray.get(call)
    except ray.exceptions.RayError as wrong:
        raise Lost(str(wrong)) from None


def taken(keeper: Any, names: Sequence[Name]) -> Iterator[tuple[Name, packing.Blob]]:
    """What a keeper has, a piece at a time; the next one is on its way while one is read."""
    pieces = [*_pieces(keeper, names)]
    calls = deque[Any]()
    for i, piece in enumerate(pieces):
        calls.extend(keeper.give.remote([*map(tuple, one)]) for one in pieces[i + len(calls) : i + 2])
        for name, blob in zip(piece, answer(calls.popleft()), strict=True):
            if blob is None:
                raise Lost(f"expected {name} at its keeper, got nothing")
            yield name, blob


def _pieces(keeper: Any, names: Sequence[Name]) -> Iterator[list[Name]]:
    """About PIECE bytes each."""
    sizes = answer(keeper.sizes.remote([*map(tuple, names)])) if len(names) > 1 else [0] * len(names)
    piece, size = list[Name](), 0
    for name, one in zip(names, sizes, strict=True):
        if piece and size + one > PIECE:
            yield piece
            piece, size = [], 0
        piece.append(name)
        size += one
    if piece:
        yield piece


class Copies:
    """New models and masks on their way to a keeper: a piece at a time, and one call ahead."""

    def __init__(self, keeper: Any) -> None:
        self._keeper, self._piece, self._size = keeper, dict[Name, packing.Blob](), 0
        self._sent = list[Any]()

    def add(self, fresh: Mapping[Name, Near]) -> None:
        for name, one in fresh.items():
            self.send({name: packing.encoded(one, name)})

    def send(self, blobs: Mapping[Name, packing.Blob]) -> None:
        self._piece.update(blobs)
        self._size += sum(len(data) for _, data in blobs.values())
        if self._size > PIECE:
            self._flush()

    def wait(self) -> None:
        """Until the keeper has all of them."""
        self._flush()
        self._settle(0)

    def _flush(self) -> None:
        if self._piece:
            self._settle(1)
            piece = {tuple(name): blob for name, blob in self._piece.items()}
            self._sent.append(self._keeper.keep.remote(piece))
            self._piece, self._size = {}, 0

    def _settle(self, left: int) -> None:
        while len(self._sent) > left:
            answer(self._sent.pop(0))


def forget(keeper: Any, names: Iterable[Name]) -> None:
    """Tell a keeper that nobody refers to these; it may be dead."""
    with suppress(Exception):
        keeper.forget.remote([*map(tuple, names)])
