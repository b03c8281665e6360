"""Tensors in a file of the safetensors format, written and read tensor by tensor: no second copy in memory.

    8 bytes     length of the header, little-endian
    header      JSON {name: {"dtype": "F32", "shape": [n], "data_offsets": [first, end]}}, blanks at its end
    data        raw, little-endian, in the order of the header, without gaps

Any program that reads safetensors reads these. We write and read flat tensors of DTYPES only: what models and
masks are made of. The SHA-256 of the file is computed on the way.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl.clients.plain import Wanted
from fl.errors import CheckpointError
from fl.run import files

DTYPES = {torch.int64: "I64", torch.float32: "F32"}  # the wider first: every tensor is aligned
_HEADER = 1 << 26  # bytes of a header, at most


class _Hash(Protocol):
    def update(self, data: Any, /) -> None: ...


def write(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """A new file with all of `tensors`, on disk when this returns: {"bytes": its size, "sha256": of it}."""
    order = {name: i for i, name in enumerate(DTYPES.values())}
    entries = sorted(tensors.items(), key=lambda pair: order[DTYPES[pair[1].dtype]])
    seen, size = hashlib.sha256(), 0
    with open(path, "xb") as file:
        for data in chain([_head(entries)], (_bytes(tensor) for _, tensor in entries)):
            file.write(data)
            seen.update(data)
            size += len(data)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": size, "sha256": seen.hexdigest()}


def write_joined(path: Path, name: str, parts: Iterable[NDArray[np.int64]], count: int) -> dict[str, Any]:
    """A new file with one tensor of `count` words, which are those of all parts: as `write` returns."""
    seen, size = hashlib.sha256(), 0
    told = {name: {"dtype": "I64", "shape": [count], "data_offsets": [0, 8 * count]}}
    with open(path, "xb") as file:
        for data in chain([_headed(told)], (_words(part) for part in parts)):
            file.write(data)
            seen.update(data)
            size += len(data)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": size, "sha256": seen.hexdigest()}


def read(root: Path, name: str, size: int, sha256: str, wanted: Mapping[str, Wanted]) -> dict[str, Tensor]:
    """The tensors of a file of that size and checksum; CheckpointError: one is not as `wanted` has it."""
    with files.reader(root, name) as file:
        found = os.fstat(file.fileno()).st_size
        if found != size:
            raise CheckpointError(f"{Path(name).name}: expected {size} bytes, got {found}")
        seen = hashlib.sha256()
        try:
            tensors = _read(file, size, seen, wanted)
        except (ValueError, EOFError) as wrong:
            raise CheckpointError(f"{Path(name).name}: expected tensors of the run, got {wrong}") from wrong
    if seen.hexdigest() != sha256:
        raise CheckpointError(f"{Path(name).name}: expected another checksum: it was changed or damaged")
    return tensors


def _head(entries: list[tuple[str, Tensor]]) -> Any:
    told, at = {}, 0
    for name, tensor in entries:
        told[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.nbytes],
        }
        at += tensor.nbytes
    return _headed(told)


def _words(part: NDArray[np.int64]) -> Any:
    data: Any = part.astype("<i8", copy=False)
    return memoryview(data).cast("B") if len(part) else memoryview(b"")


def _headed(told: Mapping[str, Any]) -> Any:
    text = json.dumps(told, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _bytes(tensor: Tensor) -> Any:
    """Return a flat tensor's bytes, without a copy if it is contiguous and the machine little-endian."""
    if not tensor.numel():
        return memoryview(b"")  # an empty array cannot be cast
    array: Any = tensor.detach().contiguous().numpy()
    return memoryview(array.astype(array.dtype.newbyteorder("<"), copy=False)).cast("B")


def _read(file: BinaryIO, size: int, seen: _Hash, wanted: Mapping[str, Wanted]) -> dict[str, Tensor]:
    start = _exactly(file, 8, seen)
    length = int.from_bytes(start, "little")
    if length > min(size - 8, _HEADER):
        raise ValueError(f"a header of {length} bytes in a file of {size}")
    told = files.loads(_exactly(file, length, seen).decode())
    if not isinstance(told, dict):
        raise ValueError(f"a header that is {files.shown(told)}")
    at, places = 0, []
    for name, one in told.items():
        tensor = _place(name, one, at, wanted)
        places.append((name, tensor))
        at += tensor.entries * tensor.dtype.itemsize
    if at != size - 8 - length:
        raise ValueError(f"{size - 8 - length} bytes of data for tensors of {at}")
    return {name: _tensor(file, place, seen) for name, place in places}


class _Place(NamedTuple):
    dtype: torch.dtype
    entries: int


def _place(name: str, told: Any, at: int, wanted: Mapping[str, Wanted]) -> _Place:
    """What the header says of the tensor whose bytes begin at `at`."""
    if name not in wanted:
        raise ValueError(f"a tensor {name[:40]!r}, which the state does not name")
    want = wanted[name]
    match told:
        case {"dtype": str(dtype), "shape": [int(count)], "data_offsets": [int(first), int(last)]}:
            fits = dtype == DTYPES[want.dtype] and want.least <= count <= want.most
            if fits and (first, last) == (at, at + count * want.dtype.itemsize) and len(told) == 3:
                return _Place(want.dtype, int(count))  # JSON's true is an int, too
    most = f"{want.least} to {want.most}" if want.least < want.most else str(want.most)
    raise ValueError(
        f"{name} as {str(told)[:120]} in place of {most} entries of {DTYPES[want.dtype]} at {at}"
    )


def _tensor(file: BinaryIO, place: _Place, seen: _Hash) -> Tensor:
    try:
        tensor = torch.empty(place.entries, dtype=place.dtype)
    except RuntimeError as full:  # what torch says of memory that it does not get
        raise MemoryError(f"for a tensor of {place.entries:,} entries of a checkpoint") from full
    array: Any = tensor.numpy()
    data = memoryview(array).cast("B") if place.entries else memoryview(bytearray())
    done = 0
    while done < len(data):
        count = file.readinto(data[done:])  # type: ignore[attr-defined]
        if not count:
            raise EOFError("the end of the file before that of its tensors")
        done += count
    seen.update(data)
    if array.dtype.newbyteorder("<") != array.dtype:
        array.byteswap(inplace=True)
    return tensor


def _exactly(file: BinaryIO, count: int, seen: _Hash) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise EOFError("the end of the file before that of its header")
    seen.update(data)
    return data
