"""Measures this machine: the constants of the rule, and the layers of one network.

constants   layers drawn at random are timed on every kernel; every fifth is kept aside, to see how well the
            rule chooses for layers that it was not fitted to
network     every layer and direction that its step runs is timed on every kernel
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import exp, log
from statistics import quantiles
from typing import NamedTuple

from sparse_engine.choice import clock, cost, layers, plan
from sparse_engine.choice.cost import Case
from sparse_engine.choice.plan import Plan
from sparse_engine.choice.rule import TUNED, Rule
from sparsefl.kernels import sparse_conv, use_threads
from sparsefl.kernels.sparse_conv import DIRECTIONS

APART = 5  # every so many layers are not fitted to
LEAST = 10  # layers below which nothing is fitted

Times = Mapping[str, float]
Timed = tuple[Case, Times]


class Quality(NamedTuple):
    """How well a rule chooses, over layers: the fastest kernels' time over that of those it takes, all
    directions together."""

    mean: float
    worst_tenth: float  # 90 % of the layers are at or above this
    within: float  # share of layers within 5 % of the fastest


@dataclass
class Found:
    """What was measured of random layers."""

    fitted: list[Timed] = field(default_factory=list)
    apart: list[Timed] = field(default_factory=list)

    @property
    def rule(self) -> Rule:
        return Rule(TUNED, cost.fit([*self.fitted, *self.apart]))

    def qualities(self, before: Rule) -> dict[str, Quality]:
        """Of the layers kept aside: `before`, and a rule that was fitted to the others."""
        fitted = Rule(TUNED, cost.fit(self.fitted))
        return {"until now": quality(before, self.apart), "tuned": quality(fitted, self.apart)}

    def fastest(self) -> dict[str, dict[str, int]]:
        """{kernel: {direction: in how many layers it was the fastest}}"""
        counted: dict[str, dict[str, int]] = {}
        for case, times in [*self.fitted, *self.apart]:
            best = counted.setdefault(
                min(times, key=lambda kernel: times[kernel]), dict.fromkeys(DIRECTIONS, 0)
            )
            best[case.direction] += 1
        return dict(sorted(counted.items(), key=lambda item: -sum(item[1].values())))


def constants(
    seconds: float, told: Callable[[int, float], None], seed: int = 0, most: int | None = None
) -> Found:
    """Time random layers for so long, and at most so many; `told` hears how many there are, and which share
    of the time is over. ValueError: there was not enough time for constants."""
    found, start, count = Found(), time.perf_counter(), 0
    with use_threads(1):
        for conv, image in layers.at_random(seed):
            over = (time.perf_counter() - start) / seconds
            if over >= 1 or count == most:
                break
            told(count, over)
            drawn = clock.drawn(conv)
            into = found.apart if count % APART == APART - 1 else found.fitted
            into += [
                (
                    Case(conv, direction, image),
                    clock.seconds(drawn, direction, image, sparse_conv.candidates(conv)),
                )
                for direction in DIRECTIONS
            ]
            count += 1
    if count < LEAST:
        raise ValueError(f"expected time for at least {LEAST} layers, got {count} in {seconds:g} s")
    return found


class Tuned(NamedTuple):
    """A layer and direction of a network: what the rule takes, what was found to be the fastest."""

    case: Case
    rule: str
    kernel: str
    times: Times

    @property
    def gain(self) -> float:
        """The rule's time over that of the kernel taken."""
        return self.times[self.rule] / self.times[self.kernel]


def network(cases: list[Case], into: Plan, threads: int = 1) -> Iterator[Tuned]:
    """Time these layers and directions, and add what was found to a plan's measurements."""
    with use_threads(threads):
        for case in cases:
            seen: dict[str, float] = {}

            def remembered(*given: object, seen: dict[str, float] = seen) -> dict[str, float]:
                seen |= clock.seconds(*given)  # type: ignore[arg-type]
                return seen

            entries = plan.fastest(case.conv, case.direction, case.image, remembered, into.rule, threads)
            into.measured |= entries
            kernel = entries[plan.key(case.conv, case.direction, case.image, threads)]
            yield Tuned(case, into.rule.kernel(case.conv, case.direction, case.image), kernel, seen)


def quality(rule: Rule, timed: list[Timed]) -> Quality:
    taken: dict[object, float] = {}
    best: dict[object, float] = {}
    for case, times in timed:
        layer = case.conv, case.image
        taken[layer] = taken.get(layer, 0.0) + times[rule.kernel(case.conv, case.direction, case.image)]
        best[layer] = best.get(layer, 0.0) + min(times.values())
    ratios = [best[layer] / taken[layer] for layer in taken]
    tenth = quantiles(ratios, n=10)[0] if len(ratios) > 1 else ratios[0]
    mean = exp(sum(map(log, ratios)) / len(ratios))
    return Quality(mean, tenth, sum(ratio >= 0.95 for ratio in ratios) / len(ratios))
