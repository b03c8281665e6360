"""The state of an algorithm, from a checkpoint of its run."""

from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from torch import Tensor

import sparse_engine as se
from fl import config
from fl.algorithms.base import Algorithm, Peers
from fl.algorithms.messages import Sent
from fl.clients import plain as store
from fl.clients.store import Store
from fl.clients.tables import NAMES, Tables
from fl.config import Config
from fl.errors import CheckpointError, RunDirError, StoreError
from fl.run import checkpoint, recorded
from fl.run.checkpoint import Head
from fl.run.names import CONFIG


def state_of(
    folder: Path,
    head: Head,
    algorithm: Algorithm,
    cfg: Config,
    layout: se.Layout,
    kept: store.Into,
) -> Any:
    """What `algorithm` kept after the round of `head`, a checkpoint in `folder`; `kept`: where clients lie
    from now on. StoreError or CheckpointError: that does not fit the run."""
    kinds = {name: x for name, x in vars(algorithm).items() if isinstance(x, type) and is_dataclass(x)}
    types = {"Sent": Sent, "Peers": Peers} | kinds
    if head.round >= cfg.num_rounds:
        last = cfg.num_rounds - 1
        raise CheckpointError(f"expected a round up to {last}, the last of the run, got {head.round}")
    tensors = checkpoint.tensors_of(folder, head, store.wanted(head.state, layout))
    told, records = store.in_tables(head.state), kept if isinstance(kept, Store) else Store(layout)
    tables = [
        Tables.read(
            one, {part: _table(tensors, f"{name}/{part}") for part in NAMES}, types, layout, records.half
        )
        for name, one in told.items()
    ]
    stored = dict(zip(told, checkpoint.records_of(folder, head, tables, records), strict=True))
    state = store.put_together(head.state, tensors, types, layout, kept, stored)
    check(state, algorithm, cfg.num_clients)
    return state


def _table(tensors: dict[str, Tensor], name: str) -> Tensor:
    if name not in tensors:
        raise StoreError(f"expected a tensor {name}, got none")
    return tensors[name]


def check(state: Any, algorithm: Algorithm, num_clients: int) -> None:
    """StoreError unless what is saved can be read back: types as the algorithm says, one item per client."""
    hint = get_type_hints(algorithm.init).get("return", Any)
    store.check(state, hint, num_clients)


def same_config(head: Head, cfg: Config) -> None:
    """RunDirError: a checkpoint is of a run with another configuration."""
    if recorded.parsed(head.config) != cfg:
        changes = sorted(set(config.dumps(cfg).splitlines()) - set(head.config.splitlines()))
        raise RunDirError(f"expected {CONFIG} as the run was started with, got it with {changes}")
