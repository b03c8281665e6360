"""A population of a store (store.py) as tables: what a checkpoint holds beside the bytes of its records.

    version  [clients]              of every client
    record   [clients]              which record is its own
    form     [records]              a number of a Form
    numbers  [records, numbers]     64 bits each
    counts   [records, weights]     stored entries, mask by mask
    place    [records, 3]           file, first word there, words

All are int64. Forms are plain values (`plain_form`). What is read is checked before it is used.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import sparse_engine as se
from fl.clients.record import Form, words_of
from fl.clients.stored import Stored
from fl.errors import StoreError

Ints = NDArray[np.int64]
Plain = Any
NAMES = ("version", "record", "form", "numbers", "counts", "place")
_SIZES = ("clients", "records", "numbers", "counts")
_MOST = 1 << 31  # clients or records
_DEEP = 64  # levels of a form


@dataclass(frozen=True)
class Tables:
    forms: list[Form]
    version: Ints
    record: Ints
    form: Ints
    numbers: Ints
    counts: Ints
    place: Ints

    @classmethod
    def of(cls, clients: Stored[Any], placed: Callable[[Ints], Ints]) -> "Tables":
        """`placed(slots)`: where their records are on disk."""
        store, slots = clients.store, np.array(clients.distinct(), np.int64)
        order = np.argsort(slots)
        record = order[np.searchsorted(slots[order], clients.slots)]
        kinds, first, form = np.unique(store.forms(slots), return_index=True, return_inverse=True)
        place = np.argsort(np.argsort(first))  # of each kind among these: they are in the order of clients
        numbers, counts = store.told(slots)
        forms = [store.form(kind) for kind in kinds[np.argsort(first)].tolist()]
        return cls(forms, clients.versions, record, place[form.reshape(-1)], numbers, counts, placed(slots))

    @property
    def plain(self) -> Plain:
        """All but the tensors."""
        sizes = {"clients": len(self.version), "records": len(self.form)}
        widths = {"numbers": self.numbers.shape[1], "counts": self.counts.shape[1]}
        return {"population": sizes | widths, "forms": [plain_form(form) for form in self.forms]}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tables, flat."""
        return {
            name: torch.from_numpy(np.ascontiguousarray(getattr(self, name), np.int64).reshape(-1))
            for name in NAMES
        }

    @classmethod
    def read(
        cls,
        plain: Plain,
        tensors: Mapping[str, Tensor],
        types: Mapping[str, type],
        layout: se.Layout,
        half: bool,
    ) -> "Tables":
        """Of `plain` and `tensors` of these sizes (`sizes`). StoreError: they do not fit each other."""
        sizes(plain)
        records = plain["population"]["records"]
        forms = [read_form(form, types) for form in plain["forms"]]
        flat = {name: tensors[name].numpy() for name in NAMES}
        version, record, form = flat["version"], flat["record"], flat["form"]
        numbers, counts, place = (flat[name].reshape(records, -1) for name in ("numbers", "counts", "place"))
        _within("versions", version, 1 << 62)
        _within("records of clients", record, records)
        _within("forms of records", form, len(forms))
        found = cls(forms, version, record, form, numbers, counts, place)
        for i, one in enumerate(forms):
            found._fits(one, form == i, layout, half)
        return found

    def _fits(self, form: Form, which: NDArray[np.bool_], layout: se.Layout, half: bool) -> None:
        """StoreError: numbers, counts or places of the records of a form cannot be."""
        need = form.masks * len(layout.segments)
        if self.numbers.shape[1] < len(form.numbers) or self.counts.shape[1] < need:
            raise StoreError(f"expected {len(form.numbers)} numbers and {need} counts, got fewer")
        counts = self.counts[which][:, :need]
        most = np.tile(np.array(layout.segments.sizes, np.int64), form.masks)
        if ((counts < 0) | (counts > most)).any():
            raise StoreError("expected counts of stored entries up to the sizes of weights, got others")
        for i, kind in enumerate(form.numbers):
            bits = self.numbers[which, i]
            if kind == "f" and not np.isfinite(np.ascontiguousarray(bits).view(np.float64)).all():
                raise StoreError("expected finite numbers of clients, got others")
            if kind == "b" and ((bits < 0) | (bits > 1)).any():
                raise StoreError("expected true or false, got another number")
        place = self.place[which]
        wrong = (place < 0).any(1) | (place[:, 2] != words_of(form, counts, layout, half))
        if wrong.any():
            raise StoreError(f"expected places of records of their length, got {place[wrong][0].tolist()}")


