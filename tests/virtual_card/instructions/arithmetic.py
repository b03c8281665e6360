"""Integer and floating-point arithmetic, and comparisons.

Approximate functions (ex2, lg2, rsqrt, rcp, sqrt and div with .approx) are computed exactly and then moved
by 2^-22 of their value up, down or not at all, by lane: results must not rest on their last bits. 2^0 is 1,
as PTX promises.
"""

import numpy as np
from numpy.typing import NDArray

from virtual_card.instructions.table import instruction
from virtual_card.lanes import Lanes, Mask
from virtual_card.numbers import PRED, Kind, flushed, fma32, kind
from virtual_card.ptx import Instruction

_BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
_COMPARE = {
    **{"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal},
    **{"lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal},
    **{"eq": np.equal, "ne": np.not_equal},
}
_COMBINE = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
_FUNCTIONS = {
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "rcp": lambda x: 1 / x,
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


def _inputs(lanes: Lanes, ins: Instruction, how: Kind) -> list[NDArray]:
    """The operands after the first, small numbers as 0 under .ftz."""
    values = [lanes.read(operand, how) for operand in ins.operands[1:]]
    return [flushed(x) for x in values] if "ftz" in ins.parts and how == ("f", 32) else values


def _output(lanes: Lanes, ins: Instruction, value: NDArray, mask: Mask, noise: Mask = None) -> None:
    """`noise`: lanes without a result."""
    if "ftz" in ins.parts and value.dtype == np.float32:
        value = flushed(value)
    if "approx" in ins.parts or "full" in ins.parts:
        value = _approximate(lanes, ins, value)
    if "sat" in ins.parts and value.dtype.kind == "f":
        value = np.nan_to_num(np.clip(value, 0, 1), nan=0.0).astype(value.dtype)
    unknown = lanes.unknown(*ins.operands[1:])
    lanes.write(
        ins.operands[0],
        value,
        mask,
        noise if unknown is None else unknown | (False if noise is None else noise),
    )


def _approximate(lanes: Lanes, ins: Instruction, value: NDArray) -> NDArray:
    sizes = np.maximum(np.abs(value), 1) if ins.opcode == "lg2" else np.abs(value)
    moved = value + (lanes.lane % 3 - 1) * 2.0**-22 * np.where(np.isfinite(value), sizes, 0).astype(
        np.float64
    )
    return (
        np.where(value == 1, value, moved).astype(value.dtype)
        if ins.opcode == "ex2"
        else moved.astype(value.dtype)
    )


@instruction("add", "sub")
def _add(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    if "cc" in ins.parts:
        raise ValueError("carries are not implemented")
    x, y = _inputs(lanes, ins, kind(ins.parts[-1]))
    _output(lanes, ins, _BINARY[ins.opcode](x, y), mask)


@instruction("mul")
def _mul(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    _output(lanes, ins, _product(lanes, ins), mask)


@instruction("mad")
def _mad(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    how = kind(ins.parts[-1])
    if how.letter == "f":
        return _fma(lanes, ins, mask)
    third = lanes.read(ins.operands[3], how.wide if "wide" in ins.parts else how)
    _output(lanes, ins, _product(lanes, ins) + third, mask)


def _product(lanes: Lanes, ins: Instruction) -> NDArray:
    """x y: all bits of it (.wide), the upper (.hi) or the lower half (.lo)."""
    how = kind(ins.parts[-1])
    x, y = _inputs(lanes, ins, how)[:2]
    if "wide" in ins.parts:
        return x.astype(how.wide.type) * y.astype(how.wide.type)
    if "hi" not in ins.parts:
        return x * y
    if how.bits < 64:
        return ((x.astype(how.wide.type) * y.astype(how.wide.type)) >> how.wide.type(how.bits)).astype(
            how.type
        )
    return np.array([(int(a) * int(b)) >> 64 for a, b in zip(x, y, strict=True)], how.type)


@instruction("fma")
def _fma(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    how = kind(ins.parts[-1])
    x, y, z = _inputs(lanes, ins, how)
    if how.bits == 64:  # long double has 11 more bits of mantissa: rounded once but for rare ties
        value = (x.astype(np.longdouble) * y.astype(np.longdouble) + z.astype(np.longdouble)).astype(
            np.float64
        )
    else:
        value = fma32(x, y, z).astype(how.type)
    _output(lanes, ins, value, mask)


@instruction("div")
def _div(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    how = kind(ins.parts[-1])
    x, y = _inputs(lanes, ins, how)
    if how.letter == "f":
        return _output(lanes, ins, x / y, mask)
    zero = y == 0  # a card gives any number
    y = np.where(zero, 1, y).astype(y.dtype)
    _output(lanes, ins, (x - np.fmod(x, y)) // y, mask, noise=zero)  # towards 0


@instruction("rem")
def _rem(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    x, y = _inputs(lanes, ins, kind(ins.parts[-1]))
    _output(lanes, ins, np.fmod(x, np.where(y == 0, 1, y).astype(y.dtype)), mask, noise=y == 0)


@instruction("neg", "abs")
def _sign(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    (x,) = _inputs(lanes, ins, kind(ins.parts[-1]))
    _output(lanes, ins, -x if ins.opcode == "neg" else np.abs(x), mask)


@instruction("min", "max")
def _extreme(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    how = kind(ins.parts[-1])
    keeps_nan = how.letter != "f" or "NaN" in ins.parts
    smaller, larger = (np.minimum, np.maximum) if keeps_nan else (np.fmin, np.fmax)
    value, *rest = _inputs(lanes, ins, how)
    for other in rest:
        value = (smaller if ins.opcode == "min" else larger)(value, other)
    _output(lanes, ins, value, mask)


@instruction(*_FUNCTIONS)
def _function(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    how = kind(ins.parts[-1])
    (x,) = _inputs(lanes, ins, how)
    exact = _FUNCTIONS[ins.opcode](x.astype(np.float64))
    _output(lanes, ins, exact.astype(how.type), mask)


@instruction("setp", "set")
def _setp(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    if ins.opcode == "set":
        raise ValueError("set is not implemented")
    how, compare = kind(ins.parts[-1]), ins.parts[0]
    x, y = lanes.read(ins.operands[1], how), lanes.read(ins.operands[2], how)
    if "ftz" in ins.parts:
        x, y = flushed(x), flushed(y)
    nan = np.isnan(x) | np.isnan(y) if how.letter == "f" else np.zeros(lanes.size, bool)
    if compare in ("nan", "num"):
        holds = nan if compare == "nan" else ~nan
    elif compare in _COMPARE:
        holds = (
            _COMPARE[compare](x, y) & ~nan
            if compare not in ("lo", "ls", "hi", "hs")
            else _COMPARE[compare](x, y)
        )
    else:
        holds = _COMPARE[compare.removesuffix("u")](x, y) | nan
    unknown = lanes.unknown(*ins.operands[1:3])
    if len(ins.operands) > 3:
        holds = _COMBINE[ins.parts[1]](holds, lanes.read(ins.operands[3], PRED))
        unknown = lanes.unknown(*ins.operands[1:4])
    targets = getattr(ins.operands[0], "items", (ins.operands[0],))
    for target, value in zip(targets, (holds, ~holds), strict=False):
        lanes.write(target, value, mask, unknown)
