"""What an algorithm keeps between rounds, taken apart into plain values and tensors, and put together again.

    dataclass              {"type": its name, "fields": {...}}
    se.Model, se.Bitmap    {"state": name}, {"bitmap": name}: tensors under name/bitmap, name/values, ...
    tuple                  {"items": [...]}
    Clients                {"clients": [...], "versions": [...]}: a value and a version per client
    number, string, None   itself

An object that appears twice is stored once, and comes back as one. Nothing else is accepted, and nothing of
what is read decides which code runs: the types are given by the caller, and what is read is compared with
the hints of their fields (`check`). `Clients[X]` and `tuple[X, ...]` in a state hold one X per client.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

import sparse_engine as se
from fl.clients.base import Clients
from fl.clients.memory import InMemory
from fl.clients.stored import Stored
from fl.errors import StoreError

Plain = Any  # what JSON holds
Into = Callable[[Iterable[Any], Iterable[int]], Clients[Any]]  # values and versions -> a population
_INTEGERS = 1 << 63  # integers are below, in size


class Wanted(NamedTuple):
    """What a tensor must be before it is read: its dtype, and how many entries it has."""

    dtype: torch.dtype
    least: int
    most: int


def take_apart(value: Any) -> tuple[Plain, dict[str, Tensor]]:
    """The plain form of `value`, and its tensors by name. Nothing is copied."""
    tensors: dict[str, Tensor] = {}
    names: dict[int, tuple[Any, str]] = {}  # with the object, so that its id stays its own
    return _plain(value, tensors, names), tensors


def put_together(
    plain: Plain,
    tensors: Mapping[str, Tensor],
    types: Mapping[str, type],
    layout: se.Layout,
    into: Into = InMemory,
) -> Any:
    """The value again. `types`: dataclasses by name; `layout`: of every model and mask; `into`: where
    populations are kept."""
    try:
        return _Reader(tensors, types, layout, into).value(plain)
    except RecursionError:
        raise StoreError("expected a state of few levels, got values nested too deeply") from None


def wanted(plain: Plain, layout: se.Layout) -> dict[str, Wanted]:
    """The tensors of a plain form by name, and what each must be."""
    words = Wanted(torch.int64, layout.segments.num_words, layout.segments.num_words)
    floats, integers = (_entries(part) for part in (layout.floats, layout.integers))
    model = {
        "bitmap": words,
        "values": Wanted(torch.float32, 0, layout.segments.numel),
        "rest": Wanted(torch.float32, floats, floats),
        "integers": Wanted(torch.int64, integers, integers),
    }
    parts = {"state": model, "bitmap": {"words": words}}
    return {f"{name}/{part}": what for kind, name in _named(plain) for part, what in parts[kind].items()}


def check(value: Any, hint: Any, num_clients: int, where: str = "state") -> None:
    """StoreError: `value` is not of the type `hint`, or has not one item per client where it should."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for option in options:
        if _is(value, option):
            _check_parts(value, option, num_clients, where)
            return
    wanted = " or ".join(getattr(option, "__name__", str(option)) for option in options)
    raise StoreError(f"{where}: expected {wanted}, got {str(value)[:60]} ({type(value).__name__})")


def _check_parts(value: Any, hint: Any, num_clients: int, where: str) -> None:
    if get_origin(hint) in (tuple, Clients):
        hints = get_args(hint)
        if hints[-1] is Ellipsis or get_origin(hint) is Clients:
            hints = hints[:1] * num_clients
        if len(value) != len(hints):
            raise StoreError(f"{where}: expected {len(hints)} items, got {len(value)}")
        for i in value.kinds() if isinstance(value, Stored) else range(len(value)):
            check(value[i], hints[i], num_clients, f"{where}[{i}]")
    elif is_dataclass(value) and not isinstance(value, se.Model | se.Bitmap):
        for name, kind in _hints(type(value), get_args(hint)).items():
            check(getattr(value, name), kind, num_clients, f"{where}.{name}")


def _hints(kind: type, given: tuple[Any, ...]) -> dict[str, Any]:
    """Of the fields of a dataclass, with the types that it was `given` in place of its type variables."""
    free = getattr(kind, "__parameters__", ())
    known = dict(zip(free, given or (Any,) * len(free), strict=True))

    def filled(hint: Any) -> Any:
        inside = getattr(hint, "__parameters__", ())
        if inside:
            return hint[tuple(known[one] for one in inside)]
        return known.get(hint, hint)

    return {name: filled(hint) for name, hint in get_type_hints(kind).items()}


