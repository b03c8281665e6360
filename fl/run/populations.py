"""Where the clients of a run are kept, and whether a round may drop models of the last one as it goes on.

With the executor ray, models are on the machines of the cluster (fl/run/cluster): what is kept here are their
names, in a tuple.

Where it may, a round that fails cannot begin again from memory: it begins at the last checkpoint, or anew,
as after kill -9. So that is done where a population is large, and only in runs with a directory, or in the
first round.
"""

from collections.abc import Callable
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from fl.clients.base import Clients
from fl.clients.memory import InMemory
from fl.clients.store import Store
from fl.config import Config
from fl.errors import ConfigError
from fl.run.book import Book
from fl.train.setting import Setting

LARGE = 1 << 28  # bytes of all clients


class Populations:
    """The store of one run, made when it is asked for."""

    def __init__(self, cfg: Config, setting: Setting, *, elsewhere: bool = False) -> None:
        """`elsewhere`: the executor keeps the models. ConfigError: it cannot keep them as `cfg` wants."""
        if elsewhere and cfg.run.at_rest != "fp32":
            raise ConfigError(f"run.at_rest: expected fp32 with the executor ray, got {cfg.run.at_rest}")
        self._cfg, self._setting, self._elsewhere = cfg, setting, elsewhere
        self._store: Store | None = None

    def store(self, folder: Path | None) -> Callable[..., Clients[Any]]:
        """What makes populations. `folder`: the run directory, if there is one."""
        if self._elsewhere:
            return InMemory
        if self._store is None:
            run = self._cfg.run
            files = (folder or Path(gettempdir())) if run.store == "files" else None
            self._store = Store(self._setting.initial.layout, files, half=run.at_rest == "bf16")
        return self._store

    def may_spend(self, t: int, book: Book) -> bool:
        """Whether round t may drop models as it goes on."""
        large = self._store is not None and self._store.nbytes >= LARGE
        return large and (t == 0 or book.path is not None)
