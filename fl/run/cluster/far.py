"""Models and masks that lie on another machine, under a name.

Whoever has a far one knows what metrics, votes and traffic ask for (how many entries each tensor stores)
without moving anything. Numbers and bits are fetched when somebody touches them, and then kept in the object
until it is told to `drop` them: native code may hold their addresses meanwhile.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import sparse_engine as se


class Name(NamedTuple):
    """Of a model or mask: who made it (0: the process that started the run), and a number of its own."""

    maker: int
    serial: int


Near = se.Model | se.Bitmap  # far ones are some too
Find = Callable[[Name], Near]
INITIAL = Name(0, 0)  # w0, which everybody has


class FarBitmap(se.Bitmap):
    """A mask by name; or, with `model`, that of a far model."""

    name: Name | None
    model: "FarModel | None"
    _find: Find
    _near: se.Bitmap | None

    def __init__(
        self,
        segments: Any,
        stored: tuple[int, ...],
        find: Find,
        name: Name | None = None,
        model: "FarModel | None" = None,
    ) -> None:
        offsets = torch.tensor([0, *stored], dtype=torch.int64).cumsum(0)
        _set(self, segments=segments, offsets=offsets, name=name, model=model, _find=find, _near=None)

    @property
    def words(self) -> Tensor:
        return self.near().words

    @property
    def derived(self) -> Any:
        return self.near().derived

    def near(self) -> se.Bitmap:
        """The mask itself."""
        if self.model is not None:
            return self.model.near().bitmap
        near = self._near
        if near is None:
            assert self.name is not None
            found = self._find(self.name)
            assert isinstance(found, se.Bitmap)
            near = found
            _set(self, _near=near)
        return near

    def drop(self) -> None:
        """What was fetched may go."""
        _set(self, _near=None)

    def settle(self) -> None:
        """Fetch it for good: from now on it is here, and has no name."""
        self.near()
        _set(self, name=None)


class FarModel(se.Model):
    """A model by name, of which `stored` entries of each weight are known."""

    name: Name | None
    stored: tuple[int, ...]
    _find: Find
    _near: se.Model | None

    def __new__(cls, *given: Any, **fields: Any) -> Any:
        """A far one; but `dataclasses.replace`, which gives all fields of a model, gets a near one."""
        if "values" not in fields:
            return super().__new__(cls)
        mask = fields["bitmap"]
        return se.Model(**fields | {"bitmap": mask.near() if isinstance(mask, FarBitmap) else mask})

    def __init__(self, layout: se.Layout, stored: tuple[int, ...], find: Find, name: Name) -> None:
        _set(self, layout=layout, name=name, stored=stored, _find=find, _near=None)

    @property
    def bitmap(self) -> se.Bitmap:
        if self._near is not None:
            return self._near.bitmap
        return FarBitmap(self.layout.segments, self.stored, self._find, model=self)

    @property
    def values(self) -> Tensor:
        return self.near().values

    @property
    def rest(self) -> Tensor:
        return self.near().rest

    @property
    def integers(self) -> Tensor:
        return self.near().integers

    def near(self) -> se.Model:
        """The model itself."""
        near = self._near
        if near is None:
            assert self.name is not None
            found = self._find(self.name)
            assert isinstance(found, se.Model)
            near = found
            _set(self, _near=near)
        return near

    def hold(self, near: se.Model) -> None:
        """What it stands for was fetched."""
        _set(self, _near=near)

    def drop(self) -> None:
        """What was fetched may go."""
        _set(self, _near=None)

    def settle(self) -> None:
        """Fetch it for good: from now on it is here, and has no name."""
        self.near()
        _set(self, name=None)


Far = FarModel | FarBitmap


def make(kind: str, name: Name, stored: tuple[int, ...], layout: se.Layout, find: Find) -> Far:
    """A far object of this kind: a model, a mask, or the mask of a model."""
    if kind == "model":
        return FarModel(layout, stored, find, name)
    return FarBitmap(layout.segments, stored, find, name)


def _set(one: object, **fields: object) -> None:
    for name, value in fields.items():
        object.__setattr__(one, name, value)
