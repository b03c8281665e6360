"""What passes between the lanes of a warp: shfl, vote, redux, activemask, elect."""

import numpy as np

from virtual_card.faults import Trap
from virtual_card.instructions.table import instruction
from virtual_card.lanes import WARP, Lanes, Mask, items
from virtual_card.numbers import B32, PRED, kind
from virtual_card.ptx import Instruction

_REDUCE = {
    **{"add": np.add, "min": np.minimum, "max": np.maximum},
    **{"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor},
}


@instruction("shfl")
def _shfl(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    target, source, offset, control = ins.operands[:4]
    x = lanes.read(source, B32)
    by, bounds = (lanes.read(operand, B32).astype(np.int64) for operand in (offset, control))
    mine, segment, clamp = lanes.lane.astype(np.int64), (bounds >> 8) & 31, bounds & 31
    limit = (mine & segment) | (clamp & ~segment & 31)
    mode = ins.parts[1]
    if mode == "idx":
        other = (mine & segment) | (by & ~segment & 31)
    else:
        other = {"bfly": mine ^ by, "up": mine - by, "down": mine + by}[mode]
    inside = other >= limit if mode == "up" else other <= limit
    place = np.arange(lanes.size) - mine + np.where(inside, other, mine)
    if mask is not None and (absent := mask & ~mask[place]).any():
        raise Trap("shfl takes a value from a lane that does not take part", absent.argmax())
    unknown = lanes.unknown(source, offset)
    results = (x[place], inside)
    for each, value, marks in zip(items(target), results, (unknown, None), strict=False):
        lanes.write(each, value, mask, None if marks is None else marks[place])


@instruction("vote")
def _vote(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    target, source = ins.operands[:2]
    holds = lanes.read(source, PRED)
    lanes.known(source, mask, "votes with")
    active = lanes.active(mask)
    votes = holds.reshape(-1, WARP)
    match ins.parts[1]:
        case "ballot":
            bit = np.uint32(1) << np.arange(WARP, dtype=np.uint32)
            value = ((votes & active) * bit).sum(1, dtype=np.uint32)
        case "any":
            value = (votes & active).any(1)
        case "all":
            value = (votes | ~active).all(1)
        case mode:
            raise ValueError(f"vote.{mode} is not implemented")
    lanes.write(target, np.repeat(value, WARP), mask)


@instruction("redux")
def _redux(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    lanes.whole_warps(mask, "redux")
    target, source = ins.operands[:2]
    x = lanes.read(source, kind(ins.parts[-1])).reshape(-1, WARP)
    value = _REDUCE[ins.parts[1]].reduce(x, 1, dtype=x.dtype)
    unknown = lanes.unknown(source)
    spread = None if unknown is None else np.repeat(unknown.reshape(-1, WARP).any(1), WARP)
    lanes.write(target, np.repeat(value, WARP), mask, spread)


@instruction("activemask")
def _activemask(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    bit = np.uint32(1) << np.arange(WARP, dtype=np.uint32)
    value = (lanes.active(mask) * bit).sum(1, dtype=np.uint32)
    lanes.write(ins.operands[0], np.repeat(value, WARP), mask)
