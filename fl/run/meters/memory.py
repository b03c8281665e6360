"""The memory of this process."""

import os
from pathlib import Path
from typing import ClassVar

from fl.keys import Key
from fl.run.meters.base import Readings

_STATM = Path("/proc/self/statm")  # pages: of the address space, resident, ...


class Memory:
    """What a process holds when a round is over."""

    keys: ClassVar[tuple[Key, ...]] = (
        Key(
            "rss_bytes",
            "memory of this process when the round was over, resident (RSS); null where the system does not "
            "say (no /proc)",
            unit="byte",
            kind="measured",
            null=True,
        ),
    )

    def start(self) -> None:
        """Nothing to do."""

    def stop(self) -> Readings:
        return {"rss_bytes": rss()}


def rss() -> int | None:
    """Resident bytes of this process; None: the system does not say."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
