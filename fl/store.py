"""What an algorithm keeps between rounds, taken apart into plain values and tensors, and put together again.

    dataclass              {"type": its name, "fields": {...}}
    se.State, se.Bitmap    {"state": name}, {"bitmap": name}: tensors under name/bitmap, name/values, ...
    tuple                  {"items": [...]}
    number, string, None   itself

An object that appears twice is stored once, and comes back as one. Nothing else is accepted, and nothing of
what is read decides which code runs: the types are given by the caller.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

import sparse_engine as se
from fl.errors import StoreError

Plain = Any  # what JSON holds


def take_apart(value: Any) -> tuple[Plain, dict[str, Tensor]]:
    """The plain form of `value`, and its tensors by name. Nothing is copied."""
    tensors: dict[str, Tensor] = {}
    names: dict[int, str] = {}
    return _plain(value, tensors, names), tensors


def put_together(
    plain: Plain, tensors: Mapping[str, Tensor], types: Mapping[str, type], layout: se.Layout
) -> Any:
    """The value again. `types`: dataclasses by name; `layout`: of every model and mask."""
    return _Reader(tensors, types, layout).value(plain)


def _plain(value: Any, tensors: dict[str, Tensor], names: dict[int, str]) -> Plain:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, se.State | se.Bitmap):
        kind = "state" if isinstance(value, se.State) else "bitmap"
        if id(value) not in names:
            names[id(value)] = name = str(len(names))
            parts = value.tensors() if isinstance(value, se.State) else {"words": value.words}
            tensors.update({f"{name}/{part}": tensor for part, tensor in parts.items()})
        return {kind: names[id(value)]}
    if isinstance(value, tuple) and type(value) is tuple:
        return {"items": [_plain(item, tensors, names) for item in value]}
    if is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: _plain(getattr(value, f.name), tensors, names) for f in fields(value)}
        return {"type": type(value).__name__, "fields": parts}
    known = "models, masks, numbers, strings, tuples or dataclasses"
    raise TypeError(f"expected {known}, got {type(value).__name__}")


class _Reader:
    def __init__(self, tensors: Mapping[str, Tensor], types: Mapping[str, type], layout: se.Layout) -> None:
        self.tensors, self.types, self.layout = tensors, types, layout
        self.made: dict[tuple[str, str], Any] = {}

    def value(self, plain: Plain) -> Any:
        if plain is None or isinstance(plain, bool | int | float | str):
            return plain
        match plain:
            case {"state": str(name)}:
                return self._once("state", name)
            case {"bitmap": str(name)}:
                return self._once("bitmap", name)
            case {"items": list(items)}:
                return tuple(self.value(item) for item in items)
            case {"type": str(name), "fields": dict(parts)} if name in self.types:
                return self._dataclass(self.types[name], parts)
        raise StoreError(f"expected a stored value of the types {list(self.types)}, got {str(plain)[:200]}")

    def _dataclass(self, kind: type, parts: dict[str, Plain]) -> Any:
        try:
            return kind(**{name: self.value(part) for name, part in parts.items()})
        except TypeError as wrong:
            raise StoreError(f"expected the fields of {kind.__name__}, got {list(parts)}") from wrong

    def _once(self, kind: str, name: str) -> Any:
        if (kind, name) not in self.made:
            self.made[kind, name] = self._state(name) if kind == "state" else self._bitmap(name)
        return self.made[kind, name]

    def _state(self, name: str) -> se.State:
        found = {part: self._tensor(f"{name}/{part}") for part in ("bitmap", "values", "rest", "integers")}
        try:
            return se.State.from_tensors(self.layout, found)
        except ValueError as wrong:
            raise StoreError(f"model {name}: {wrong}") from wrong

    def _bitmap(self, name: str) -> se.Bitmap:
        try:
            return self.layout.bitmap(self._tensor(f"{name}/words"))
        except ValueError as wrong:
            raise StoreError(f"mask {name}: {wrong}") from wrong

    def _tensor(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise StoreError(f"expected a tensor {name}, got none")
        return self.tensors[name]
