"""A virtual card: the PTX that Triton compiles for an RTX 4090 (sm_89), executed on NumPy, one array lane
per GPU thread.

    with virtual_card.installed() as card:            # cuda:0 is here, launches of tile.Config run here
        values = pack(dense.to("cuda:0"), pattern)
    card.launches, card.events, card.syncs            # counts, not times

Checked: the end of every allocation, alignment, barriers, races in shared and global memory, values that
nobody wrote. A `Fault` names the kernel, the line of PTX and of the source, the program and the lane.
Counted: see `counts`. Not seen: errors of ptxas, time, the order in which a card adds (tensor cores,
atomics), races inside a warp.

    ptx  numbers  lanes  instructions/      text to instructions; what they do to registers
    memory  shared  races                   global and shared memory, who touched what
    running  card  counts                   lock step and barriers; launches; what they cost
    tensors  guard                          tensors on cuda:0
    compiled  launch  installed             PTX of our kernels; the code under test on the card
    driver  as_gpu                          Triton's run time on it; pytest as on a machine with a GPU
    planted                                 kernels, some with a bug, that test the card

Why not triton-viz 3.0 (looked at first): its sanitizer follows the loads and stores of Triton's
interpreter, and proves their bounds with z3. It does not see what the compiler makes of them: layouts,
barriers, shared memory, vector widths, fused rounding, tensor cores. Its tensors stay on the CPU, its wheel
has no race detector, and it brings flask, pyarrow, z3 and cairo.
"""

from virtual_card.card import Card
from virtual_card.faults import Fault
from virtual_card.installed import installed

__all__ = ["Card", "Fault", "installed"]
