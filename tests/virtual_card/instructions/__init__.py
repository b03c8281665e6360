"""What the instructions do, by family; `TABLE` has them all."""

from virtual_card.instructions import arithmetic, atomics, bits, moves, tensor_cores, transfers, warps
from virtual_card.instructions.table import TABLE

__all__ = ["TABLE", "arithmetic", "atomics", "bits", "moves", "tensor_cores", "transfers", "warps"]
