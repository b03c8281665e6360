"""Copies of training samples, so that rare classes are seen more often.

Copies are made before samples are divided, as the authors' code does for HAM10000: those of one image may go
to several clients, and a client may have several. Only numbers of samples are repeated, not images. The test
part, which is split off first (with all images of a lesion on one side), has no copies.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def with_copies(
    labels: NDArray[np.int64], num_classes: int, copies: Sequence[int] | None
) -> NDArray[np.int32]:
    """Numbers of samples, ascending, each as often as it occurs: copies[c] times for class c; None: once."""
    samples = np.arange(len(labels), dtype=np.int32)
    if copies is None:
        return samples
    if len(copies) != num_classes or min(copies) < 1:
        raise ValueError(f"expected copies from 1 on for each of {num_classes} classes, got {list(copies)}")
    return np.repeat(samples, np.array(copies)[labels])
