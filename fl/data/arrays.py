"""A data set out of arrays in memory: the one place that decides what x and y may be.

x of bytes (uint8) are images [n, H, W], [n, H, W, C] or [n, C, H, W] with C = 1 or 3, or samples of another
number of axes; they are normalised. x of numbers (any float) are samples of any shape, used as they are; of
four axes they are images, channels first unless only the last axis has 1 or 3 entries.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fl.data.dataset import Dataset, Part, X, check_finite, statistics
from fl.data.split import split

_MOST_CLASSES = 2**16  # without names; a larger label is no class number


def from_arrays(
    x: Any,
    y: Any,
    x_test: Any = None,
    y_test: Any = None,
    *,
    classes: Sequence[str] | int | None = None,
    name: str = "arrays",
    groups: Any = None,
    groups_test: Any = None,
    natural: bool = False,
    test_share: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """A data set of numpy arrays or torch tensors (or what numpy makes arrays of), not copied if possible.

    x, y           training samples [n, ...] (bytes or floats) and integer labels [n] from 0
    x_test, y_test likewise; without them `test_share` of every class becomes the test part, drawn by `seed`
    classes        names, or how many there are; by default max(y) + 1, each with a training sample
    groups         [n], any type: who or what a sample comes from; groups_test: likewise of x_test
    natural        groups are clients: each gives its share to the test part; else no group is torn apart

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> from_arrays(rng.normal(size=(100, 12)), np.arange(100) % 4)
    Dataset(arrays, 80 + 20 samples (12,), 4 classes)
    """
    whole = _part(x, y, "x", "y", classes, groups)
    if x_test is not None or y_test is not None:
        train, test = whole, _part(x_test, y_test, "x_test", "y_test", classes, groups_test)
    else:
        chosen = split(whole.labels, whole.groups, test_share, natural=natural, seed=seed)
        train, test = (whole.take(index) for index in chosen)
    highest = max(int(part.labels.max(initial=0)) for part in (train, test))
    if classes is None:
        _check_classes(train.labels, highest + 1)
        classes = highest + 1
    names = tuple(map(str, range(classes) if isinstance(classes, int) else classes))
    numbers = train.x.dtype == np.float32 or len(train) == 0
    mean, std = ((), ()) if numbers else statistics(train.x)
    return Dataset(name, train, test, names, mean, std)


def array(given: Any) -> NDArray:
    """`given` as an array of numpy; a tensor without its graph, from whichever device."""
    return given.detach().cpu().numpy() if isinstance(given, torch.Tensor) else np.asarray(given)


def _part(x: Any, y: Any, x_name: str, y_name: str, classes: Sequence[str] | int | None, groups: Any) -> Part:
    missing = [name for name, value in ((x_name, x), (y_name, y)) if value is None]
    if missing:
        raise ValueError(
            f"expected arrays {x_name!r} and {y_name!r}, got no {' and no '.join(map(repr, missing))}"
        )
    samples, labels = _samples(_array(x, x_name), x_name), _array(y, y_name)
    if len(samples) == 0:
        raise ValueError(f"expected at least one sample, got {x_name} {samples.shape}")
    if labels.dtype.kind not in "iu" or labels.shape != (len(samples),):
        given = f"{labels.dtype} {labels.shape}"
        raise ValueError(f"expected {y_name} as {len(samples)} integer labels, one per sample, got {given}")
    most = _MOST_CLASSES if classes is None else classes if isinstance(classes, int) else len(classes)
    if labels.min() < 0 or labels.max() >= most:
        raise ValueError(f"expected {y_name} from 0 to {most - 1}, got {labels.min()} to {labels.max()}")
    check_finite(x_name, samples)
    return Part(samples, labels.astype(np.int64), None if groups is None else _groups(array(groups), labels))


def _array(given: Any, name: str) -> NDArray:
    try:
        return array(given)
    except ValueError as wrong:  # lists of different lengths
        raise ValueError(f"expected {name} as an array, got {type(given).__name__}: {wrong}") from wrong


def _groups(groups: NDArray, labels: NDArray) -> NDArray:
    if groups.shape != labels.shape:
        raise ValueError(f"expected one group per label, got groups {groups.shape}, labels {labels.shape}")
    if groups.dtype.kind == "f" and np.isnan(groups).any():
        raise ValueError("expected a group for every sample, got groups that are not a number")
    return groups.astype(str) if groups.dtype.kind == "O" else groups


def _samples(x: NDArray, name: str) -> X:
    """uint8 or float32; images [n, C, H, W], whichever of their forms they came in."""
    if x.dtype != np.uint8 and x.dtype.kind != "f":
        raise ValueError(
            f"expected {name} as uint8 (bytes 0 to 255, not scaled) or as floats, got {x.dtype} {x.shape}"
        )
    if x.ndim < 2:
        raise ValueError(
            f"expected {name} as [n, H, W], [n, H, W, C] or [n, C, H, W], or [n, features], got {x.shape}"
        )
    if len(x) and not x.size:
        raise ValueError(f"expected {name} as samples of at least one value, got {x.shape}")
    return _bytes(x, name) if x.dtype == np.uint8 else _numbers(x)


def _bytes(x: NDArray[np.uint8], name: str) -> NDArray[np.uint8]:
    if x.ndim == 3:
        return x[:, None]
    if x.ndim != 4:
        return x
    first, last = (x.shape[axis] in (1, 3) for axis in (1, 3))
    if first == last:
        wanted = "[n, H, W], [n, H, W, C] or [n, C, H, W] with C = 1 or 3"
        raise ValueError(f"expected {name} as {wanted}, got {x.shape}")
    return x if first else np.ascontiguousarray(x.transpose(0, 3, 1, 2))


def _numbers(x: NDArray) -> NDArray[np.float32]:
    if x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    with np.errstate(over="ignore"):  # infinite numbers are refused later, with the sample that has them
        return np.ascontiguousarray(x, dtype=np.float32)


def _check_classes(labels: NDArray[np.int64], num_classes: int) -> None:
    """Without names, a number that nobody has is a mistake in the labels."""
    missing = np.flatnonzero(np.bincount(labels, minlength=num_classes) == 0)
    if len(missing):
        shown = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        raise ValueError(
            f"expected training samples of every class from 0 to {num_classes - 1}, "
            f"got none of {len(missing):,} ({shown}): number the classes without gaps, or name all of them "
            "in an array 'classes'"
        )
