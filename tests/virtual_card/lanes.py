"""The lanes that run together (all threads of some programs) and their registers.

A register is an array with one number per lane. What was never written is noise, and `unknown` marks it per
lane. Marks travel through arithmetic, as noise may: a masked load leaves noise in lanes that are masked
again later. A fault is to use noise as an address, as a condition, or to store it in global memory
(`known`).
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from virtual_card.counts import WARP, Counts, Mask
from virtual_card.faults import Trap
from virtual_card.memory import Memory
from virtual_card.numbers import UNSIGNED, Kind
from virtual_card.ptx import NOWHERE, Address, Group, Kernel, Literal, Operand, Register, Special, Symbol
from virtual_card.shared import Copies, Shared


@dataclass(frozen=True)
class Launch:
    """What all programs of a launch share."""

    kernel: Kernel
    grid: tuple[int, int, int]
    arguments: tuple[int, ...]  # bits of each parameter
    shared_bytes: int
    memory: Memory
    counts: Counts
    seed: int = 0


@dataclass
class Lanes:
    """All threads of the programs `programs`."""

    launch: Launch
    programs: NDArray[np.int64]
    values: dict[str, NDArray] = field(default_factory=dict)
    unknowns: dict[str, NDArray[np.bool_]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        threads, count = self.launch.kernel.threads, len(self.programs)
        self.threads, self.size = threads, threads * count
        self.thread = np.tile(np.arange(threads, dtype=np.int32), count)
        self.lane = self.thread % WARP
        self.warp = self.thread // WARP
        self.local = np.repeat(np.arange(count), threads)  # which of `programs`
        self.program = np.repeat(self.programs, threads)
        self.epoch = np.zeros(count, np.int32)  # barriers that each program passed
        self.noise = np.random.default_rng(self.launch.seed)
        self.shared = Shared(count, self.launch.shared_bytes, self.noise)
        self.copies = Copies(self.size)
        self.counts = self.launch.counts
        self.parameters = dict(zip(self.launch.kernel.parameters, self.launch.arguments, strict=True))
        self._specials = self._special_registers()

    def _special_registers(self) -> dict[str, NDArray]:
        x, y, z = self.launch.grid
        place = {"x": self.program % x, "y": self.program // x % y, "z": self.program // (x * y)}
        found = {f"%ctaid.{axis}": place[axis] for axis in "xyz"}
        found |= {f"%nctaid.{axis}": np.full(self.size, n) for axis, n in zip("xyz", (x, y, z), strict=True)}
        found |= {f"%tid.{axis}": self.thread * (axis == "x") for axis in "xyz"}
        found |= {f"%ntid.{axis}": np.full(self.size, self.threads if axis == "x" else 1) for axis in "xyz"}
        found |= {"%laneid": self.lane, "%warpid": self.warp, "WARP_SZ": np.full(self.size, WARP)}
        return {name: value.astype(np.uint32) for name, value in found.items()}

    # ---- reading ----

    def read(self, operand: Operand, kind: Kind) -> NDArray:
        """The operand in every lane, as this kind; noise where it was never written."""
        match operand:
            case Register(name, negated):
                value = self.values.get(name)
                if value is None:
                    value = self._never_written(name, kind)
                if kind.letter == "p":
                    return ~value if negated else value
                if value.dtype.itemsize * 8 != kind.bits:
                    value = value.astype(UNSIGNED[kind.bits])
                return value.view(kind.type)
            case Literal(number):
                if kind.letter == "p":
                    return np.full(self.size, bool(number))
                return np.full(self.size, number % (1 << kind.bits), UNSIGNED[kind.bits]).view(kind.type)
            case Special(name):
                return self._specials[name].astype(UNSIGNED[kind.bits], copy=False).view(kind.type)
            case Symbol("global_smem"):
                return np.zeros(self.size, UNSIGNED[kind.bits])  # shared memory begins at 0
        raise ValueError(f"cannot read {operand}")

    def _never_written(self, name: str, kind: Kind) -> NDArray:
        bits = self.noise.integers(0, 1 << 63, self.size, dtype=np.uint64)
        value = bits % 2 == 0 if kind.letter == "p" else bits.astype(UNSIGNED[kind.bits])
        self.values[name], self.unknowns[name] = value, np.ones(self.size, bool)
        return value

    def unknown(self, *operands: Operand) -> Mask:
        """Lanes where one of the operands is noise; None: nowhere. Read the operands first."""
        found = None
        for operand in operands:
            marks = self.unknowns.get(operand.name) if isinstance(operand, Register) else None
            if marks is not None:
                found = marks if found is None else found | marks
        return found

    def known(self, operand: Operand, mask: Mask, use: str) -> None:
        """Trap if a lane that takes part would use noise."""
        marks = self.unknown(operand)
        if marks is not None and (wrong := marks if mask is None else marks & mask).any():
            raise Trap(f"{use} a value that was never written ({operand.name})", wrong.argmax())

    def address(self, operand: Operand, mask: Mask, bits: int) -> NDArray[np.int64]:
        """base + offset in every lane."""
        assert isinstance(operand, Address), operand
        base = self.read(operand.base, Kind("u", bits))
        self.known(operand.base, mask, "takes as an address")
        return base.astype(np.int64) + operand.offset

    def condition(self, guard: Register, mask: Mask, use: str = "depends on") -> NDArray[np.bool_]:
        """Lanes that take part and whose predicate holds."""
        holds = self.read(guard, Kind("p", 1))
        self.known(guard, mask, use)
        return holds if mask is None else holds & mask

    # ---- writing ----

    def write(self, operand: Operand, value: NDArray, mask: Mask, unknown: Mask = None) -> None:
        """Set a register in the lanes that take part; `unknown` marks those that got noise."""
        if operand == NOWHERE:
            return
        assert isinstance(operand, Register), operand
        name = operand.name
        if value.dtype != np.bool_:
            value = np.ascontiguousarray(value)
            value = value.view(UNSIGNED[max(value.dtype.itemsize * 8, 8)])
        if mask is not None:
            old = self.values.get(name)
            if old is None:
                old = self._never_written(
                    name, Kind("p" if value.dtype == np.bool_ else "b", value.dtype.itemsize * 8)
                )
            unwritten = self.unknowns.get(name)
            value = np.where(mask, value, old.astype(value.dtype, copy=False))
            if unknown is not None or unwritten is not None:
                before = np.zeros(self.size, bool) if unwritten is None else unwritten
                unknown = np.where(mask, False if unknown is None else unknown, before)
        self.values[name] = value
        if unknown is not None and unknown.any():
            self.unknowns[name] = unknown
        else:
            self.unknowns.pop(name, None)

    # ---- helpers ----

    def chosen(self, mask: Mask) -> NDArray[np.int64]:
        """Numbers of the lanes that take part."""
        return np.arange(self.size) if mask is None else np.flatnonzero(mask)

    def active(self, mask: Mask) -> NDArray[np.bool_]:
        """bool [warps, 32]"""
        return (np.ones(self.size, bool) if mask is None else mask).reshape(-1, WARP)

    def whole_warps(self, mask: Mask, what: str) -> None:
        """Trap if a warp takes part with some of its lanes only."""
        if mask is not None:
            lanes = mask.reshape(-1, WARP)
            part = lanes.any(1) & ~lanes.all(1)
            if part.any():
                warp = int(part.argmax())
                raise Trap(f"{what} needs all lanes of a warp", warp * WARP + int((~lanes[warp]).argmax()))


def items(operand: Operand) -> tuple[Operand, ...]:
    """The operands of {a, b}, or the one itself."""
    return operand.items if isinstance(operand, Group) else (operand,)
