"""mma.sync and ldmatrix: matrices spread over the lanes of a warp.

mma: m16n8k8 of tf32, m16n8k16 (and k8) of f16 and bf16, sums in float32. Lane = 4 g + t holds, with i the
number of the register,

    A   rows g + 8 (i mod 2), columns t + 4 (i div 2)         tf32: one number per register
        the same rows, columns 2 t + h + 8 (i div 2)          halves: two, h = 0, 1
    B   rows t + 4 i   or   2 t + h + 8 i, column g
    C   rows g + 8 (i div 2), columns 2 t + i mod 2

tf32 drops the last 13 bits of its inputs. The sum over k is exact here and rounded once; a card adds in an
order of its own and rounds in between, so only tolerances can be tested, not last bits.
"""

import re

import numpy as np
from numpy.typing import NDArray

from virtual_card.faults import Trap
from virtual_card.instructions.table import instruction
from virtual_card.instructions.transfers import who
from virtual_card.lanes import WARP, Lanes, Mask, items
from virtual_card.numbers import B32, F32, halves
from virtual_card.ptx import Instruction, Operand

_G, _T = np.arange(WARP) // 4, np.arange(WARP) % 4


@instruction("mma")
def _mma(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    lanes.whole_warps(mask, "mma")
    shape = next(part for part in ins.parts if re.fullmatch(r"m\d+n\d+k\d+", part))
    m, n, k = map(int, re.findall(r"\d+", shape))
    out, of_a, of_b, sums = ins.parts[-4:]
    known = {("tf32", 8), ("f16", 8), ("f16", 16), ("bf16", 8), ("bf16", 16)}
    if (m, n) != (16, 8) or (of_a, k) not in known or (out, of_b, sums) != ("f32", of_a, "f32"):
        raise ValueError(f"mma of shape {shape} and types {ins.parts[-4:]} is not implemented")
    warps = lanes.size // WARP
    of_row = [(operand, _G + 8 * (i % 2), i // 2) for i, operand in enumerate(items(ins.operands[1]))]
    of_column = [(operand, _G, i) for i, operand in enumerate(items(ins.operands[2]))]
    a, a_marks = _matrix(lanes, of_row, of_a, (warps, m, k))
    b, b_marks = _matrix(lanes, of_column, of_b, (warps, n, k))  # transposed
    total, marks = np.zeros((warps, m, n)), a_marks.any(2)[:, :, None] | b_marks.any(2)[:, None, :]
    for i, operand in enumerate(items(ins.operands[3])):
        place = (slice(None), _G + 8 * (i // 2), 2 * _T + i % 2)
        total[place] = lanes.read(operand, F32).reshape(warps, WARP)
        unknown = lanes.unknown(operand)
        marks[place] |= False if unknown is None else unknown.reshape(warps, WARP)
    total = (total + a @ b.transpose(0, 2, 1)).astype(np.float32)
    lanes.counts.add(f"mma_{shape}_{of_a}", int(lanes.active(mask).any(1).sum()))
    for i, operand in enumerate(items(ins.operands[0])):
        place = (slice(None), _G + 8 * (i // 2), 2 * _T + i % 2)
        lanes.write(operand, total[place].reshape(-1), mask, marks[place].reshape(-1))


def _matrix(
    lanes: Lanes, registers: list[tuple[Operand, NDArray, int]], name: str, shape: tuple[int, int, int]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """[warps, rows, k]: numbers, and which are noise. registers: operand, row of a lane, block of columns."""
    values, marks = np.zeros(shape), np.zeros(shape, bool)
    for operand, row, block in registers:
        bits = lanes.read(operand, B32).reshape(-1, WARP)
        unknown = lanes.unknown(operand)
        parts = [(bits & np.uint32(0xFFFFE000)).view(np.float32)] if name == "tf32" else halves(bits, name)
        for h, part in enumerate(parts):
            column = _T + 4 * block if name == "tf32" else 2 * _T + h + 8 * block
            values[:, row, column] = part
            if unknown is not None:
                marks[:, row, column] = unknown.reshape(-1, WARP)
    return values, marks


@instruction("ldmatrix")
def _ldmatrix(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    """8 x 8 halves per target register; lanes 8 i to 8 i + 7 have the addresses of the rows of matrix i."""
    lanes.whole_warps(mask, "ldmatrix")
    if "m8n8" not in ins.parts or ins.parts[-1] != "b16":
        raise ValueError("expected ldmatrix of m8n8 and b16")
    rows = lanes.address(ins.operands[1], _addressing(lanes, ins, mask), 32).reshape(-1, WARP)
    for i, target in enumerate(items(ins.operands[0])):
        starts = rows[:, 8 * i : 8 * i + 8]
        wrong = (starts % 16 != 0) & lanes.active(mask)[:, :8]
        if wrong.any():
            warp, row = divmod(int(wrong.argmax()), 8)
            raise Trap(
                "misaligned: ldmatrix takes rows that begin at multiples of 16 bytes",
                warp * WARP + 8 * i + row,
            )
        lanes.counts.shared(lanes, (starts[:, _G] + 4 * _T).reshape(-1), 4, mask)
        if "trans" in ins.parts:
            low, high = (starts[:, 2 * _T + h] + 2 * _G for h in (0, 1))
            (first, holes), (second, more) = (
                _halves_at(lanes, at.reshape(-1), 2, mask) for at in (low, high)
            )
            data, holes = np.concatenate([first, second], 1), holes | more
        else:
            data, holes = _halves_at(lanes, (starts[:, _G] + 4 * _T).reshape(-1), 4, mask)
        lanes.write(target, np.ascontiguousarray(data).view(np.uint32)[:, 0], mask, holes)


def _addressing(lanes: Lanes, ins: Instruction, mask: Mask) -> NDArray[np.bool_]:
    """Lanes whose addresses count."""
    used = lanes.lane < 8 * len(items(ins.operands[0]))
    return used if mask is None else used & mask


def _halves_at(lanes: Lanes, at: NDArray, size: int, mask: Mask) -> tuple[NDArray, NDArray[np.bool_]]:
    chosen = lanes.chosen(mask)
    data, unknown = np.zeros((lanes.size, size), np.uint8), np.zeros(lanes.size, bool)
    data[chosen], holes = lanes.shared.load(lanes.local[chosen], at[chosen], size, who(lanes, chosen))
    unknown[chosen] = False if holes is None else holes
    return data, unknown
