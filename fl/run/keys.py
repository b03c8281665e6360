"""Every key of metrics.jsonl, clients.jsonl and summary.json: one table, from which the sums of a run, the
costs of a comparison, the checks of what is read and docs/reference/metrics.md are made.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from fl import algorithms
from fl.config import code
from fl.keys import Figure, Key, Level, Sums, Where
from fl.run.meters import METERS

_PACKAGE = f"{algorithms.__name__}."
_client = partial(Key, where="client")
_run = partial(Key, where="run")
_METERS = tuple(key for meter in METERS for key in meter.keys)
_BY_UNIT: dict[str, Sums] = {
    "J": "sum",
    "s": "sum",
    "C": "max",
    "byte": "max",
}  # what meters read, over rounds; else a mean
_COUNTS = {
    "": "messages as they were written, one per link",
    "_paper": "as the paper counts, 4 byte per stored value and no mask",
    "_dense": "the same messages with every weight in them, 4 byte each",
}


def _bytes(name: str, text: str, *, total: bool = False, **more: Any) -> tuple[Key, ...]:
    """Three keys, one per way to count; `total`: of a run, made from those of its rounds."""
    return tuple(
        Key(
            name + count,
            f"{text}: {how}",
            unit="byte",
            reference=count == "_dense",
            where="run" if total else "round",
            of=name + count if total else "",
            **more,
        )
        for count, how in _COUNTS.items()
    )


ROUND = (
    Key("round", "its number, from 0"),
    Key(
        "accuracy_mean",
        "test accuracy after local training (before pruning), mean over all clients, each with the model "
        "that it would use. A client that did not train in this round counts with the model that it "
        "trained last, or with its personal one (Ditto); one that never trained, with the server's new model",
        unit="share",
        null=True,
    ),
    Key("accuracy_min", "lowest of all clients", unit="share", null=True),
    Key("accuracy_max", "highest of all clients", unit="share", null=True),
    Key("accuracy_std", "standard deviation over all clients", unit="share", null=True),
    Key(
        "accuracy_before",
        "test accuracy after aggregation, before training; mean over all clients. With a server: of the "
        "model that it would send to each (FedAvg, FedDST), of personal models (Ditto)",
        unit="share",
        null=True,
    ),
    Key(
        "loss",
        "training cross-entropy, mean over a client's samples, then over those that trained",
        unit="nat",
        null=True,
    ),
    Key(
        "density_mean",
        "stored share of the prunable weights at the end of the round, mean over clients: what is sent next",
        unit="share",
    ),
    Key("density_min", "lowest of all clients", unit="share"),
    Key("density_max", "highest of all clients", unit="share"),
    Key("layer_density", "{weight's name: mean density}", unit="share"),
    Key("trained", "clients that trained", unit="clients", null=True),
    Key("steps", "batches that all clients trained on", null=True),
    Key("samples", "in those batches: epochs are counted", unit="samples", null=True),
    Key("flop_round", "training of all clients, with growth", unit="FLOP"),
    Key("flop_dense", "the same with dense models, without growth", unit="FLOP", reference=True),
    *_bytes("bytes_total", "sent by all, a server too"),
    *_bytes("bytes_up_mean", "sent, mean over clients"),
    *_bytes("bytes_busiest", "most that one client received, or the server"),
    Key("sim_time_s", "duration of the round by its schedule", unit="s", kind="modelled"),
    Key("sim_energy_j", "energy of all", unit="J", kind="modelled"),
    Key("depth", "waves of the schedule less one: the longest chain of clients waiting for others"),
    Key("parallelism", "clients that start at once", unit="share"),
)
SERVER = (
    Key("sampled", "with a server: how many clients it asked; these train", unit="clients", null=True),
    Key(
        "accuracy_sampled",
        "with a server: as accuracy_mean, but over the clients that were sampled in this round. Who they are "
        "moves it, so it is no result",
        unit="share",
        null=True,
    ),
    Key("accuracy_global", "of the server's new model, mean over all clients", unit="share", null=True),
)
ROUND_ENDS = (
    Key("lr", "learning rate"),
    *_METERS,
    Key("train_s", "local training, summed over clients", unit="s", kind="measured"),
    Key(
        "present",
        "clients that were there: the other figures are over these. Only where clients come and go "
        "(section presence)",
        unit="clients",
        null=True,
    ),
)
CLIENT = (
    _client("round", "its number, from 0"),
    _client("client", "its number, from 0"),
    _client("accuracy", "on its test samples, after training", unit="share", null=True),
    _client("accuracy_before", "the same before training", unit="share", null=True),
    _client("loss", "training cross-entropy, mean over samples", unit="nat", null=True),
    _client("samples", "that it trained on", unit="samples"),
    _client("density", "stored share of its prunable weights", unit="share"),
    _client("flop", "its training, with growth", unit="FLOP"),
    _client("bytes_up", "sent", unit="byte"),
    _client("bytes_down", "received", unit="byte"),
    _client("wave", "of the schedule; 0: starts at once"),
    _client("waited_for", "numbers of the clients whose model of this round was used"),
    _client("sim_start_s", "from the start of the round", unit="s", kind="modelled"),
    _client("sim_finish_s", "from the start of the round", unit="s", kind="modelled"),
)
CLIENT_ENDS = (_client("train_s", "its local training", unit="s", kind="measured"),)
RUN = (
    _run("name", "of the configuration", unit="text"),
    _run("algorithm", "its name", unit="text"),
    _run("seed", "of all random draws"),
    _run("num_clients", "as configured", unit="clients"),
    _run("num_rounds", "as configured", unit="rounds"),
    _run(
        "stopped_early",
        'null where all of them ran; else {"round": the last that ran, "why": what `run.patience` saw}. Sums '
        "are over the rounds that ran",
        null=True,
    ),
    _run("kernels", "sparse or dense", unit="text"),
    _run(
        "path",
        "how clients were trained in the last rounds, and why so: program, layers or dense "
        "(docs/programs.md). Empty in runs of older versions",
        unit="text",
    ),
    _run("values", "of messages: fp32, bf16, fp16, q16 or q8", unit="text"),
    _run("accuracy_best", "accuracy_mean of the best round", unit="share", null=True),
    _run("round_best", "number of that round", null=True),
    _run(
        "accuracy_last5",
        "accuracy_mean, mean of the last five rounds (all, where there are fewer)",
        unit="share",
        null=True,
    ),
    _run("accuracy_last", "accuracy_mean of the last round", unit="share", null=True),
    _run("accuracy_global_best", "accuracy_global of its best round", unit="share", null=True),
    _run("accuracy_global_last5", "accuracy_global, mean of the last five rounds", unit="share", null=True),
    _run("accuracy_global_last", "accuracy_global of the last round", unit="share", null=True),
)
RUN_SUMS = (  # before them: what algorithms declare
    _run(
        "accuracy_before_last",
        "of the last round",
        unit="share",
        null=True,
        of="accuracy_before",
        sums="last",
    ),
    _run("density_last", "of the last round", unit="share", of="density_mean", sums="last"),
)
RUN_COSTS = (
    *_bytes("bytes_total", "sent by all, all rounds", total=True, sums="sum"),
    *_bytes("bytes_busiest", "largest of all rounds", total=True, sums="max"),
    _run("flop_total", "all rounds", unit="FLOP", of="flop_round", sums="sum"),
    _run("flop_total_dense", "all rounds", unit="FLOP", of="flop_dense", sums="sum", reference=True),
    _run("sim_time_s", "all rounds", unit="s", kind="modelled", of="sim_time_s", sums="sum"),
    _run("sim_energy_j", "all rounds", unit="J", kind="modelled", of="sim_energy_j", sums="sum"),
    *(
        replace(key, where="run", of=key.name, sums=_BY_UNIT.get(key.unit, "mean"), text="all rounds")
        for key in _METERS
        if key.unit != "text"
    ),
    _run(
        "energy_flagged",
        "rounds whose joules are unknown or uncertain; energy_note of the round says why",
        kind="measured",
        of="energy_note",
        sums="rounds",
        null=True,
    ),
    _run("train_s", "all rounds", unit="s", kind="measured", of="train_s", sums="sum"),
)
_per = partial(_run, unit="J", kind="measured", null=True)
RUN_SHARES = (  # energy_j, over what it was spent on
    _per("energy_per_round_j", "energy_j of a round, mean"),
    _per("energy_per_client_round_j", "energy_j per training of one client in one round"),
    _per("energy_per_step_j", "energy_j per batch"),
    _per("energy_per_sample_j", "energy_j per sample that went through training, epochs counted"),
    _per(
        "energy_per_point_j",
        "energy_j up to the best round, per point (percent) of accuracy_mean gained over accuracy_before of "
        "round 0",
    ),
)
RUN_ENDS = (
    _run("workers", "clients that were trained at a time in the last rounds"),
    _run("environment", "of the last rounds: {fact: what the machine said}"),
    _run(
        "mixed",
        "empty, or where numbers were computed in more than one way (`--allow-mixed`): a list of "
        '{"from_round": first round, "numerics": what its bits depend on}',
    ),
    _run("baseline", "of baseline/: kernels, wall_s, train_s and accuracies", null=True),
    _run("exact", "of exact/: values, bytes_total and accuracies", null=True),
)
TIMING = tuple(dict.fromkeys(key.name for key in (*ROUND_ENDS, *CLIENT_ENDS) if key.kind == "measured"))
FILES: dict[Where, str] = {"round": "metrics.jsonl", "client": "clients.jsonl", "run": "summary.json"}


def own(where: Where, algorithm: str) -> tuple[Key, ...]:
    """What `algorithm` declares; one that is not known here declares nothing."""
    return _of(where, [_module(algorithm)])


def declared(where: Where, algorithm: str = "") -> tuple[Key, ...]:
    """What the algorithms of this package declare, and `algorithm` where it is another's."""
    shipped = [one for one in algorithms.registered().values() if _is_ours(one)]
    return _of(where, [*shipped, _module(algorithm)])


