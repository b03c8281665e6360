"""Bits: logic, shifts, counts, fields. Where a known 0 (or 1) decides, noise in the other operand does
not matter.
"""

import numpy as np
from numpy.typing import NDArray

from virtual_card.instructions.table import instruction
from virtual_card.lanes import Lanes, Mask
from virtual_card.numbers import B32, UNSIGNED, kind
from virtual_card.ptx import Instruction, Literal, Operand

_OF_BYTE = np.array([i.bit_count() for i in range(256)], np.uint32)
_LOGIC = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


@instruction("and", "or", "xor")
def _logic(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    how = kind(ins.parts[-1])
    target, *operands = ins.operands
    x, y = (lanes.read(operand, how) for operand in operands)
    unknown = lanes.unknown(*operands)
    if unknown is not None and ins.opcode != "xor":
        decides = x.dtype.type(0) if ins.opcode == "and" else ~x.dtype.type(0)
        for operand, value in zip(operands, (x, y), strict=True):
            marks = lanes.unknown(operand)
            unknown = unknown & ~((value == decides) & (True if marks is None else ~marks))
    lanes.write(target, _LOGIC[ins.opcode](x, y), mask, unknown)


@instruction("not", "cnot")
def _not(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    x = lanes.read(ins.operands[1], kind(ins.parts[-1]))
    value = ~x if ins.opcode == "not" else (x == 0).astype(x.dtype)
    lanes.write(ins.operands[0], value, mask, lanes.unknown(ins.operands[1]))


@instruction("shl", "shr")
def _shift(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    how = kind(ins.parts[-1])
    x, by = lanes.read(ins.operands[1], how), lanes.read(ins.operands[2], B32)
    most = how.bits - 1
    clamped = np.minimum(by, most).astype(x.dtype)
    value = x << clamped if ins.opcode == "shl" else x >> clamped
    if (by > most).any():
        beyond = x >> x.dtype.type(most) if ins.opcode == "shr" and how.letter == "s" else np.zeros_like(x)
        value = np.where(by > most, beyond, value)
    lanes.write(ins.operands[0], value, mask, lanes.unknown(*ins.operands[1:]))


@instruction("shf")
def _funnel(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    low, high, by = (lanes.read(operand, B32).astype(np.uint64) for operand in ins.operands[1:])
    by = np.minimum(by, 32) if "clamp" in ins.parts else by & np.uint64(31)
    both = low | (high << np.uint64(32))
    value = both >> by if ins.parts[0] == "r" else (both << by) >> np.uint64(32)
    lanes.write(ins.operands[0], value.astype(np.uint32), mask, lanes.unknown(*ins.operands[1:]))


@instruction("popc", "clz", "brev", "bfind")
def _count(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    bits = kind(ins.parts[-1]).bits
    x = lanes.read(ins.operands[1], kind(f"u{bits}"))
    if ins.opcode == "brev":
        value = sum(
            ((x >> x.dtype.type(i)) & x.dtype.type(1)) << x.dtype.type(bits - 1 - i) for i in range(bits)
        )
    elif ins.opcode == "popc":
        value = _set_bits(x)
    else:
        if ins.opcode == "bfind" and ins.parts[-1][0] == "s":
            raise ValueError("bfind of signed numbers is not implemented")
        value = _leading_zeros(x, bits)
        value = value if ins.opcode == "clz" else np.uint32(bits - 1) - value
    lanes.write(ins.operands[0], value, mask, lanes.unknown(ins.operands[1]))


def _set_bits(x: NDArray) -> NDArray[np.uint32]:
    """How many bits are set, byte by byte from a table: numpy counts them from version 2 on only."""
    octets = np.ascontiguousarray(x).view(np.uint8).reshape(*x.shape, x.dtype.itemsize)
    return _OF_BYTE[octets].sum(-1, dtype=np.uint32)


def _leading_zeros(x: NDArray, bits: int) -> NDArray[np.uint32]:
    filled = x.copy()
    for step in (1, 2, 4, 8, 16, 32):
        if step < bits:
            filled |= filled >> x.dtype.type(step)
    return np.uint32(bits) - _set_bits(filled)


@instruction("bfe")
def _extract(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    how = kind(ins.parts[-1])
    x = lanes.read(ins.operands[1], kind(f"u{how.bits}")).astype(np.uint64)
    start, length = _field(lanes, ins.operands[2]), _field(lanes, ins.operands[3])
    value = (x >> start) & _ones(length)
    if how.letter == "s":
        top = np.where(length > 0, np.uint64(1) << np.maximum(length, 1) - np.uint64(1), np.uint64(0))
        value = (value ^ top) - top
    lanes.write(ins.operands[0], value.astype(UNSIGNED[how.bits]), mask, lanes.unknown(*ins.operands[1:]))


@instruction("bfi")
def _insert(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    how = kind(ins.parts[-1])
    x, y = (lanes.read(operand, how).astype(np.uint64) for operand in ins.operands[1:3])
    start, length = _field(lanes, ins.operands[3]), _field(lanes, ins.operands[4])
    field = _ones(length) << start
    value = (y & ~field) | ((x << start) & field)
    lanes.write(ins.operands[0], value.astype(UNSIGNED[how.bits]), mask, lanes.unknown(*ins.operands[1:]))


def _field(lanes: Lanes, operand: Operand) -> NDArray[np.uint64]:
    return np.minimum(lanes.read(operand, B32).astype(np.uint64) & np.uint64(255), 63)


def _ones(length: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return (np.uint64(1) << length) - np.uint64(1)


@instruction("prmt")
def _permute(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    if len(ins.parts) != 1:
        raise ValueError(f"prmt.{ins.parts[-1]} is not implemented")
    low, high, choice = (lanes.read(operand, B32).astype(np.uint64) for operand in ins.operands[1:])
    both, value = low | (high << np.uint64(32)), np.zeros(lanes.size, np.uint64)
    for i in range(4):
        which = (choice >> np.uint64(4 * i)) & np.uint64(15)
        byte = (both >> (np.uint64(8) * (which & np.uint64(7)))) & np.uint64(255)
        sign = np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0))
        value |= np.where(which & np.uint64(8), sign, byte) << np.uint64(8 * i)
    lanes.write(ins.operands[0], value.astype(np.uint32), mask, lanes.unknown(*ins.operands[1:]))


@instruction("lop3")
def _lop3(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    x, y, z = (lanes.read(operand, B32) for operand in ins.operands[1:4])
    assert isinstance(ins.operands[4], Literal)
    value = np.zeros(lanes.size, np.uint32)
    for i in range(8):
        if ins.operands[4].value >> i & 1:
            value |= (x if i & 4 else ~x) & (y if i & 2 else ~y) & (z if i & 1 else ~z)
    lanes.write(ins.operands[0], value, mask, lanes.unknown(*ins.operands[1:4]))
