"""Data sets out of what people have: arrays, a torch Dataset, a Hugging Face split.

Neither torchvision nor `datasets` is imported: what they hand out is known by what it can do. All samples are
read once, into one array; random transforms of a torch Dataset are therefore drawn once, too.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fl.data import memory
from fl.data.arrays import array, from_arrays
from fl.data.dataset import Dataset

_X_COLUMNS = ("image", "img", "x", "features", "pixel_values", "data")
_Y_COLUMNS = ("label", "labels", "y", "fine_label", "target")


def from_given(given: Any, *, natural: bool = False, name: str | None = None) -> Dataset:
    """The data set that `given` is, or holds: all that `fl.data.as_dataset` takes but names and paths.

    name      of the data set; by default that of its kind
    """
    if isinstance(given, Dataset):
        return given
    options: dict[str, Any] = {"natural": natural} | ({} if name is None else {"name": name})
    if isinstance(given, tuple | list):
        if len(given) not in (2, 4):
            raise ValueError(f"data: expected (x, y) or (x, y, x_test, y_test), got {len(given)} arrays")
        return from_arrays(*given, **options)
    if isinstance(given, Mapping):
        return _of_mapping(given, options)
    if _is_split(given):
        return from_hf(given, **options)
    if _is_map_style(given) and not hasattr(given, "dtype") and not isinstance(given, str):
        return from_torch(given, **options)
    raise ValueError(
        "data: expected arrays (x, y), a Dataset, a map-style torch Dataset (with len() and [i]), a Hugging "
        f"Face split, a name or the path of an .npz file, got {_kind(given)}"
    )


def from_torch(
    dataset: Any, test: Any = None, *, classes: Sequence[str] | int | None = None, **options: Any
) -> Dataset:
    """A data set of a map-style torch Dataset, whose items are (x, y): x a tensor, array or PIL image.

    dataset, test   training and test samples; without `test`, a part is split off
    classes         names or number; by default dataset.classes, if it has these
    options         name, groups, groups_test, natural, test_share, seed of `from_arrays`

    >>> import torch
    >>> from_torch(torch.utils.data.TensorDataset(torch.zeros(10, 3), torch.arange(10) % 2))
    Dataset(TensorDataset, 8 + 2 samples (3,), 2 classes)
    """
    for what, one in (("dataset", dataset), ("test", test)):
        if one is not None and not _is_map_style(one):
            raise ValueError(f"{what}: expected a map-style data set, with len() and [i], got {_kind(one)}")
    if classes is None:
        found = getattr(dataset, "classes", None)
        classes = found if isinstance(found, list | tuple) and found else None
    options = {"name": _kind(dataset)} | options
    return from_arrays(*_read(dataset, test, _pair), classes=classes, **options)


def from_hf(
    split: Any,
    test: Any = None,
    *,
    x: str | None = None,
    y: str | None = None,
    groups: str | None = None,
    classes: Sequence[str] | int | None = None,
    **options: Any,
) -> Dataset:
    """A data set of a split of Hugging Face's `datasets` (or anything with column_names, len() and rows [i]).

    split, test   training and test samples; without `test`, a part is split off
    x, y          columns; by default the first of image, img, x, features ... and of label, labels, y ...
    groups        a column, too: who a sample comes from
    classes       names or number; by default the names of the column y, if it has these
    options       name, natural, test_share, seed of `from_arrays`

    >>> import fl
    >>> class Split(list):
    ...     column_names = ["features", "label"]
    >>> rows = Split({"features": [0.5, float(i)], "label": i % 2} for i in range(20))
    >>> fl.data.from_hf(rows).shape
    (2,)
    """
    for what, one in (("split", split), ("test", test)):
        if one is not None and not _is_split(one):
            raise ValueError(f"{what}: expected a split with column_names, len() and [i], got {_kind(one)}")
    x, y = (_column(split, *one) for one in ((x, _X_COLUMNS, "samples, x"), (y, _Y_COLUMNS, "labels, y")))
    if classes is None:
        feature = (getattr(split, "features", None) or {}).get(y)
        classes = getattr(feature, "names", None)
    if groups is not None:
        parts = zip(("groups", "groups_test"), (split, test), strict=True)
        column = _column(split, groups, (), "groups")
        options |= {key: list(part[column]) for key, part in parts if part is not None}
    read = _read(split, test, lambda row, _: (row[x], row[y]))
    return from_arrays(*read, classes=classes, **{"name": _name(split)} | options)


class _Arrays(NamedTuple):
    x: NDArray
    y: NDArray
    x_test: NDArray | None = None
    y_test: NDArray | None = None


_Item = tuple[Any, Any]


def _read(train: Any, test: Any, pair: Callable[[Any, int], _Item]) -> _Arrays:
    read = [
        _stacked((pair(one[i], i) for i in range(len(one))), len(one))
        for one in (train, test)
        if one is not None
    ]
    return _Arrays(*(part for both in read for part in both))


def _pair(item: Any, i: int) -> _Item:
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise ValueError(f"expected items (x, y), got {_kind(item)} as item {i}")
    return item[0], item[1]


def _stacked(items: Iterable[_Item], n: int) -> tuple[NDArray, NDArray]:
    """x [n, ...] and y [n] of the items; all have the type and shape of the first."""
    x, labels = np.empty((0, 1), np.float32), []
    for i, (sample, label) in enumerate(items):
        value, number = _sample(sample), array(label)
        if i == 0:
            memory.check(2 * n * prod(value.shape) * value.itemsize, f"{n:,} samples {value.shape}, twice,")
            x = np.empty((n, *value.shape), value.dtype)
        if value.shape != x.shape[1:] or value.dtype != x.dtype:
            first, given = f"{x.dtype} {x.shape[1:]}", f"{value.dtype} {value.shape}"
            raise ValueError(
                f"expected samples of one type and shape, {first} as the first, got {given} as {i}"
            )
        if number.shape != ():
            raise ValueError(
                f"expected one label per sample, got {number.dtype} {number.shape} of sample {i}"
            )
        x[i] = value
        labels.append(number)
    return x, np.array(labels)


def _sample(given: Any) -> NDArray:
    """An array; float32 of any floats. An image of PIL that is neither grey nor RGB becomes RGB."""
    if hasattr(given, "mode") and hasattr(given, "convert") and given.mode not in ("L", "RGB"):
        given = given.convert("RGB")
    value = array(given)
    return value.astype(np.float32) if value.dtype.kind == "f" else value


def _of_mapping(given: Mapping[str, Any], options: dict[str, Any]) -> Dataset:
    if "x" in given and "y" in given:
        allowed = {*from_arrays.__annotations__} - {"return"}
        unknown = [key for key in given if key not in allowed]
        if unknown:
            raise ValueError(f"data: expected keys out of {sorted(allowed)}, got {unknown}")
        return from_arrays(**options | dict(given))
    if "train" not in given:
        raise ValueError(f"data: expected keys x and y, or train (and test), got {list(given)}")
    train, test = given["train"], given.get("test")
    make = from_hf if _is_split(train) else from_torch
    return make(train, test, **options)


def _column(split: Any, wanted: str | None, usual: Sequence[str], what: str) -> str:
    names = list(split.column_names)
    if wanted is None:
        wanted = next((name for name in usual if name in names), None)
    if wanted is None:
        raise ValueError(f"expected a column out of {list(usual)} for the {what}, got {names}: name it")
    if wanted not in names:
        raise ValueError(f"expected a column {wanted!r} for the {what}, got {names}")
    return wanted


def _name(split: Any) -> str:
    name = getattr(getattr(split, "info", None), "dataset_name", None)
    return name if isinstance(name, str) and name else "split"


def _is_split(given: Any) -> bool:
    return hasattr(given, "column_names") and _is_map_style(given)


def _is_map_style(given: Any) -> bool:
    return hasattr(given, "__len__") and hasattr(given, "__getitem__")


def _kind(given: Any) -> str:
    return type(given).__name__
