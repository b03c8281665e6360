"""A client-round of the authors' code against ours, by hand: `sparsefl bench authors PATH [--json FILE]`.

PATH is a checkout of github.com/EricLoong/da-dpfl, which is no part of this project and is not installed. A
client-round is aggregation over 10 neighbours, local training (ResNet18, one epoch), drift, PQI pruning in a
pruning round, and the move of the mask; tests are left out. Both sides have the same images, weights and
masks, one thread, and take turns. Before anything is timed both do a round whose one batch holds all samples:
then averages, trained weights, drift and sizes of masks must agree.

What differs: the authors score growth by as many batches as an epoch has (a loop over "first" batches), we by
one, as the paper; `sparsefl, their batches` does as they do. Their images come normalised from memory, not
through PIL one by one, which is in their favour. They count FLOP by running the network, which is part of
their `train`, as are the copies of whole models.
"""

import copy
import importlib.util
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from pathlib import Path
from statistics import median
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import fl
import sparse_engine as se
from fl.algorithms import da_dpfl
from fl.algorithms.messages import Sent
from fl.clients.memory import InMemory
from fl.config import Messages
from fl.data import Dataset, Partition, Samples, evaluation_batches, load
from fl.errors import ConfigError
from fl.train.local import Local
from fl.train.native_visit import NativeVisits
from fl.train.program import ProgramTurn
from fl.train.visit import Prune, Visit
from sparsefl.bench import report
from sparsefl.bench.meta import meta
from sparsefl.bench.running import seconds, shown
from sparsefl.bench.stopwatch import Parts, Stopwatch
from sparsefl.bench.timing import take_turns

Dense = dict[str, Tensor]
Row = dict[str, Any]
SAMPLES, BATCH, NEIGHBOURS, ROUNDS = 64, 32, 10, 500
LR = 0.001  # a step of the paper's 0.1 from these weights raises the loss on both sides; time is the same
GOALS = {0.5: 5.0, 0.2: 9.0}  # density: how many times faster we want to be
CONTESTANTS = ("authors", "sparsefl", "sparsefl, their batches")
EXEMPT = ("*shortcut*",)
_UNUSED = ("torchvision", "torchvision.transforms", "torchvision.datasets", "torchvision.models", "tqdm")


class Start(NamedTuple):
    """What both sides start from: clients 0 (the one that works) to NEIGHBOURS."""

    net: nn.Module  # w0
    masks: Sequence[Dense]
    models: Sequence[Dense]
    data: Dataset  # its training samples are the client's


class Outcome(NamedTuple):
    start: Dense  # after aggregation
    trained: Dense
    drift: float
    kept: int  # entries of the next mask


@dataclass(frozen=True)
class Code:
    """The authors' modules."""

    api: ModuleType
    client: ModuleType
    trainer: ModuleType
    resnet: ModuleType

    @classmethod
    def at(cls, path: Path) -> "Code":
        base = "fedml_api.standalone.dadpfl"
        if not (path / base.replace(".", "/") / "dadpfl_api_sch.py").exists():
            raise ConfigError(f"expected a checkout of EricLoong/da-dpfl, got {path}")
        modules = f"{base}.dadpfl_api_sch", f"{base}.client", f"{base}.dadpfl_model_trainer"
        sys.path.insert(0, str(path))
        with _absent_modules():
            return cls(*map(importlib.import_module, (*modules, "fedml_api.model.cv.resnet")))


@contextmanager
def _absent_modules() -> Iterator[None]:
    """What their files import and what runs here does not use, where it is not installed."""
    absent = [name for name in _UNUSED if importlib.util.find_spec(name.partition(".")[0]) is None]
    sys.modules.update({name: mock.MagicMock() for name in absent})
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


