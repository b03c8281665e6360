"""atom and red: one lane after another, in the order of lanes. A real card has another order in every
run, so a kernel whose result depends on it (float sums) is the kernel's business; `atomic_collisions`
counts how many lanes of a warp hit a number that another lane of it hit, too.
"""

import numpy as np
from numpy.typing import NDArray

from virtual_card.instructions.table import instruction
from virtual_card.instructions.transfers import who
from virtual_card.lanes import Lanes, Mask
from virtual_card.numbers import UNSIGNED, Kind, kind
from virtual_card.ptx import NOWHERE, Instruction

_OPERATIONS = {
    **{"add": np.add, "min": np.minimum, "max": np.maximum},
    **{"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor},
}


@instruction("atom", "red")
def _atom(lanes: Lanes, ins: Instruction, mask: Mask) -> None:
    target, where, *sources = ins.operands if ins.opcode == "atom" else (NOWHERE, *ins.operands)
    how = kind(ins.parts[-1])
    how = Kind("u", how.bits) if how.letter == "b" else how
    name = next(part for part in ins.parts if part in (*_OPERATIONS, "exch", "cas", "inc", "dec"))
    given = [lanes.read(source, how) for source in sources]
    for source in sources:
        lanes.known(source, mask, "changes memory by")
    chosen, size = lanes.chosen(mask), how.bits // 8
    shared = "shared" in ins.parts
    address = lanes.address(where, mask, 32 if shared else 64)
    out = np.zeros(lanes.size, UNSIGNED[how.bits]).view(how.type)
    agents = who(lanes, chosen)
    if shared:
        lanes.counts.shared(lanes, address, size, mask)
        at = lanes.shared.atomic(lanes.local[chosen], address[chosen], size, agents)
        places = [(lanes.shared.data.view(UNSIGNED[how.bits]), at, np.arange(len(chosen)))]
    else:
        lanes.counts.sectors(lanes, "atomic", address, size, mask)
        places = lanes.launch.memory.atomic(address[chosen], size, agents)
    for words, at, some in places:
        who_here = chosen[some]
        lanes.counts.collisions(lanes, at, who_here, shared)
        out[who_here] = _change(words.view(how.type), at, name, [x[who_here] for x in given])
    lanes.write(target, out, mask)


def _change(words: NDArray, at: NDArray, name: str, given: list[NDArray]) -> NDArray:
    """Apply in order; return what each lane found."""
    order = np.argsort(at, kind="stable")
    firsts = np.flatnonzero(np.diff(at[order], prepend=-1))
    if len(firsts) == len(at) and name in _OPERATIONS:  # no two lanes meet
        old = words[at].copy()
        words[at] = _OPERATIONS[name](old, given[0])
        return old
    old = np.empty(len(at), words.dtype)
    for i, place in enumerate(at):
        old[i] = words[place]
        if name in _OPERATIONS:
            words[place] = _OPERATIONS[name](old[i], given[0][i])
        elif name == "exch":
            words[place] = given[0][i]
        elif name == "cas":
            words[place] = given[1][i] if old[i] == given[0][i] else old[i]
        else:
            raise ValueError(f"atom.{name} is not implemented")
    return old
