"""Loads and stores of global, shared and parameter memory, and asynchronous copies."""

import numpy as np
from numpy.typing import NDArray

from virtual_card.faults import Trap
from virtual_card.instructions.table import instruction
from virtual_card.lanes import Lanes, Mask, items
from virtual_card.numbers import B32, SIGNED, UNSIGNED, Kind, kind
from virtual_card.ptx import Address, Instruction, Literal, Operand, Symbol
from virtual_card.races import Who


def who(lanes: Lanes, chosen: NDArray[np.int64]) -> Who:
    """These lanes as agents."""
    return Who(chosen, lanes.program[chosen], lanes.warp[chosen], lanes.epoch[lanes.local[chosen]])


@instruction("ld", "ldu")
def _ld(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    target, source = ins.operands[:2]
    how = kind(ins.parts[-1])
    if "param" in ins.parts:
        assert isinstance(source, Address) and isinstance(source.base, Symbol)
        value = np.full(lanes.size, lanes.parameters[source.base.name], UNSIGNED[how.bits])
        return lanes.write(target, value, mask)
    targets = items(target)
    data, unknown = read(lanes, ins, source, how.bits // 8 * len(targets), mask)
    for i, each in enumerate(targets):
        part = np.ascontiguousarray(data[:, i * how.bits // 8 : (i + 1) * how.bits // 8])
        value = part.view((SIGNED if how.letter == "s" else UNSIGNED)[how.bits])[:, 0]
        lanes.write(each, value.astype(_register_type(how)), mask, unknown)


def _register_type(how: Kind) -> type:
    """Bytes live in registers of 16 bits or more; a sign fills them all, however wide they are."""
    return np.int64 if how.letter == "s" else UNSIGNED[max(how.bits, 16)]


def read(lanes: Lanes, ins: Instruction, source: Operand, size: int, mask: Mask) -> tuple[NDArray, Mask]:
    """uint8 [lanes, size] of global or shared memory, and which lanes got noise."""
    data, chosen = lanes.noise.integers(0, 256, (lanes.size, size), dtype=np.uint8), lanes.chosen(mask)
    shared = "shared" in ins.parts
    address = lanes.address(source, mask, 32 if shared else 64)
    if shared:
        lanes.counts.shared(lanes, address, size, mask)
        data[chosen], holes = lanes.shared.load(
            lanes.local[chosen], address[chosen], size, who(lanes, chosen)
        )
    else:
        lanes.counts.sectors(lanes, "load", address, size, mask)
        data[chosen], holes = lanes.launch.memory.load(address[chosen], size, who(lanes, chosen))
    if holes is None:
        return data, None
    unknown = np.zeros(lanes.size, bool)
    unknown[chosen] = holes
    return data, unknown


@instruction("st")
def _st(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    target, source = ins.operands
    how, sources = kind(ins.parts[-1]), items(source)
    parts = [
        lanes.read(each, Kind("u", how.bits)).copy().view(np.uint8).reshape(lanes.size, -1)
        for each in sources
    ]
    data, chosen = np.concatenate(parts, 1), lanes.chosen(mask)
    shared = "shared" in ins.parts
    address = lanes.address(target, mask, 32 if shared else 64)
    size = data.shape[1]
    if shared:
        lanes.counts.shared(lanes, address, size, mask)
        unknown = lanes.unknown(*sources)
        holes = None if unknown is None else unknown[chosen]
        lanes.shared.store(lanes.local[chosen], address[chosen], data[chosen], who(lanes, chosen), holes)
    else:
        for each in sources:
            lanes.known(each, mask, "stores in global memory")
        lanes.counts.sectors(lanes, "store", address, size, mask)
        lanes.launch.memory.store(address[chosen], data[chosen], who(lanes, chosen))


@instruction("cp")
def _cp(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    everyone = np.ones(lanes.size, bool) if mask is None else mask
    match ins.parts[1]:
        case "commit_group":
            lanes.copies.commit(everyone)
        case "wait_group" | "wait_all":
            keep = ins.operands[0].value if ins.operands and isinstance(ins.operands[0], Literal) else 0
            if ins.parts[1] == "wait_all":
                lanes.copies.commit(everyone)
            for copy, arrives in lanes.copies.due(everyone, keep):
                _arrive(lanes, copy.address, copy.data, copy.holes, arrives)
        case _:
            _issue(lanes, ins, everyone)


def _issue(lanes: Lanes, ins: Instruction, mask: NDArray[np.bool_]) -> None:
    target, source, size = ins.operands[:3]
    assert isinstance(size, Literal)
    take = mask
    if len(ins.operands) > 3:  # how many bytes to read; the rest is 0
        count = lanes.read(ins.operands[3], B32)
        lanes.known(ins.operands[3], mask, "takes as a size")
        partial = mask & (count != 0) & (count != size.value)
        if partial.any():
            raise Trap("cp.async of a part of its bytes is not implemented", partial.argmax())
        take = mask & (count != 0)
    address = lanes.address(target, mask, 32)
    chosen, reads = np.flatnonzero(mask), np.flatnonzero(take)
    data, holes = np.zeros((lanes.size, size.value), np.uint8), np.zeros(lanes.size, bool)
    where = lanes.address(source, take, 64)
    lanes.counts.sectors(lanes, "load", where, size.value, take)
    data[reads], unknown = lanes.launch.memory.load(where[reads], size.value, who(lanes, reads))
    holes[reads] = False if unknown is None else unknown
    # whoever read the old contents has to be done: a store now, and noise until the data arrive
    old = np.zeros((len(chosen), size.value), np.uint8)
    lanes.shared.store(
        lanes.local[chosen], address[chosen], old, who(lanes, chosen), np.ones(len(chosen), bool)
    )
    lanes.shared.flying[_cells(lanes, address, chosen, size.value)] = True
    lanes.copies.issue(address, data, holes, mask)


def _arrive(lanes: Lanes, address: NDArray, data: NDArray, holes: NDArray | None, arrives: NDArray) -> None:
    chosen = np.flatnonzero(arrives)
    lanes.shared.flying[_cells(lanes, address, chosen, data.shape[1])] = False
    lanes.counts.shared(lanes, address, data.shape[1], arrives)
    some = None if holes is None else holes[chosen]
    lanes.shared.store(lanes.local[chosen], address[chosen], data[chosen], who(lanes, chosen), some)


def _cells(lanes: Lanes, address: NDArray, chosen: NDArray, size: int) -> NDArray:
    return (lanes.local[chosen] * lanes.shared.size + address[chosen])[:, None] + np.arange(size)
