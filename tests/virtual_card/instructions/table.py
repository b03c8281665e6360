"""The table of instructions: opcode -> function(lanes, instruction, mask). One file per family fills it."""

from collections.abc import Callable

from virtual_card.lanes import Lanes, Mask
from virtual_card.ptx import Instruction

Handler = Callable[[Lanes, Instruction, Mask], None]
TABLE: dict[str, Handler] = {}


def instruction(*opcodes: str) -> Callable[[Handler], Handler]:
    """Decorator: this function runs these opcodes."""

    def add(function: Handler) -> Handler:
        for opcode in opcodes:
            assert opcode not in TABLE, opcode
            TABLE[opcode] = function
        return function

    return add
