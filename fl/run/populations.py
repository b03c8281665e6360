"""Where the clients of a run are kept, and whether a round may drop models of the last one as it goes on.

Where it may, a round that fails cannot begin again from memory: it begins at the last checkpoint, or anew,
as after kill -9. So that is done where a population is large, and only in runs with a directory, or in the
first round.
"""

from pathlib import Path
from tempfile import gettempdir

from fl.clients.store import Store
from fl.config import Config
from fl.run.book import Book
from fl.train.setting import Setting

LARGE = 1 << 28  # bytes of all clients


class Populations:
    """The store of one run, made when it is asked for."""

    def __init__(self, cfg: Config, setting: Setting) -> None:
        self._cfg, self._setting = cfg, setting
        self._store: Store | None = None

    def store(self, folder: Path | None) -> Store:
        """`folder`: the run directory, if there is one."""
        if self._store is None:
            run = self._cfg.run
            files = (folder or Path(gettempdir())) if run.store == "files" else None
            self._store = Store(self._setting.initial.layout, files, half=run.at_rest == "bf16")
        return self._store

    def may_spend(self, t: int, book: Book) -> bool:
        """Whether round t may drop models as it goes on."""
        return (t == 0 or book.path is not None) and self.store(book.path).nbytes >= LARGE
