"""Moves, conversions and choices between two values."""

import numpy as np
from numpy.typing import NDArray

from virtual_card.instructions.table import instruction
from virtual_card.lanes import Lanes, Mask
from virtual_card.numbers import B16, B32, F32, PRED, UNSIGNED, Kind, flushed, kind, to_bf16, to_tf32
from virtual_card.ptx import Group, Instruction, Register, Symbol

_ROUND = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}


@instruction("mov")
def _mov(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    target, source = ins.operands
    how = kind(ins.parts[-1])
    if isinstance(target, Group):
        x, bits = lanes.read(source, Kind("u", how.bits)), how.bits // len(target.items)
        for i, each in enumerate(target.items):
            lanes.write(
                each, (x >> x.dtype.type(i * bits)).astype(UNSIGNED[bits]), mask, lanes.unknown(source)
            )
    elif isinstance(source, Group):
        bits, value = how.bits // len(source.items), np.zeros(lanes.size, UNSIGNED[how.bits])
        for i, each in enumerate(source.items):
            value |= lanes.read(each, Kind("u", bits)).astype(value.dtype) << value.dtype.type(i * bits)
        lanes.write(target, value, mask, lanes.unknown(*source.items))
    else:
        lanes.write(target, lanes.read(source, how), mask, lanes.unknown(source))


@instruction("cvta")
def _same_address(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    if "shared" in ins.parts:
        raise ValueError("generic addresses of shared memory are not implemented")
    _mov(lanes, ins, mask)


@instruction("selp")
def _selp(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    how = kind(ins.parts[-1])
    target, yes, no, which = ins.operands
    holds = lanes.read(which, PRED)
    value = np.where(holds, lanes.read(yes, how), lanes.read(no, how))
    unknown = lanes.unknown(which)
    for operand, chosen in ((yes, holds), (no, ~holds)):
        marks = lanes.unknown(operand)
        if marks is not None:
            unknown = marks & chosen if unknown is None else unknown | (marks & chosen)
    lanes.write(target, value, mask, unknown)


@instruction("cvt")
def _cvt(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    target, *sources = ins.operands
    to, of = ins.parts[-2:]
    if to in ("f16x2", "bf16x2"):
        high, low = (_half(lanes.read(source, F32), to).astype(np.uint32) for source in sources)
        value: NDArray = (high << np.uint32(16)) | low
    elif to == "tf32":
        value = to_tf32(lanes.read(sources[0], B32))
    elif to == "bf16":
        value = to_bf16(lanes.read(sources[0], kind(of)).astype(np.float32))
    elif of == "bf16":
        value = lanes.read(sources[0], B16).astype(np.uint32) << np.uint32(16)
        value = value if to == "f32" else _number(value.view(np.float32), F32, kind(to), ins.parts)
    else:
        value = _number(lanes.read(sources[0], kind(of)), kind(of), kind(to), ins.parts)
    assert isinstance(target, Register | Symbol)
    lanes.write(target, _at_least_16_bits(value), mask, lanes.unknown(*sources))


def _half(x: NDArray, name: str) -> NDArray:
    return to_bf16(x) if name.startswith("bf16") else x.astype(np.float16).view(np.uint16)


def _number(x: NDArray, of: Kind, to: Kind, parts: tuple[str, ...]) -> NDArray:
    if "ftz" in parts and x.dtype == np.float32:
        x = flushed(x)
    rounding = next((_ROUND[part] for part in parts if part in _ROUND), None)
    if of.letter == "f" and rounding is not None:
        x = rounding(x)
    if to.letter == "f" or of.letter != "f":
        return x.astype(to.type)
    low, high = (-(2.0 ** (to.bits - 1)), 2.0 ** (to.bits - 1)) if to.letter == "s" else (0.0, 2.0**to.bits)
    inside = (x >= low) & (x < high)
    most = np.iinfo(to.type).max
    clamped = np.where(x >= high, most, np.iinfo(to.type).min).astype(to.type)
    clamped = np.where(np.isnan(x), 0, clamped).astype(to.type)
    return np.where(inside, np.where(inside, x, 0).astype(to.type), clamped)


def _at_least_16_bits(value: NDArray) -> NDArray:
    return (
        value.astype(np.int16 if value.dtype == np.int8 else np.uint16)
        if value.dtype.itemsize == 1
        else value
    )


@instruction("membar", "fence", "griddepcontrol", "nanosleep", "prefetch", "discard", "applypriority")
def _nothing(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    """Order and hints: memory here is in order already, and races are looked for elsewhere."""