def sizes(plain: Plain) -> dict[str, int]:
    """Entries of every table. StoreError: `plain` is no population."""
    match plain:
        case {"population": dict(told), "forms": list(forms)} if len(plain) == 2 and len(forms) < _MOST:
            given = [n for n in map(told.get, _SIZES) if type(n) is int and 0 <= n < _MOST]
            if len(told) == len(given) == 4:
                clients, records, numbers, counts = given
                widths = {"form": 1, "numbers": numbers, "counts": counts, "place": 3}
                return {"version": clients, "record": clients} | {n: records * w for n, w in widths.items()}
    raise StoreError(f"expected the sizes of a population, got {str(plain)[:120]}")


def plain_form(form: Form) -> Plain:
    """A Form as plain values."""
    return {
        "tree": _plain(form.tree),
        "masks": form.masks,
        "models": [*form.models],
        "numbers": form.numbers,
    }


def read_form(plain: Plain, types: Mapping[str, type]) -> Form:
    """The Form again; `types`: dataclasses by name. StoreError: it is none."""
    match plain:
        case {"tree": tree, "masks": int(masks), "models": list(models), "numbers": str(numbers)}:
            indices = all(type(i) is int and 0 <= i < masks for i in models)
            if len(plain) == 4 and 0 <= masks < 1 << 10 and indices and set(numbers) <= set("ifb"):
                form = Form(_read(tree, types, 0), masks, tuple(models), numbers)
                _check_tree(form.tree, form)
                return form
    raise StoreError(f"expected the form of a client, got {str(plain)[:120]}")


def _plain(tree: Any) -> Plain:
    if tree is None:
        return None
    kind, what = tree[0], tree[1]
    if kind == "fields":
        return {"type": what.__name__, "parts": [_plain(part) for part in tree[2]]}
    return {kind: [_plain(part) for part in what] if kind == "items" else what}


def _read(plain: Plain, types: Mapping[str, type], depth: int) -> Any:
    if depth > _DEEP:
        raise StoreError("expected a form of few levels, got parts nested too deeply")
    match plain:
        case None:
            return None
        case {"type": str(name), "parts": list(parts)} if name in types and len(plain) == 2:
            kind = types[name]
            if len(parts) == len(fields(kind)):
                return ("fields", kind, tuple(_read(part, types, depth + 1) for part in parts))
        case {"items": list(parts)} if len(plain) == 1:
            return ("items", tuple(_read(part, types, depth + 1) for part in parts))
        case {"text": str(text)} if len(plain) == 1:
            return ("text", text)
        case {"number": int(i)} | {"model": int(i)} | {"mask": int(i)} if len(plain) == 1 and type(i) is int:
            return (next(iter(plain)), i)
    raise StoreError(f"expected a part of a form, of the types {list(types)}, got {str(plain)[:120]}")


def _check_tree(tree: Any, form: Form) -> None:
    """StoreError: a part of the tree names what is not there."""
    if tree is None or tree[0] == "text":
        return
    if tree[0] in ("fields", "items"):
        for part in tree[-1]:
            _check_tree(part, form)
        return
    most = {"number": len(form.numbers), "model": len(form.models), "mask": form.masks}[tree[0]]
    if not 0 <= tree[1] < most:
        raise StoreError(f"expected a {tree[0]} of {most}, got {tree[1]}")


def _within(what: str, found: Sequence[int] | Ints, most: int) -> None:
    wrong = (np.asarray(found) < 0) | (np.asarray(found) >= most)
    if wrong.any():
        raise StoreError(f"expected {what} from 0 to {most - 1}, got {np.asarray(found)[wrong][0]}")