class Theirs:
    """One client of the authors' code, as their training loop handles it."""

    def __init__(self, code: Code, start: Start, batch: int) -> None:
        self.code, self.masks = code, [*start.masks]
        args, logger = _their_arguments(batch), logging.getLogger("authors")
        net = copy.deepcopy(start.net)
        self.trainer = code.trainer.dadpflMT(net, args, logger)
        x, y = _everything(start.data)
        samples = DataLoader(TensorDataset(x, y), batch_size=batch, shuffle=True)
        local = {k: samples for k in range(NEIGHBOURS + 1)}
        numbers = {k: len(y) for k in local}
        dataset = [len(y), 0, None, None, numbers, local, local, None]
        self.api = code.api.dadpflAPIsch(dataset, args.device, args, self.trainer, logger)
        self.user = self.api.client_list[0]
        self.models = [*start.models]
        self.initial = _masked(start.net.state_dict(), start.masks[0])

    @property
    def parts(self) -> Parts:
        return {
            "aggregate": [(self.api, "_aggregate_func_bymask"), (self.api, "_apply_local_mask")],
            "train": [(self.trainer, "train")],
            "drift": [(self.api, "_weight_norm_difference")],
            "prune": [(self.user, "generate_mask_rigl_sparsity_awareness")],
            "growth scores": [(self.code.client, "avg_importance")],
            "drop and grow": [(self.user, "update_mask_throw"), (self.user, "update_mask_regrow")],
            "count FLOP": [(self.trainer, "count_training_flops_per_sample"),
                           (self.trainer, "count_full_flops_per_sample")],
        }  # fmt: skip

    def round(self, prune: bool) -> Outcome:
        """From `_aggregate_func_bymask` to the stored model: the body of their loop over clients."""
        api, mask = self.api, self.masks[0]
        everyone = np.arange(NEIGHBOURS + 1)
        found = api._aggregate_func_bymask(0, everyone, self.models, self.models, 0)
        start = api._apply_local_mask(found, mask)
        trained, _, _, grown = self.user.train(
            weight=copy.deepcopy(start), rounds=0, mask=copy.deepcopy(mask), pq_prune=prune
        )
        drift = api._weight_norm_difference(trained, self.initial)
        stored = copy.deepcopy(trained)
        return Outcome(start, stored, drift, sum(int(m.sum()) for m in grown.values()))


class Ours:
    """The same client in this project, trained as a program: the default."""

    def __init__(self, start: Start, batch: int, grow_batches: int = 1) -> None:
        self.net = copy.deepcopy(start.net)
        self.cfg = da_dpfl.Config(grow_batches=grow_batches)
        simulation = _simulation(start, batch)
        self.trainer, self.local = simulation.trainer(), Local.of(simulation.config.training, 0)
        states = [self._state(model, mask) for model, mask in zip(start.models, start.masks, strict=True)]
        clients = InMemory(da_dpfl.Client(x, x.bitmap, x.bitmap, Sent.exact(x)) for x in states)
        self.given = da_dpfl.Inputs(clients.ref(0), [clients.ref(k) for k in range(1, len(clients))])

    @property
    def parts(self) -> Parts:
        """A round without pruning is one call, one with pruning goes by steps."""
        return {
            "all in one call": [(NativeVisits, "run")],
            "aggregate": [(se, "average")],
            "train": [(ProgramTurn, "train_and_test")],
            "drift": [(se, "drift")],
            "prune": [(se, "prune_pqi")],
            "growth scores, drop and grow": [(ProgramTurn, "grow")],
            "message": [(da_dpfl, "send")],
        }

    def round(self, prune: bool) -> da_dpfl.Client:
        target = Prune(config=self.cfg.pqi.config, target_density=1 - self.cfg.target_sparsity)
        visit = Visit(
            local=self.local,
            drift=self.cfg.drift,
            prune=target if prune else None,
            move=self.cfg.move(0, ROUNDS),
            message=True,
        )
        return da_dpfl.local_update(0, visit, self.cfg, Messages())(self.trainer, 0, self.given).value

    def outcome(self) -> Outcome:
        """The numbers of a round without pruning; not for timing."""
        own = self.given.client
        done = self.round(prune=False)
        start = se.average(own.model, self.given.neighbours, mask=own.mask)
        assert done.drift is not None
        return Outcome(self._dense(start), self._dense(done.model), done.drift, done.mask.nnz)

    def _state(self, model: Dense, mask: Dense) -> se.Model:
        self.net.load_state_dict(model)
        return se.compress(self.net, {name: m.bool() for name, m in mask.items()}, exempt=EXEMPT)

    def _dense(self, state: se.Model) -> Dense:
        return {name: w.clone() for name, w in se.load(self.net, state).state_dict().items()}


def run(path: Path, densities: Sequence[float], repeats: int) -> Iterator[Row]:
    """A row a density, kind of round and contestant."""
    code = Code.at(path)
    torch.set_num_threads(1)
    with se.use_threads(1), se.steady_plan():
        starts = {density: make_start(code, density) for density in densities}
        losses = {density: _checked(code, start) for density, start in starts.items()}
        for prune in (False, True):
            for density, start in starts.items():
                yield from _timed(code, start, density, prune, repeats, losses[density])


def _checked(code: Code, start: Start) -> dict[str, float]:
    return check(Theirs(code, start, SAMPLES).round(False), Ours(start, SAMPLES).outcome(), start)


