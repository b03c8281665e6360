"""What goes wrong on the virtual card: a sentence that names the kernel, the PTX line, the program and
the lane.
"""


class Fault(Exception):
    """A kernel did what a real card may punish at any time: wrong memory, a race, an undefined value, a
    barrier that not all threads reach. The message says where."""


class Trap(Exception):
    """The same, before it is known where: `lane` is its number among the lanes that run together."""

    def __init__(self, sentence: str, lane: int) -> None:
        super().__init__(sentence)
        self.sentence, self.lane = sentence, int(lane)
