"""What a launch cost, counted, not timed: warp instructions, sectors, bytes, wavefronts, collisions.

warp_instructions               PTX instructions, one per warp that takes part load_/store_/atomic_requests
instructions of warps on global memory ..._sectors                     32-byte sectors that each request
touches;   ..._bytes   what the lanes asked for dram_load_bytes, dram_store_bytes   sectors that the launch
touched at all: traffic with a perfect cache shared_wavefronts               passes over the 32 banks of
shared memory;   shared_ideal   without conflicts atomic_collisions_global, _shared   lanes that meet
another lane of their warp at one number mma_<shape>_<type>, barriers, programs
"""

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from virtual_card.lanes import Lanes

Mask = NDArray[np.bool_] | None  # which lanes take part; None: all of them
WARP = 32
BANKS = 32


class Counts(Counter[str]):
    """Counts of one launch."""

    def add(self, name: str, number: int) -> None:
        self[name] += number

    def sectors(self, lanes: "Lanes", what: str, address: NDArray, size: int, mask: Mask) -> None:
        """A request of each warp for `size` bytes per lane."""
        active = lanes.active(mask)
        sector = np.sort(np.where(active, address.reshape(-1, WARP) // 32, -1), 1)
        distinct = 1 + (np.diff(sector, axis=1) != 0).sum(1) - (sector[:, 0] == -1)
        self[f"{what}_requests"] += int(active.any(1).sum())
        self[f"{what}_sectors"] += int(distinct.sum())
        self[f"{what}_bytes"] += size * int(active.sum())

    def shared(self, lanes: "Lanes", address: NDArray, size: int, mask: Mask) -> None:
        """Wavefronts: 32 lanes at a time for 4 bytes each, 16 for 8, 8 for 16; lanes at one word share it."""
        words = max(1, size // 4)
        together = WARP // words
        active = lanes.active(mask).reshape(-1, together)
        word = np.where(active, address.reshape(-1, together) // 4, -1)[:, :, None] + np.arange(words)
        word = np.sort(np.where(active[:, :, None], word, -1).reshape(len(active), -1), 1)
        new = np.diff(word, axis=1, prepend=-1) != 0
        rows, columns = np.nonzero(new)
        per_bank = np.zeros((len(word), BANKS), np.int64)
        np.add.at(per_bank, (rows, word[rows, columns] % BANKS), 1)
        self["shared_wavefronts"] += int(per_bank.max(1, initial=0).sum())
        self["shared_ideal"] += int(active.any(1).sum())

    def collisions(self, lanes: "Lanes", at: NDArray, who: NDArray, shared: bool) -> None:
        warp = who // WARP
        distinct = len(np.unique(np.stack([warp, at.astype(np.int64)]), axis=1).T)
        self[f"atomic_collisions_{'shared' if shared else 'global'}"] += len(at) - distinct