def _is(value: Any, hint: Any) -> bool:
    """Whether a value is of a type, without what is inside it."""
    if hint is Any:
        return True
    if hint is None or hint is NoneType:
        return value is None
    if hint is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    kind = get_origin(hint) or hint
    return isinstance(value, kind) if isinstance(kind, type) else True


def _entries(entries: tuple[Any, ...]) -> int:
    return sum(torch.Size(entry.shape).numel() for entry in entries)


def _named(plain: Plain) -> Iterator[tuple[str, str]]:
    """Kind and name of every model and mask in a plain form."""
    left = [plain]
    while left:
        match left.pop():
            case {"state": str(name)}:
                yield "state", name
            case {"bitmap": str(name)}:
                yield "bitmap", name
            case {"items": list(items)} | {"clients": list(items)}:
                left += items
            case {"fields": dict(parts)}:
                left += parts.values()


def _plain(value: Any, tensors: dict[str, Tensor], names: dict[int, tuple[Any, str]]) -> Plain:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, se.Model | se.Bitmap):
        kind = "state" if isinstance(value, se.Model) else "bitmap"
        if id(value) not in names:
            name = str(len(names))
            names[id(value)] = value, name
            parts = value.tensors() if isinstance(value, se.Model) else {"words": value.words}
            tensors.update({f"{name}/{part}": tensor for part, tensor in parts.items()})
        return {kind: names[id(value)][1]}
    if isinstance(value, tuple) and type(value) is tuple:
        return {"items": [_plain(item, tensors, names) for item in value]}
    if isinstance(value, Stored):
        once = {slot: _plain(value.store.read(slot), tensors, names) for slot in value.distinct()}
        return {"clients": [once[slot] for slot in value.slots.tolist()], "versions": value.versions.tolist()}
    if isinstance(value, Clients):
        versions = [value.ref(k).version for k in range(len(value))]
        return {"clients": [_plain(item, tensors, names) for item in value], "versions": versions}
    if is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: _plain(getattr(value, f.name), tensors, names) for f in fields(value)}
        return {"type": type(value).__name__, "fields": parts}
    known = "models, masks, numbers, strings, clients, tuples or dataclasses"
    raise TypeError(f"expected {known}, got {type(value).__name__}")


class _Reader:
    def __init__(
        self, tensors: Mapping[str, Tensor], types: Mapping[str, type], layout: se.Layout, into: Into
    ) -> None:
        self.tensors, self.types, self.layout, self.into = tensors, types, layout, into
        self.made: dict[tuple[str, str], Any] = {}

    def value(self, plain: Plain) -> Any:
        if isinstance(plain, int) and abs(plain) >= _INTEGERS:
            raise StoreError(f"expected integers of 64 bits, got {plain}")
        if plain is None or isinstance(plain, bool | int | float | str):
            return plain
        match plain:
            case {"state": str(name)}:
                return self._once("state", name)
            case {"bitmap": str(name)}:
                return self._once("bitmap", name)
            case {"items": list(items)}:
                return tuple(self.value(item) for item in items)
            case {"clients": list(items), "versions": list(versions)} if len(items) == len(versions):
                return self.into(map(self.value, items), map(self._version, versions))
            case {"type": str(name), "fields": dict(parts)} if name in self.types:
                return self._dataclass(self.types[name], parts)
        raise StoreError(f"expected a stored value of the types {list(self.types)}, got {str(plain)[:200]}")

    def _version(self, plain: Plain) -> int:
        if type(plain) is not int or not 0 <= plain < _INTEGERS:
            raise StoreError(f"expected versions from 0 on, got {str(plain)[:60]}")
        return plain

    def _dataclass(self, kind: type, parts: dict[str, Plain]) -> Any:
        try:
            return kind(**{name: self.value(part) for name, part in parts.items()})
        except TypeError as wrong:
            raise StoreError(f"expected the fields of {kind.__name__}, got {list(parts)}") from wrong

    def _once(self, kind: str, name: str) -> Any:
        if (kind, name) not in self.made:
            self.made[kind, name] = self._state(name) if kind == "state" else self._bitmap(name)
        return self.made[kind, name]

    def _state(self, name: str) -> se.Model:
        found = {part: self._tensor(f"{name}/{part}") for part in ("bitmap", "values", "rest", "integers")}
        try:
            return se.Model.from_tensors(self.layout, found)
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
