"""Data sets in one `.npz` file.

    x           uint8 [n, H, W], [n, H, W, C] or [n, C, H, W], C = 1 or 3; or floats [n, ...] (arrays.py)
    y           integers [n] from 0
    x_test, y_test    likewise; without them a fifth of every class becomes the test part (split.py)
    groups      [n], any type: samples of one group are not torn apart by that split, unless
                groups are clients
    groups_test likewise of x_test
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

from numpy.lib import format as npy
from numpy.typing import NDArray

from fl.data import memory
from fl.data.arrays import from_arrays
from fl.data.dataset import Dataset

_KEYS = ("x", "y", "x_test", "y_test", "groups", "groups_test", "lesion_id", "classes")
_LARGE = 1 << 30  # bytes; above it, a file is refused that would become
_INFLATED = 100  # times larger than it is: no images do
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_MAGIC = b"\x93NUMPY"


def read(name: str, path: Path, *, grouped: bool = False, natural: bool = False) -> Dataset:
    """`grouped`: a file without groups is an error; `natural`: each of them is a client (arrays.py)."""
    arrays = _arrays(path)
    try:
        return _dataset(name, arrays, grouped, natural)
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


def _dataset(name: str, arrays: Mapping[str, NDArray], grouped: bool, natural: bool) -> Dataset:
    groups = arrays.get("groups", arrays.get("lesion_id"))
    if grouped and groups is None:
        raise ValueError(
            "expected an array 'lesion_id' (or 'groups'), got none: images of one lesion would leak"
        )
    classes = arrays.get("classes")
    if classes is not None and classes.ndim != 1:
        raise ValueError(f"expected classes as a list of names, got shape {classes.shape}")
    return from_arrays(
        *(arrays.get(key) for key in ("x", "y", "x_test", "y_test")),
        classes=None if classes is None else classes.tolist(),
        name=name,
        groups=groups,
        groups_test=arrays.get("groups_test"),
        natural=natural,
    )
