"""Where and how the rounds of a run were computed: parts of a run, each of one process on one machine.

    history.json, and "history" of every checkpoint:
        [{"from_round": 0, "workers": 2, "numerics": {...}, "environment": {...}, "plan": "..."}, ...]

`numerics` is what the bits of a result depend on: sparse_engine.numerics (instruction set, plan, versions),
and the path on which clients are trained (fl/train/path.py). `environment` is for readers. `plan` is the
whole plan of kernels (sparse_engine/choice/files.py), whose identity is among the numerics.

A run that goes on where its numerics are others would be neither run: it goes on with the instruction set and
the plan that it was started with, whatever is the default, the file or the processor now; where that is not
all that differs, only if the user says so, and is marked as mixed for ever.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import sparse_engine as se
from fl.errors import MixedError, RunDirError
from fl.run.files import shown
from sparse_engine.choice import plan
from sparse_engine.doctor.environment import environment

ISA, PLAN = "instruction set", "plan"
PATH = "path"
Facts = dict[str, str]
Numerics = Callable[[], AbstractContextManager[None]]


class Part(NamedTuple):
    """Rounds from `from_round` on, until the next part begins or the run ends."""

    from_round: int
    workers: int
    numerics: Facts
    environment: Facts
    plan: str = ""  # empty: an earlier version did not keep it


History = tuple[Part, ...]


def now(from_round: int, workers: int, path: str, facts: Facts | None = None) -> Part:
    """A part of this process; `facts` are more of its environment."""
    return Part(from_round, workers, _numerics(path), environment() | (facts or {}), plan.current().text())


def path_of(history: History) -> str:
    """How clients were trained in the last rounds, and why so; empty: it was not recorded."""
    return history[-1].numerics.get(PATH, "") if history else ""


def continued(before: History, part: Part) -> History:
    """With one more part, unless it is like the last: then that one goes on."""
    last = before[-1] if before else None
    return before if last and last[1:] == part[1:] else (*before, part)


def extended(history: History, facts: Facts) -> History:
    """With more facts in the environment of the last part."""
    *before, last = history
    return (*before, last._replace(environment=last.environment | facts))


def mixed(history: History) -> list[dict[str, Any]]:
    """[{"from_round", "numerics"}] where these changed; empty: all rounds were computed alike."""
    changes: list[Part] = []
    for part in history:
        if not changes or changes[-1].numerics != part.numerics:
            changes.append(part)
    told = [{"from_round": part.from_round, "numerics": part.numerics} for part in changes]
    return told if len(told) > 1 else []


def same_numerics(history: History, path: str, allow_mixed: bool, note: Callable[[str], None]) -> Numerics:
    """Contexts in which rounds on `path` are computed as the last of `history` were, or as the user allowed.

    MixedError: they cannot be, and nobody allowed it.
    """
    if not history:
        return nullcontext
    recorded, here = history[-1].numerics, _numerics(path)
    if here == recorded:
        return nullcontext
    if (again := _as_recorded(history[-1], path)) is not None:
        for key, what in ((ISA, "instruction set"), (PLAN, "kernel plan")):
            if recorded[key] != here[key]:
                would = f"here {here[key]} would be used"
                note(f"goes on with the {what} {recorded[key]}, as the run was started ({would})")
        return again
    differences = ", ".join(_differences(recorded, here))
    if not allow_mixed:
        raise MixedError(
            f"expected the machine and versions that the run was started with, got others ({differences}): "
            "its numbers would be those of neither; --allow-mixed goes on all the same, and marks the run"
        )
    note(f"goes on with other numerics, and is marked as mixed: {differences}")
    return nullcontext


def to_json(history: History) -> list[dict[str, Any]]:
    return [part._asdict() for part in history]


def from_json(told: Any) -> History:
    """Checked; RunDirError: it is none."""
    if not isinstance(told, list):
        raise RunDirError(f"history: expected a list, got {shown(told)}")
    return tuple(_part(one, f"history[{i}]") for i, one in enumerate(told))


def _part(told: Any, where: str) -> Part:
    if not isinstance(told, dict) or {*told, "plan"} != set(Part._fields):
        raise RunDirError(f"{where}: expected the keys {list(Part._fields)}, got {shown(told)}")
    for key, least in (("from_round", 0), ("workers", 1)):
        if type(told[key]) is not int or told[key] < least:
            raise RunDirError(f"{where}.{key}: expected a number from {least} on, got {shown(told[key])}")
    for key in ("numerics", "environment"):
        check_facts(told[key], f"{where}.{key}")
    if not isinstance(told.get("plan", ""), str):
        raise RunDirError(f"{where}.plan: expected text, got {shown(told['plan'])}")
    return Part(**told)


def check_facts(told: Any, where: str) -> None:
    """RunDirError unless it is {text: text}."""
    if not isinstance(told, dict) or not all(isinstance(value, str) for value in told.values()):
        raise RunDirError(f"{where}: expected versions and hardware as text, got {shown(told)}")


def check_mixed(told: Any, where: str) -> list[dict[str, Any]]:
    """What `mixed` wrote; RunDirError unless it did."""
    if not isinstance(told, list):
        raise RunDirError(f"{where}: expected a list, got {shown(told)}")
    for one in told:
        if not (isinstance(one, dict) and type(one.get("from_round")) is int and "numerics" in one):
            raise RunDirError(f"{where}: expected rounds and their numerics, got {shown(one)}")
        check_facts(one["numerics"], where)
    return told


def _numerics(path: str) -> Facts:
    return se.numerics() | {PATH: path}


def _as_recorded(part: Part, path: str) -> Numerics | None:
    """Contexts in which this machine computes as `part` says, with its instruction set and plan; None: it
    cannot."""
    try:
        kernels = plan.from_text(part.plan) if part.plan else None
        again = partial(_computing, part.numerics.get(ISA, ""), kernels)
        with again():
            return again if _numerics(path) == part.numerics else None
    except (ValueError, RuntimeError):  # it has no such instruction set, no native kernels, or no such plan
        return None


@contextmanager
def _computing(isa: str, kernels: plan.Plan | None) -> Iterator[None]:
    with se.use_isa(isa), plan.use_plan(kernels) if kernels else nullcontext():
        yield


def _differences(recorded: Facts, here: Facts) -> Iterator[str]:
    for key in dict.fromkeys([*recorded, *here]):
        was, is_ = recorded.get(key, "none"), here.get(key, "none")
        if was != is_:
            yield f"{key} {is_} instead of {was}"
