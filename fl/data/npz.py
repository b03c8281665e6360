"""Data sets in one `.npz` file.

    x           uint8 [n, H, W], [n, H, W, C] or [n, C, H, W], C = 1 or 3
    y           integers [n] from 0
    x_test, y_test    likewise; without them a fifth of every class becomes the test part (split.py)
    groups      [n], any type: samples of one group are not torn apart by that split
    classes     [classes] names; without them there are max(y) + 1, each with a training sample

`lesion_id` (HAM10000) is another name of `groups`. Other arrays in the file are ignored. No pickles. A file
is refused before it is read where its arrays, twice, would not fit into memory, or would have more than 1 GiB
and 100 times the size of the file.
"""

import zipfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fl.data import memory
from fl.data.dataset import Dataset, Part, channel_statistics
from fl.data.split import split

_MOST_CLASSES = 2**16  # without names; a larger label is no class number
_KEYS = ("x", "y", "x_test", "y_test", "groups", "lesion_id", "classes")
_LARGE = 1 << 30  # bytes; above it, a file is refused that would become
_INFLATED = 100  # times larger than it is: no images do
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_MAGIC = b"\x93NUMPY"


def read(name: str, path: Path, *, grouped: bool = False) -> Dataset:
    """`grouped`: a file without groups is an error."""
    arrays = _arrays(path)
    try:
        return _dataset(name, arrays, grouped)
    except ValueError as wrong:
        raise ValueError(f"{path}: {wrong}") from wrong


class _Member(NamedTuple):
    """An array of the archive, as its header announces it."""

    name: str
    num_bytes: int


def _arrays(path: Path) -> dict[str, NDArray]:
    """The arrays that a data set is made of. How large they are is known before one is read."""
    with open(path, "rb") as file:
        return _read_all(path, file)


def _read_all(path: Path, file: BinaryIO) -> dict[str, NDArray]:
    try:
        if file.read(len(_MAGIC)) == _MAGIC:
            raise ValueError("one array, not an archive of arrays")
        with zipfile.ZipFile(file) as archive:
            members = {key: _member(archive, key) for key in _KEYS if _holds(archive, key)}
            _check_size(path, sum(member.num_bytes for member in members.values()))
            return {key: _read(archive, member) for key, member in members.items()}
    except MemoryError:
        raise
    except Exception as wrong:  # on a damaged file numpy, zipfile and the decoders raise almost anything
        raise ValueError(f"{path}: expected an intact .npz file without pickles, got: {wrong}") from wrong


def _holds(archive: zipfile.ZipFile, key: str) -> bool:
    return not {key, f"{key}.npy"}.isdisjoint(archive.namelist())


def _member(archive: zipfile.ZipFile, key: str) -> _Member:
    name = f"{key}.npy"
    if name not in archive.namelist():
        raise ValueError(f"a member {key!r} that is no array (it would be called {name!r})")
    with archive.open(name) as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError(f"{name}, which is no array of numpy")
        file.seek(0)
        version = npy.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"{name} in version {version} of numpy's format")
        shape, _, dtype = _HEADERS[version](file)
        announced, there = prod(shape) * dtype.itemsize, archive.getinfo(name).file_size - file.tell()
    if dtype.hasobject:
        raise ValueError(f"{name} with pickled Python objects, of which none are read")
    if announced != there or min(shape, default=0) < 0:
        raise ValueError(f"{name} of {announced:,} bytes by its header {shape}, but with {there:,}")
    return _Member(name, announced)


def _check_size(path: Path, num_bytes: int) -> None:
    """Images are copied at least once: into the two parts, or channels first."""
    memory.check(2 * num_bytes, "the arrays, twice,")
    if num_bytes > _LARGE and num_bytes > _INFLATED * path.stat().st_size:
        packed = f"{path.stat().st_size / 1e6:,.1f} MB"
        raise ValueError(
            f"arrays of {num_bytes / 1e9:,.1f} GB in {packed}, which no images compress to; "
            "write them uncompressed (np.savez) if that is right"
        )


def _read(archive: zipfile.ZipFile, member: _Member) -> NDArray:
    with archive.open(member.name) as file:
        found: NDArray = npy.read_array(file, allow_pickle=False)
        return found


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
    if "classes" not in arrays:
        _check_classes(train.labels, highest + 1)
    classes = tuple(map(str, arrays.get("classes", range(highest + 1))))
    mean, std = channel_statistics(train.images)
    return Dataset(name, train, test, classes, mean, std)


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


def _part(arrays: Mapping[str, NDArray], x: str, y: str) -> Part:
    missing = [key for key in (x, y) if key not in arrays]
    if missing:
        raise ValueError(f"expected arrays {x!r} and {y!r}, got no {' and no '.join(map(repr, missing))}")
    images, labels = _images(arrays[x], x), arrays[y]
    if labels.dtype.kind not in "iu" or labels.shape != (len(images),):
        given = f"{labels.dtype} {labels.shape}"
        raise ValueError(f"expected {y} as {len(images)} integer labels, one per image, got {given}")
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
    if x.ndim in (3, 4) and len(x) and not x.size:
        raise ValueError(f"expected {name} as images of at least one pixel, got {x.shape}")
    if x.ndim == 3:
        return x[:, None]
    first, last = (x.ndim == 4 and x.shape[axis] in (1, 3) for axis in (1, 3))
    if first == last:
        wanted = "[n, H, W], [n, H, W, C] or [n, C, H, W] with C = 1 or 3"
        raise ValueError(f"expected {name} as {wanted}, got {x.shape}")
    return x if first else np.ascontiguousarray(x.transpose(0, 3, 1, 2))
