"""Trained models of a run directory (fl/run/rundir.py), as they are after its last whole checkpoint.

    client_model(path, k)      client k's model, an se.Model
    server_model(path)         the server's, where the algorithm has one
    client_network(path, k)    client k's model as an ordinary torch network, zeros where nothing is stored
    read(path)                 all of them, with the network that they fit: `Trained`

Which model is a client's, the algorithm says (`of_clients`):

    def client_models(state) -> Population[se.Model]   in its module: one model per client
    def server_model(state) -> se.Model                where it has a server

An algorithm without `client_models` whose state has `clients`, each with a `model`, needs none. This is what
is stored, and so what can be handed out:

    da_dpfl          the trained model, after the pruning of the last round where there was one: recorded
                     accuracies are from before it. With send = "unpruned", the trained model
    dispfl, dfedsam, gossipfl       the trained model
    dfedavgm         z = x + what was sent: the trained model up to what its message lost
    beer             X
    ditto            v_k, the personal model
    fedavg, feddst   the server's model, the same for all: what a client trains itself it does not keep
"""

import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

import sparse_engine as se
from fl import algorithms
from fl.algorithms.base import Algorithm, models_of
from fl.clients.base import Population
from fl.config import Config
from fl.data import Dataset
from fl.errors import ConfigError, RunDirError
from fl.run import checkpoint, populations, recorded, restore, setup
from fl.run.names import CHECKPOINT
from fl.run.own import NOTHING, Own


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The models of a run after a round."""

    config: Config
    round: int
    data: Dataset
    template: nn.Module  # the network before training: `network` copies it
    algorithm: Algorithm
    state: Any
    problems: tuple[str, ...] = ()  # damaged checkpoints that were left aside, a line each

    @cached_property
    def clients(self) -> Population[se.Model]:
        """One model per client."""
        return of_clients(self.algorithm, self.state, self.config.algorithm)

    def client(self, k: int) -> se.Model:
        """Client k's."""
        if not 0 <= k < len(self.clients):
            raise ConfigError(f"expected a client from 0 to {len(self.clients) - 1}, got {k}")
        return self.clients[k]

    @property
    def server(self) -> se.Model:
        """The server's."""
        return of_server(self.algorithm, self.state, self.config.algorithm)

    def network(self, model: se.Model) -> nn.Module:
        """`model` as an ordinary torch network in evaluation mode, zeros where nothing is stored."""
        return se.load(copy.deepcopy(self.template), model).eval()


def read(path: Path | str, own: Own = NOTHING) -> Trained:
    """The models in a run directory. The data set is read too: the network is sized for it. `own`: network
    and data of a run that was started from Python with its own."""
    path = Path(path)
    cfg, _ = recorded.config_of(path)
    folder = path / CHECKPOINT
    if not checkpoint.rounds(folder):
        raise RunDirError(
            f"expected a checkpoint in {folder}, got none: no round was finished, or they were removed"
        )
    algorithm, setting = algorithms.find(cfg.algorithm), setup.prepare(cfg, own)

    def restored(head: checkpoint.Head) -> tuple[int, Any]:
        restore.same_config(head, cfg)
        return head.round, restore.state_of(
            folder,
            head,
            algorithm,
            cfg,
            setting.initial.layout,
            populations.Populations(cfg, setting).store(None),
        )

    (t, state), problems = checkpoint.newest(folder, restored)
    return Trained(
        config=cfg,
        round=t,
        data=setting.data,
        template=setting.network,
        algorithm=algorithm,
        state=state,
        problems=tuple(problems),
    )


def client_model(path: Path | str, k: int) -> se.Model:
    """Client k's model after the last checkpoint of the run in `path`; the head of this file says which
    model that is for each algorithm.

    >>> client_model("runs/demo", 3)                                    # doctest: +SKIP
    Model(4 weights, 5,408 of 27,040 stored (density 0.2000), 6 other tensors, 0.030 MB)
    """
    return read(path).client(k)


def server_model(path: Path | str) -> se.Model:
    """The server's model after the last checkpoint of the run in `path` (fedavg, feddst, ditto).

    >>> server_model("runs/fedavg").density                             # doctest: +SKIP
    1.0
    """
    return read(path).server


def client_network(path: Path | str, k: int) -> nn.Module:
    """Client k's model as an ordinary dense torch network in evaluation mode, zeros where nothing is stored.
    Its input is (x - mean) / std of the data set, as in training.

    >>> client_network("runs/demo", 3)(images).argmax(1)                # doctest: +SKIP
    tensor([7, 2, 1])
    """
    trained = read(path)
    return trained.network(trained.client(k))


def of_clients(algorithm: Algorithm, state: Any, name: str) -> Population[se.Model]:
    """One model per client out of an algorithm's state. ConfigError: the algorithm does not say which."""
    told = getattr(algorithm, "client_models", None)
    if told is not None:
        found: Population[se.Model] = told(state)
        return found
    clients = getattr(state, "clients", ())
    if clients and isinstance(getattr(clients[0], "model", None), se.Model):  # all are of one type
        return models_of(clients)
    raise ConfigError(
        f"expected {name} to say which model of its state is a client's, got neither a function "
        "client_models(state) in its module, nor a state whose clients each have a model"
    )


def of_server(algorithm: Algorithm, state: Any, name: str) -> se.Model:
    """The server's model out of an algorithm's state. ConfigError: it has none."""
    told = getattr(algorithm, "server_model", None)
    if told is None:
        raise ConfigError(
            f"expected an algorithm with a server, got {name}, whose module has no function "
            "server_model(state): take a client's model"
        )
    model: se.Model = told(state)
    return model
