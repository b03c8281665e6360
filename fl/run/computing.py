"""How rounds are computed, and a look at what they gave."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fl.errors import Diverged
from fl.run.history import Numerics


@contextmanager
def computing(numerics: Numerics) -> Iterator[None]:
    """Compute rounds with torch on one thread, since its results may depend on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with numerics():
            yield
    finally:
        torch.set_num_threads(threads)


def check_finite(line: dict[str, Any]) -> None:
    """Diverged: a figure of a round is no number that a line can hold."""
    for key, value in line.items():
        if isinstance(value, float) and not math.isfinite(value):
            of = f" of client {line['client']}" if "client" in line else ""
            raise Diverged(
                f"expected a finite {key}{of} in round {line['round']}, got {value}: lower training.lr, "
                "clip with max_norm, or look at [devices] where it is a modelled one"
            )