def make_start(code: Code, density: float) -> Start:
    """w0 and masks by the authors' functions; neighbours differ a little, as after some training."""
    torch.manual_seed(0)
    net = code.resnet.customized_resnet18(class_num=10)
    maker = code.trainer.dadpflMT(net, _their_arguments(BATCH), logging.getLogger("authors"))
    w0 = maker.get_model_params()
    sparsities = maker.calculate_sparsities(w0, dense_ratio=density)
    masks = [maker.init_masks(w0, sparsities) for _ in range(NEIGHBOURS + 1)]
    others = [{name: w * (1 + 0.1 * torch.randn_like(w)) for name, w in w0.items()} for _ in masks]
    models = [_masked(w, mask) for w, mask in zip(others, masks, strict=True)]
    return Start(_same_network(net), masks, models, _few(load("cifar10")))


def check(theirs: Outcome, ours: Outcome, start: Start) -> dict[str, float]:
    """Both did the same work; returns the losses before and after. A wrong result gets no time."""
    for what in ("start", "trained"):
        error = distance(getattr(theirs, what), getattr(ours, what))
        if not error < 1e-4:
            raise AssertionError(f"{what}: expected the same weights, got them apart by {error:.2g}")
    for what, tolerance in (("drift", 1e-4), ("kept", 1e-4)):
        a, b = getattr(theirs, what), getattr(ours, what)
        if not abs(a - b) <= tolerance * abs(a):
            raise AssertionError(f"{what}: expected {a} as theirs, got {b}")
    losses = {name: _loss(start, model) for name, model in (("before", ours.start), ("after", ours.trained))}
    if not (isfinite(losses["after"]) and losses["after"] < losses["before"]):
        raise AssertionError(f"expected a loss that falls, got {losses}")
    return losses


def distance(a: Dense, b: Dense) -> float:
    """||a - b|| / ||a|| over all tensors."""
    if {name: w.shape for name, w in a.items()} != {name: w.shape for name, w in b.items()}:
        raise AssertionError(f"expected the tensors {sorted(a)}, got {sorted(b)}")
    error = sum((a[name] - b[name]).double().square().sum() for name in a)
    return float((error / sum(w.double().square().sum() for w in a.values())).sqrt())


