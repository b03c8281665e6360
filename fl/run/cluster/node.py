"""The worker of one machine: an actor with threads that train (fl/run/executor.py) and the shard of models
that were made here (shelf.py).

A call of `run` is a batch of clients. Several calls overlap: while one trains, the next fetches what it needs
and the one before it leaves copies at the keeper.
"""

import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import torch

import sparse_engine as se
from fl.errors import Stopped
from fl.run.cluster import exchange, packing
from fl.run.cluster.exchange import Copies, answer, taken
from fl.run.cluster.far import Name, Near
from fl.run.cluster.finder import Finder
from fl.run.cluster.shelf import Shelf
from fl.run.executor import SWITCH, Threads
from fl.train.setting import Setting


class Node:
    """`number`: of this worker, never used twice. `keeper`: where copies go. `seen`: bytes of others' models
    that are kept, at most."""

    def __init__(self, number: int, setting: bytes, workers: int, isa: str, keeper: Any, seen: int) -> None:
        from ray import cloudpickle

        torch.set_num_threads(1)
        self._context = ExitStack()
        with suppress(ValueError, RuntimeError):  # there is none of that name here: `numerics` will tell
            self._context.enter_context(se.use_isa(isa))
        self._setting: Setting = cloudpickle.loads(setting)
        self._shelf = Shelf(number, self._setting.initial, seen)
        self._threads = Threads(self._setting, workers)
        sys.setswitchinterval(SWITCH)  # as Threads does: but here runs overlap
        self._keeper, self._stopped = keeper, -1
        self._batches, self._most_batches = 0, 0

    def numerics(self) -> dict[str, str]:
        """What the bits of results depend on here."""
        return se.numerics() | {"path": str(self._setting.path)}

    def warm_up(self, clients: int) -> None:
        self._threads.warm_up(clients)

    def ping(self) -> None:
        """It lives."""

    def run(
        self, turn: int, given: bytes, put: Mapping[Name, Any], keepers: Mapping[int, Any]
    ) -> list[bytes]:
        """Outcomes of a batch, packed. `put`: what the driver made, by name, in the object store; `keepers`:
        of models, by who made these. Lost: a keeper is gone, so the batch has to be done again."""
        with self._shelf.lock:
            self._batches += 1
            self._most_batches = max(self._most_batches, self._batches)
        made = dict[Name, Near]()
        try:
            return self._run(turn, given, Finder(self._shelf, put, keepers), made)
        except BaseException:  # nobody will hear of what was made
            self.forget(made)
            exchange.forget(self._keeper, made)
            raise
        finally:
            with self._shelf.lock:
                self._batches -= 1

    def _run(self, turn: int, given: bytes, finder: Finder, made: dict[Name, Near]) -> list[bytes]:
        work, tasks = packing.unpack(given, finder.found)
        finder.fetch(tasks.values())
        outcomes, copies = list[bytes](), Copies(self._keeper)
        for outcome in self._threads.run(work, tasks):
            if turn <= self._stopped:
                raise Stopped
            fresh = dict[Name, Near]()
            outcomes.append(packing.pack(outcome, partial(self._shelf.named, fresh=fresh)))
            made.update(fresh)
            copies.add(fresh)
        copies.wait()
        return outcomes

    def stop(self, turn: int) -> None:
        """Batches of this turn end as soon as they can."""
        self._stopped = turn

    def forget(self, names: Iterable[tuple[int, int]]) -> None:
        """Nobody refers to these any more."""
        self._shelf.forget(names)

    def adopt(
        self, makers: Sequence[int], keeper: Any, wanted: Collection[tuple[int, int]], ours: bool
    ) -> None:
        """Take over what workers that died have made, if it is `wanted`; `keeper` has it, where `ours` are,
        too, or not."""
        kept, copies = [Name(*name) for name in answer(keeper.names.remote(makers))], Copies(self._keeper)
        for name, blob in taken(keeper, [name for name in kept if name in wanted]):
            self._shelf.adopt(name, blob)
            if not ours:
                copies.send({name: blob})
        copies.wait()
        exchange.forget(keeper, [name for name in kept if not ours or name not in wanted])

    def copy_to(self, keeper: Any) -> None:
        """From now on copies go to another keeper: all that there are."""
        self._keeper = keeper
        copies = Copies(keeper)
        copies.add(self._shelf.own)
        copies.wait()

    def facts(self) -> dict[str, int]:
        """Who this is; models and masks of its own and of others; how many of others' it ever fetched; bytes
        of these and batches, at most, at a time."""
        return {
            "pid": os.getpid(),
            "own": len(self._shelf.own),
            "seen": self._shelf.num_seen,
            "fetched": self._shelf.fetched,
            "most_seen": self._shelf.most_seen,
            "most_batches": self._most_batches,
        }
