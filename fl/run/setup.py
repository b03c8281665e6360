"""What a run is made of, from its configuration: data, partition, network, first weights, topology."""

from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

import sparse_engine as se
from fl import config, rng
from fl.config import Config
from fl.data import Dataset, Partition, adjusted, as_dataset, load, partition
from fl.data.samples import Samples
from fl.run import own
from fl.run.own import NOTHING, Own
from fl.train import coverage, network
from fl.train.cost import Cost
from fl.train.places import ONLY_CPU, Places
from fl.train.setting import Setting
from fl.world import topology


def prepare(cfg: Config, given: Own = NOTHING, places: Places = ONLY_CPU) -> Setting:
    """Data, partition, network and first weights of a run; what is given takes the place of what is named.
    ConfigError where clients cannot be trained in one of `places`."""
    own.check_named(cfg, given)
    try:
        data = _data(cfg, given.data)
        parts = _divided(data, cfg) if given.partition is None else own.divided(given.partition, data, cfg)
    except config.ConfigError:
        raise
    except ValueError as wrong:
        raise config.ConfigError(f"data: {str(wrong).removeprefix('data: ')}") from wrong
    if given.network is None:
        net = network.build(cfg.model, data, cfg.seed)
    else:
        net = own.network(given.network, data, cfg.seed)
    network.check_batches(net, data, parts.train.sizes, cfg.training.batch_size)
    exempt = tuple(cfg.model.exempt)
    initial = _compressed(net, exempt, cfg, "model.name" if given.network is None else "network")
    cost = Cost.of(net, initial.layout, data.shape)
    setting = Setting(
        training=cfg.training,
        exempt=exempt,
        seed=cfg.seed,
        data=data,
        partition=parts,
        network=net,
        initial=initial,
        cost=cost,
        places=places,
    )
    if places != ONLY_CPU:
        _ = setting.path
    return setting


def _compressed(net: nn.Module, exempt: tuple[str, ...], cfg: Config, key: str) -> se.Model:
    """The first weights of the network, all of them."""
    name = cfg.model.name.strip("<>")
    try:
        initial = se.compress(net, exempt=exempt)
    except ValueError as wrong:
        raise config.ConfigError(f"{key}: of {name}: {wrong}") from wrong
    coverage.check(net, initial.layout.names, name, key)
    return initial


def _data(cfg: Config, given: Any) -> Dataset:
    natural = cfg.data.partition == "groups"
    if given is None:
        data = load(own.named_data(cfg), cfg.data.root, natural=natural)
    else:
        data = as_dataset(given, natural=natural)
    return adjusted(data, size=cfg.data.size, normalise=cfg.data.normalise, augment=cfg.data.augment)


def _divided(data: Dataset, cfg: Config) -> Partition:
    return tested(_shares(data, cfg), cfg)


def tested(parts: Partition, cfg: Config) -> Partition:
    """With test samples of `run.eval_clients` clients only, drawn from the seed."""
    count = cfg.run.eval_clients
    if count is None or count >= cfg.num_clients:
        return parts
    chosen = rng.stream(cfg.seed, "tested clients").choice(cfg.num_clients, count, replace=False)
    keep = np.zeros(cfg.num_clients, bool)
    keep[chosen] = True
    sizes = np.diff(parts.test.indptr)
    indptr = np.concatenate([[0], np.cumsum(np.where(keep, sizes, 0))]).astype(parts.test.indptr.dtype)
    indices = parts.test.indices[np.repeat(keep, sizes)]
    counts = np.where(keep[:, None], parts.test_counts, 0)
    return replace(parts, test=Samples(indptr, indices), test_counts=counts)


def _shares(data: Dataset, cfg: Config) -> Partition:
    given = cfg.data
    return partition(
        data,
        cfg.num_clients,
        given.partition,
        alpha=given.alpha,
        classes_per_client=given.classes_per_client,
        train_per_client=given.train_per_client,
        test_per_client=given.test_per_client,
        disjoint=given.disjoint,
        copies=given.copies,
        seed=cfg.seed,
    )


def links(cfg: Config) -> topology.Topology:
    """Who can talk to whom."""
    try:
        return topology.make(num_clients=cfg.num_clients, seed=cfg.seed, **cfg.topology.model_dump())
    except ValueError as wrong:
        raise config.ConfigError(f"topology: {wrong}") from wrong


def shares(setting: Setting) -> dict[str, Any]:
    """partition.json: how many samples of each class every client has."""
    parts = setting.partition
    counts = {"train": parts.train_counts.tolist(), "test": parts.test_counts.tolist()}
    return {"classes": list(setting.data.classes)} | counts