def _timed(
    code: Code, start: Start, density: float, prune: bool, repeats: int, losses: Mapping[str, float]
) -> Iterator[Row]:
    contestants: dict[str, Theirs | Ours] = {
        CONTESTANTS[0]: Theirs(code, start, BATCH),
        CONTESTANTS[1]: Ours(start, BATCH),
        CONTESTANTS[2]: Ours(start, BATCH, SAMPLES // BATCH),
    }
    watches = {name: Stopwatch() for name in contestants}

    def turn(name: str) -> None:
        with watches[name].around(contestants[name].parts):
            contestants[name].round(prune)

    timings = take_turns({name: partial(turn, name) for name in contestants}, repeats=repeats, burst=0)
    for name, timing in timings.items():
        yield {
            "density": density,
            "round": "pruning" if prune else "usual",
            "name": name,
            "median_ms": 1e3 * timing.median,
            "spread": timing.spread,
            "times_ours": timing.median / timings["sparsefl"].median,
            "cpu_ms": 1e3 * median(sum(call.values()) for call in watches[name].calls[1:]),
            "parts_ms": {part: 1e3 * s for part, s in watches[name].medians().items()},
            "loss_checked": dict(losses),
        }


def summarise(rows: Sequence[Row]) -> dict[str, Any]:
    """How many times our time the authors' is, whole and by part."""
    summary: dict[str, Any] = {}
    for row in rows:
        if row["name"] == "authors":
            same = [r for r in rows if (r["density"], r["round"]) == (row["density"], row["round"])]
            by_name = {r["name"]: r for r in same}
            ours, goal = by_name["sparsefl"], GOALS.get(row["density"])
            summary[f"density {row['density']}, {row['round']} round"] = {
                "authors_over_ours": row["median_ms"] / ours["median_ms"],
                "with_their_batches": row["median_ms"] / by_name["sparsefl, their batches"]["median_ms"],
                "by_cpu_time": row["cpu_ms"] / ours["cpu_ms"],
                "training_alone": _ratio(row["parts_ms"], ours["parts_ms"], "train"),
                "goal": goal,
                "reached": None if goal is None else row["median_ms"] / ours["median_ms"] >= goal,
            }
    return summary


def _ratio(theirs: dict[str, float], ours: dict[str, float], part: str) -> float | None:
    """None where a part of ours is not told apart: a whole round in one call."""
    return theirs[part] / ours[part] if part in ours else None


def as_table(rows: Sequence[Row]) -> dict[str, Any]:
    """Usual rounds, for `bench table`."""
    usual = [row for row in rows if row["round"] == "usual"]
    names = list(dict.fromkeys(row["name"] for row in usual))
    lines = []
    for density in dict.fromkeys(row["density"] for row in usual):
        found = {row["name"]: row for row in usual if row["density"] == density}
        whole = [found[name]["median_ms"] for name in names]
        ratio = f"{found['authors']['times_ours']:.2f}"
        lines.append([f"**density {density}: whole**", *(f"{ms:.0f}" for ms in whole), ratio])
        for part in dict.fromkeys(part for row in found.values() for part in row["parts_ms"]):
            parts = [found[name]["parts_ms"].get(part) for name in names]
            lines.append([part, *("" if ms is None else f"{ms:.0f}" for ms in parts), ""])
    summary = summarise(rows)
    goals = [
        f"{what}: {x['authors_over_ours']:.2f} of {x['goal']:g}" for what, x in summary.items() if x["goal"]
    ]
    note = "Times faster than the authors, of the goal: " + "; ".join(goals) + "."
    return {"head": ["client-round, ms", *names, "authors / sparsefl"], "rows": lines, "note": note}


def _their_arguments(batch: int) -> SimpleNamespace:
    """Return the arguments of their CIFAR-10 script, except for the size of the case."""
    return SimpleNamespace(
        client_num_in_total=NEIGHBOURS + 1, client_num_per_round=NEIGHBOURS, max_wait=NEIGHBOURS,
        comm_round=ROUNDS, epochs=1, batch_size=batch, lr=LR, lr_decay=0.998, momentum=0.0, wd=5e-4,
        client_optimizer="sgd", dataset="cifar10", device=torch.device("cpu"), p=0.5, q=1, eta=0,
        prune_scale=1, pq_scope="layer", target_sparsity=0.8, fixed_sparsity=False, rr_interval=1,
        anneal_factor=0.3, rigl=True, erk_power_scale=1,
    )  # fmt: skip


def _simulation(start: Start, batch: int) -> fl.Simulation:
    """A run in which client 0 has all samples and no tests, and client 1 nothing."""
    size, none = len(start.data.train), np.zeros((2, start.data.num_classes), dtype=np.int64)
    train = Samples(np.array([0, size, size]), np.arange(size, dtype=np.int32))
    test = Samples(np.array([0, 0, 0]), np.arange(0, dtype=np.int32))
    few = {"num_clients": 2, "topology.degree": 1}
    training = {"training.epochs": 1, "training.batch_size": batch, "training.lr": LR}
    return fl.Simulation(
        "cifar10",
        network=start.net,
        data=start.data,
        partition=Partition(train, test, none, none),
        set={**few, **training, "model.exempt": list(EXEMPT)},
    )


def _few(data: Dataset) -> Dataset:
    """The first SAMPLES images as they are, for training and for tests."""
    part = type(data.train)(data.train.x[:SAMPLES], data.train.labels[:SAMPLES])
    return replace(data, train=part, test=part, augment=False)


def _everything(data: Dataset) -> tuple[Tensor, Tensor]:
    """All images, normalised as in training, and labels."""
    return next(evaluation_batches(data, np.arange(len(data.test)), len(data.test)))


def _same_network(net: nn.Module) -> nn.Module:
    """Ours with the weights of theirs: the names of the parameters are the same."""
    ours = se.models.by_name("resnet18", num_classes=10)
    ours.load_state_dict(net.state_dict())
    return ours


def _masked(w: Dense, mask: Dense) -> Dense:
    return {name: value * mask[name] if name in mask else value.clone() for name, value in w.items()}


def _loss(start: Start, model: Dense) -> float:
    net = copy.deepcopy(start.net)
    net.load_state_dict(model)
    x, y = _everything(start.data)
    with torch.no_grad():
        return F.cross_entropy(net(x), y).item()


def told(row: Row) -> str:
    """A row in a line, for progress."""
    return f"density {row['density']:g}, {row['round']} round: {row['name']} {seconds(row['median_ms'])}"


def command(path: Path, densities: Sequence[float], repeats: int, file: Path | None) -> int:
    """Measure, save what is measured on the way, show the tables."""
    rows, result = [], {}
    for row in shown(run(path, densities, repeats), told):
        rows.append(row)
        if row["name"] == CONTESTANTS[-1]:  # what is measured is kept
            result = {"meta": meta(1, repeats=repeats), "rows": rows, "summary": summarise(rows)}
            result["table"] = as_table(rows)
            if file:
                report.save(result, file)
    console = report.console()
    columns = {
        "density": "",
        "round": "",
        "name": "",
        "median_ms": ".0f",
        "spread": ".2f",
        "times_ours": ".2f",
    }
    report.show_rows(rows, columns, "one client-round", console)
    console.print(report.markdown(result), markup=False, soft_wrap=True)
    return 0
