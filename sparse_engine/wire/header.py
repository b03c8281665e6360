"""The header of a message, its checksum, and how it cuts the message into sections.

    at   bytes
     0     4   magic "SPFL"
     4     2   version, 1
     6     1   mask codec:   0 bitmap   1 entropy   2 difference   3 known
     7     1   value codec:  0 fp32     1 bf16      2 fp16         3 q8     4 q16;    + 128: packed
     8     8   checksum: XXH64 of bytes 16 to 63, then of each section; the seed of the first is bytes 0 to 7,
               that of every other the checksum before it
    16     8   fingerprint of the model: names, shapes and dtypes
    24     8   XXH64 of the words of the mask that the receiver has to know; 0 where it needs none
    32     4   sender
    36     4   round
    40    24   bytes of the three sections

Little-endian. The checksum finds damage; it does not say who wrote a message.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from typing import Literal

import numpy as np

from sparse_engine.wire import masks
from sparse_engine.wire.values import Bytes
from sparsefl.kernels.checksum import chain

MAGIC, VERSION = b"SPFL", 1
Values = Literal["fp32", "bf16", "fp16", "q8", "q16"]
VALUES: tuple[Values, ...] = ("fp32", "bf16", "fp16", "q8", "q16")
MASKS, PACKED = masks.CODECS, 128
_HEADER = Struct("<4sHBBQQQIIQQQ")
SIZE = _HEADER.size


class WireError(ValueError):
    """These bytes are no message for this receiver; the text says why."""


@dataclass(frozen=True)
class Header:
    """The fields of a message's header, and how long its parts are."""

    version: int
    mask: masks.Codec
    values: Values
    packed: bool
    checksum: int
    fingerprint: int
    known: int
    sender: int
    round: int
    mask_bytes: int
    values_bytes: int
    rest_bytes: int

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of every part, in order."""
        sections = {"mask": self.mask_bytes, "values": self.values_bytes, "rest": self.rest_bytes}
        return {"header": SIZE} | sections

    @property
    def nbytes(self) -> int:
        return sum(self.sizes.values())


def write(header: Header, sections: list[Bytes]) -> Bytes:
    """Return the bytes of a header. Its checksum is computed, whatever `header` says."""
    values = VALUES.index(header.values) + PACKED * header.packed
    numbers = MAGIC, VERSION, MASKS.index(header.mask), values, 0
    who = header.fingerprint, header.known, header.sender, header.round
    sizes = header.mask_bytes, header.values_bytes, header.rest_bytes
    data = np.frombuffer(bytearray(_HEADER.pack(*numbers, *who, *sizes)), np.uint8)
    data[8:16].view("<u8")[0] = _chain(data, sections)
    return data


def read(data: Bytes) -> Header:
    """Return the header of a message; raise a WireError if there is none, or if sizes do not add up."""
    expect(data.size >= SIZE, f"at least the {SIZE} bytes of a header", data.size)
    magic, version, mask, values, *numbers = _HEADER.unpack(data[:SIZE].tobytes())
    expect(magic == MAGIC, f"a message, which starts with {MAGIC!r}", repr(magic))
    expect(version == VERSION, f"a message of version {VERSION}", version)
    expect(mask < len(MASKS), f"a mask codec below {len(MASKS)}", mask)
    packed, values = divmod(values, PACKED)
    expect(values < len(VALUES), f"a value codec below {len(VALUES)}", values)
    header = Header(version, MASKS[mask], VALUES[values], bool(packed), *numbers)
    expect(header.nbytes == data.size, f"{header.nbytes} bytes, as the header says", data.size)
    return header


def verify(data: Bytes, header: Header) -> None:
    """Raise a WireError unless the message has the checksum that its header claims."""
    found = _chain(data[:SIZE], sections_of(data, header))
    expect(found == header.checksum, f"the checksum {header.checksum:016x}", f"{found:016x}: it is damaged")


def sections_of(data: Bytes, header: Header) -> list[Bytes]:
    """Return mask, values and rest of a message: views."""
    a, b = SIZE + header.mask_bytes, data.size - header.rest_bytes
    return [data[SIZE:a], data[a:b], data[b:]]


def expect(condition: bool, wanted: str, got: object) -> None:
    """Raise a WireError that says what was wanted and what came, unless `condition`."""
    if not condition:
        raise WireError(f"expected {wanted}, got {got}")


def _chain(header: Bytes, sections: Iterable[Bytes]) -> int:
    return chain((header[16:], *sections), int.from_bytes(header[:8].tobytes(), "little"))