def figures(algorithm: str) -> tuple[Figure, ...]:
    """What a report draws of a run of `algorithm` beside what it draws of all."""
    return getattr(_module(algorithm), "FIGURES", ())


def levels(algorithm: str) -> tuple[Level, ...]:
    """Lines across figures, of a run of `algorithm`."""
    return getattr(_module(algorithm), "LEVELS", ())


def progress() -> tuple[Key, ...]:
    """Keys of rounds that any algorithm wants to be in lines of progress."""
    return tuple(key for key in _of("round", algorithms.registered().values()) if key.shown)


def table(where: Where, algorithm: str = "") -> tuple[Key, ...]:
    """All keys of a file, in the order of the reference."""
    more = declared(where, algorithm)
    if where == "round":
        return (*ROUND, *more, *SERVER, *ROUND_ENDS)
    if where == "client":
        return (*CLIENT, *more, *CLIENT_ENDS)
    return (*RUN, *RUN_SUMS, *more, *RUN_COSTS, *RUN_SHARES, *RUN_ENDS)


def sums(algorithm: str = "") -> tuple[Key, ...]:
    """The keys of a summary that are made from lines, in its order."""
    return tuple(key for key in table("run", algorithm) if key.of)


def _of(where: Where, modules: Iterable[Any]) -> tuple[Key, ...]:
    """Return the keys that modules declare; of keys with the same name, the last one."""
    keys = (key for module in modules for key in getattr(module, "KEYS", ()) if key.where == where)
    return tuple({key.name: key for key in keys}.values())


def _is_ours(algorithm: object) -> bool:
    return getattr(algorithm, "__name__", "").startswith(_PACKAGE)


def _module(algorithm: str) -> Any:
    """Return the module of an algorithm if it is registered: nothing is imported."""
    return algorithms.registered().get(code.stem(algorithm))


def costs() -> tuple[Key, ...]:
    """Return the keys of costs that a run pays round by round."""
    return tuple(key for key in RUN_COSTS if key.sums == "sum" and not key.reference)


def references() -> tuple[Key, ...]:
    """What dense models would have cost instead."""
    return tuple(key for key in RUN_COSTS if key.sums == "sum" and key.reference)


def unknown(where: Where, names: Iterable[str], algorithm: str = "") -> list[str]:
    """The names that no table has."""
    known = {key.name for key in table(where, algorithm)}
    return [name for name in names if name not in known]
