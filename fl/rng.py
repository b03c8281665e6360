"""Named random streams: every draw of a run comes from (seed, purpose, round, client) and from nothing else.

    key      128 bit, blake2b of (seed, purpose)
    counter  256 bit, starts at (0, 0, t, k): streams of one key cannot meet before 2^128 draws

So a client's draws do not depend on who runs it, when, or after whom.
"""

from functools import lru_cache
from hashlib import blake2b

import numpy as np


def stream(seed: int, purpose: str, t: int = 0, k: int = 0) -> np.random.Generator:
    """The generator of `purpose` in round t for client k, at its beginning."""
    if t < 0 or k < 0:
        raise ValueError(f"expected a round and a client from 0 on, got t={t}, k={k}")
    counter = np.array([0, 0, t, k], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key(int(seed), purpose), counter=counter))


@lru_cache(maxsize=256)
def key(seed: int, purpose: str) -> int:
    """The 128-bit key of a purpose."""
    return int.from_bytes(blake2b(f"{seed} {purpose}".encode(), digest_size=16).digest(), "little")
