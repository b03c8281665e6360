"""Where the time of a call goes: functions are watched while it runs, and put back afterwards.

Seconds are the processor's, not the clock's: on one thread, what others do on the machine counts less.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median
from time import process_time
from typing import Any
from unittest import mock

Parts = Mapping[str, Sequence[tuple[object, str]]]  # part: where its functions are, and their names


class Stopwatch:
    """Seconds by part, of every call that went through `around`."""

    def __init__(self) -> None:
        self.calls: list[dict[str, float]] = []

    @contextmanager
    def around(self, parts: Parts) -> Iterator[None]:
        """Watches functions for one call: {part: (where the function is, its name)}; the rest is `other`."""
        seconds: dict[str, float] = defaultdict(float)
        with _watched(parts, seconds):
            began = process_time()
            yield
            whole = process_time() - began
        self.calls.append(dict(seconds) | {"other": whole - sum(seconds.values())})

    def medians(self) -> dict[str, float]:
        """Without the first call, which warms up."""
        calls = self.calls[1:] or self.calls
        names = list(dict.fromkeys(name for call in calls for name in call))
        return {name: median(call.get(name, 0.0) for call in calls) for name in names}


@contextmanager
def _watched(parts: Parts, seconds: dict[str, float]) -> Iterator[None]:
    def watched(part: str, function: Callable) -> Callable:
        def call(*args: Any, **kwargs: Any) -> Any:
            began = process_time()
            try:
                return function(*args, **kwargs)
            finally:
                seconds[part] += process_time() - began

        return call

    with ExitStack() as stack:
        for part, functions in parts.items():
            for where, name in functions:
                stack.enter_context(mock.patch.object(where, name, watched(part, getattr(where, name))))
        yield
