"""What an algorithm keeps between rounds, taken apart into plain values and tensors, and put together again.

    dataclass              {"type": its name, "fields": {...}}
    se.Model, se.Bitmap    {"state": name}, {"bitmap": name}: tensors under name/bitmap, name/values, ...
    tuple                  {"items": [...]}
    Clients                {"clients": [...], "versions": [...]}: a value and a version per client
    Stored                 {"stored": name, "tables": ...}: see tables.py; tensors under name/version, ...
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
from fl.clients.tables import Tables, sizes
from fl.errors import StoreError

Plain = Any  # what JSON holds
Placed = Callable[[Stored[Any]], Tables]
Into = Callable[[Iterable[Any], Iterable[int]], Clients[Any]]  # values and versions -> a population
_INTEGERS = 1 << 63  # integers are below, in size


class Wanted(NamedTuple):
    """What a tensor must be before it is read: its dtype, and how many entries it has."""

    dtype: torch.dtype
    least: int
    most: int


def take_apart(value: Any, tables: Placed | None = None) -> tuple[Plain, dict[str, Tensor]]:
    """The plain form of `value`, and its tensors by name. Nothing is copied. `tables`: of a population in a
    store, whose records are kept elsewhere; None: that is taken apart as any other."""
    taker = _Taker(tables)
    return taker.plain(value), taker.tensors


def populations(value: Any) -> list[Stored[Any]]:
    """All populations of a store in a value."""
    if isinstance(value, Stored):
        return [value]
    if isinstance(value, tuple) and type(value) is tuple:
        return [one for item in value for one in populations(item)]
    if is_dataclass(value) and not isinstance(value, type | se.Model | se.Bitmap):
        return [one for f in fields(value) for one in populations(getattr(value, f.name))]
    return []


def put_together(
    plain: Plain,
    tensors: Mapping[str, Tensor],
    types: Mapping[str, type],
    layout: se.Layout,
    into: Into = InMemory,
    stored: Mapping[str, Stored[Any]] | None = None,
) -> Any:
    """The value again. `types`: dataclasses by name; `layout`: of every model and mask; `into`: where
    populations are kept; `stored`: those of a store, by name."""
    try:
        return _Reader(tensors, types, layout, into, stored or {}).value(plain)
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
    found = {f"{name}/{part}": what for kind, name in _named(plain) for part, what in parts[kind].items()}
    for name, told in in_tables(plain).items():
        found |= {f"{name}/{part}": Wanted(torch.int64, n, n) for part, n in sizes(told).items()}
    return found


def in_tables(plain: Plain) -> dict[str, Plain]:
    """What a plain form says of the populations that are kept as tables, by name."""
    found, left = {}, [plain]
    while left:
        match left.pop():
            case {"stored": str(name), "tables": told}:
                found[name] = told
            case {"items": list(items)}:
                left += items
            case {"fields": dict(parts)}:
                left += parts.values()
    return found


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


class _Taker:
    """Gives names to what it meets. An object that appears twice has one."""

    def __init__(self, tables: Placed | None) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._tables = tables
        self._names: dict[int, tuple[Any, str]] = {}  # with the object, so that its id stays its own

    def plain(self, value: Any) -> Plain:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, se.Model):
            return {"state": self._name(value, value.tensors())}
        if isinstance(value, se.Bitmap):
            return {"bitmap": self._name(value, {"words": value.words})}
        if isinstance(value, tuple) and type(value) is tuple:
            return {"items": [self.plain(item) for item in value]}
        if isinstance(value, Stored) and self._tables is not None:
            tables = self._tables(value)
            return {"stored": self._name(value, tables.tensors), "tables": tables.plain}
        if isinstance(value, Clients):
            versions = [value.ref(k).version for k in range(len(value))]
            return {"clients": [self.plain(item) for item in _each(value)], "versions": versions}
        if is_dataclass(value) and not isinstance(value, type):
            parts = {f.name: self.plain(getattr(value, f.name)) for f in fields(value)}
            return {"type": type(value).__name__, "fields": parts}
        known = "models, masks, numbers, strings, clients, tuples or dataclasses"
        raise TypeError(f"expected {known}, got {type(value).__name__}")

    def _name(self, value: Any, parts: Mapping[str, Tensor]) -> str:
        if id(value) not in self._names:
            name = str(len(self._names))
            self._names[id(value)] = value, name
            self.tensors.update({f"{name}/{part}": tensor for part, tensor in parts.items()})
        return self._names[id(value)][1]


def _each(clients: Clients[Any]) -> Iterator[Any]:
    """Everybody's value; one that several share is one object."""
    if not isinstance(clients, Stored):
        yield from clients
        return
    once = {slot: clients.store.read(slot) for slot in clients.distinct()}
    yield from (once[slot] for slot in clients.slots.tolist())


class _Reader:
    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        types: Mapping[str, type],
        layout: se.Layout,
        into: Into,
        stored: Mapping[str, Stored[Any]],
    ) -> None:
        self.tensors, self.types, self.layout, self.into = tensors, types, layout, into
        self.stored = stored
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
            case {"stored": str(name)} if name in self.stored:
                return self.stored[name]
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
