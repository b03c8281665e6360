"""Running a launch: programs in batches, lanes in lock step, the lowest instruction first.

Lanes that part meet again because those behind run first. At an instruction with .sync a warp waits for its
lanes, at a barrier a program waits for its threads. It is a fault if threads of a program wait at different
barriers, or if some have ended.
"""

import numpy as np
from numpy.typing import NDArray

from virtual_card.faults import Fault, Trap
from virtual_card.instructions import TABLE
from virtual_card.lanes import WARP, Lanes, Launch, Mask
from virtual_card.ptx import Instruction, Literal, Symbol

_RUNS, _WAITS_FOR_WARP, _WAITS_FOR_PROGRAM = 0, 1, 2
_BATCH = 1 << 14  # lanes that run together


def run(launch: Launch) -> None:
    """All programs of the grid; results are in memory, counts in `launch.counts`."""
    total = int(np.prod(launch.grid))
    step = max(1, _BATCH // launch.kernel.threads)
    launch.memory.begin()
    try:
        with np.errstate(all="ignore"):
            for first in range(0, total, step):
                _Batch(Lanes(launch, np.arange(first, min(first + step, total)))).run()
    finally:
        read, written = launch.memory.end()
    launch.counts.update(programs=total, dram_load_bytes=read, dram_store_bytes=written)


class _Batch:
    def __init__(self, lanes: Lanes) -> None:
        self.lanes, self.kernel = lanes, lanes.launch.kernel
        self.at = np.zeros(lanes.size, np.int32)  # each lane's next instruction
        self.live = np.ones(lanes.size, bool)
        self.state = np.full(lanes.size, _RUNS, np.int8)

    def run(self) -> None:
        while self.live.any():
            able = self.live & (self.state == _RUNS)
            if not able.any():
                self._pass_barriers()
                continue
            place = int(self.at[able].min())
            mask = self.live & (self.at == place) & (self.state != _WAITS_FOR_PROGRAM)
            self.state[mask] = _RUNS
            self._run_block(place, mask)

    def _run_block(self, place: int, mask: NDArray[np.bool_]) -> None:
        """From `place` on with the lanes of `mask`, until lanes may part or meet."""
        code, leaders, counts = self.kernel.code, self.kernel.leaders, self.lanes.counts
        if code[place].waits_for_warp:
            mask = self._whole_warps(place, mask)
            if not mask.any():
                return
        everyone: Mask = None if mask.all() else mask
        warps = int(mask.reshape(-1, WARP).any(1).sum())
        while True:
            ins = code[place]
            counts["warp_instructions"] += warps
            try:
                taken = everyone if ins.guard is None else self.lanes.condition(ins.guard, everyone)
                if ins.opcode in ("bra", "ret", "exit", "bar", "barrier"):
                    return self._control(ins, place, mask, mask if taken is None else taken)
                if taken is None or taken.any():
                    TABLE[ins.opcode](self.lanes, ins, taken)
            except Trap as trap:
                raise self.fault(trap, ins) from None
            except (KeyError, ValueError) as error:
                sentence = (
                    f"{self.kernel.name}: PTX line {ins.line}: the virtual card does not know {ins.text!r}"
                )
                raise NotImplementedError(f"{sentence} ({error})") from error
            place += 1
            if place in leaders:
                self.at[mask] = place
                return

    def _control(
        self, ins: Instruction, place: int, mask: NDArray[np.bool_], taken: NDArray[np.bool_]
    ) -> None:
        self.at[mask] = place + 1
        if ins.opcode == "bra":
            assert isinstance(ins.operands[0], Symbol)
            self.at[taken] = self.kernel.labels[ins.operands[0].name]
        elif ins.opcode in ("ret", "exit"):
            self.live[taken] = False
        elif ins.parts[0] != "warp":
            if "sync" not in ins.parts or ins.operands != (Literal(0),):
                raise ValueError("only barrier 0 for all threads is implemented")
            self.lanes.counts["barriers"] += int(taken.reshape(-1, WARP).any(1).sum())
            self.at[taken], self.state[taken] = place, _WAITS_FOR_PROGRAM

    def _whole_warps(self, place: int, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The lanes whose warps are here with all their lanes; the others wait."""
        here, live = mask.reshape(-1, WARP), self.live.reshape(-1, WARP)
        part = here.any(1) & (here != live).any(1)
        if not part.any():
            return mask
        stay = mask & np.repeat(part, WARP)
        self.state[stay], self.at[stay] = _WAITS_FOR_WARP, place
        return mask & ~stay

    def _pass_barriers(self) -> None:
        """Every lane waits: let the programs go on whose threads are all at one barrier."""
        threads = self.kernel.threads
        waits = (self.state == _WAITS_FOR_PROGRAM) & self.live
        at, live, waiting = (x.reshape(-1, threads) for x in (self.at, self.live, waits))
        ready = waiting.all(1)
        one = (at == at[:, :1]).all(1)
        if (ready & ~one).any():
            program = int((ready & ~one).argmax())
            lane = program * threads + int((at[program] != at[program, 0]).argmax())
            raise self.fault(Trap("divergent barrier: threads of one program wait at different ones", lane))
        if not ready.any():
            program = int(live.any(1).argmax())
            lane = program * threads + int((live[program]).argmax())
            gone = not live[program].all()
            why = (
                "others of its program have ended" if gone else "others of its program or warp are elsewhere"
            )
            raise self.fault(Trap(f"divergent barrier: waits for ever, {why}", lane))
        go_on = np.repeat(ready, threads)
        self.lanes.epoch[ready] += 1
        self.at[go_on] += 1
        self.state[go_on] = _RUNS

    def fault(self, trap: Trap, ins: Instruction | None = None) -> Fault:
        """The trap with its place: kernel, line of PTX and source, program, thread."""
        lanes, lane = self.lanes, trap.lane
        ins = ins or self.kernel.code[self.at[lane]]
        source = f" ({ins.source})" if ins.source else ""
        who = f"program {lanes.program[lane]}, warp {lanes.warp[lane]}, lane {lanes.lane[lane]}"
        return Fault(f"{self.kernel.name}: PTX line {ins.line}{source}, {who}: {trap.sentence}: {ins.text}")
