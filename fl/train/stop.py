"""A flag that says stop, for Python and for native code, which looks at it between batches."""

import threading

import numpy as np


class Stop:
    """As threading.Event. `flag`: one byte, not 0 once it is set.

    >>> stop = Stop()
    >>> stop.set()
    >>> stop.is_set(), stop.flag.item()
    (True, 1)
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self.flag = np.zeros(1, np.uint8)

    def set(self) -> None:
        self._event.set()
        self.flag[0] = 1

    def clear(self) -> None:
        self._event.clear()
        self.flag[0] = 0

    def is_set(self) -> bool:
        return self._event.is_set()
