"""Data sets in one `.npz` file.

    x           uint8 [n, H, W], [n, H, W, C] or [n, C, H, W], C = 1 or 3
    y           integers [n] from 0
    x_test, y_test    likewise; without them a fifth of every class becomes the test part (split.py)
    groups      [n], any type: samples of one group are not torn apart by that split
    classes     [classes] names; without them there are max(y) + 1

`lesion_id` (HAM10000) is another name of `groups`. Other arrays in the file are ignored. No pickles.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl.data.dataset import Dataset, Part, channel_statistics
from fl.data.split import split

_MOST_CLASSES = 2**16  # without names; a larger label is no class number
_KEYS = ("x", "y", "x_test", "y_test", "groups", "lesion_id", "classes")


def read(name: str, path: Path, *, grouped: bool = False) -> Dataset:
    """`grouped`: a file without groups is an error."""
    arrays = _arrays(path)
    try:
        return _dataset(name, arrays, grouped)
    except ValueError as wrong:
        raise ValueError(f"{path}: {wrong}") from wrong


def _arrays(path: Path) -> dict[str, NDArray]:
    try:
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise ValueError("one array, not an archive of arrays")
        with file:
            return {key: file[key] for key in _KEYS if key in file.files}
    except Exception as wrong:  # on a damaged file numpy, zipfile and the decoders raise almost anything
        raise ValueError(f"{path}: expected an intact .npz file without pickles, got: {wrong}") from wrong


def _dataset(name: str, arrays: Mapping[str, NDArray], grouped: bool) -> Dataset:
    groups = arrays.get("groups", arrays.get("lesion_id"))
    if grouped and groups is None:
        raise ValueError(
            "expected an array 'lesion_id' (or 'groups'), got none: images of one lesion would leak"
        )
    if "classes" in arrays and arrays["classes"].ndim != 1:
        raise ValueError(f"expected classes as a list of names, got shape {arrays['classes'].shape}")
    whole = _part(arrays, "x", "y")
    if "x_test" in arrays or "y_test" in arrays:
        train, test = whole, _part(arrays, "x_test", "y_test")
    else:
        train, test = (whole.take(index) for index in split(whole.labels, groups))
    highest = max(int(part.labels.max(initial=0)) for part in (train, test))
    classes = tuple(map(str, arrays.get("classes", range(highest + 1))))
    mean, std = channel_statistics(train.images)
    return Dataset(name, train, test, classes, mean, std)


def _part(arrays: Mapping[str, NDArray], x: str, y: str) -> Part:
    missing = [key for key in (x, y) if key not in arrays]
    if missing:
        raise ValueError(f"expected arrays {x!r} and {y!r}, got no {' and no '.join(map(repr, missing))}")
    images, labels = _images(arrays[x], x), arrays[y]
    if labels.dtype.kind not in "iu" or labels.shape != (len(images),):
        given = f"{labels.dtype} {labels.shape}"
        raise ValueError(f"expected {y} as {len(images)} integer labels, one an image, got {given}")
    if len(labels) == 0:
        raise ValueError(f"expected at least one image, got {x} {arrays[x].shape}")
    most = len(arrays["classes"]) if "classes" in arrays else _MOST_CLASSES
    if labels.min() < 0 or labels.max() >= most:
        raise ValueError(f"expected {y} from 0 to {most - 1}, got {labels.min()} to {labels.max()}")
    return Part(images, labels.astype(np.int64))


def _images(x: NDArray, name: str) -> NDArray[np.uint8]:
    """[n, C, H, W], whichever of the three forms it came in."""
    if x.dtype != np.uint8:
        raise ValueError(f"expected {name} as uint8 (bytes 0 to 255, not scaled), got {x.dtype}")
    if x.ndim == 3:
        return x[:, None]
    first, last = (x.ndim == 4 and x.shape[axis] in (1, 3) for axis in (1, 3))
    if first == last:
        wanted = "[n, H, W], [n, H, W, C] or [n, C, H, W] with C = 1 or 3"
        raise ValueError(f"expected {name} as {wanted}, got {x.shape}")
    return x if first else np.ascontiguousarray(x.transpose(0, 3, 1, 2))
