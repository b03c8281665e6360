"""Measuring a machine: which layers, how constants and a network's kernels follow; the clock is made up."""

from dataclasses import replace
from itertools import islice

import pytest
import torch

import sparse_engine as se
from sparse_engine.choice import clock, cost, layers, plan, tune
from sparse_engine.choice.cost import Case
from sparse_engine.choice.plan import Plan
from sparse_engine.choice.rule import Rule
from sparse_engine.choice.tune import Found
from sparsefl.kernels import sparse_conv as sc
from sparsefl.kernels.sparse_conv import DIRECTIONS, Geometry

LAYER = Geometry(8, 4, (3, 3), 1, (1, 1), density=0.5)


@pytest.fixture
def costs(monkeypatch):
    """Every kernel takes a constant time by its name, times the number of multiplications."""
    rank = {"sparse": 2e-9, "dense": 3e-9, "winograd": 4e-9, "torch": 5e-9, "sparse:avx2": 1.5e-9}

    def seconds(conv, direction, image, kernels, repeats=3):
        size = 1e3 + conv.shape.numel() * image[0] * image[1] * image[2]
        return {kernel: rank.get(kernel, 9e-9) * size for kernel in kernels}

    monkeypatch.setattr(clock, "seconds", seconds)
    monkeypatch.setattr(clock, "drawn", lambda conv: conv)  # nobody runs it
    return rank


def test_random_layers_are_the_same_each_time_and_can_run():
    first = list(islice(layers.at_random(3), 200))
    assert first == list(islice(layers.at_random(3), 200)) != list(islice(layers.at_random(4), 200))
    kernels = {conv.kernel for conv, _ in first}
    assert {(1, 1), (3, 3), (5, 5)} <= kernels and {conv.stride for conv, _ in first} == {1, 2}
    assert any(image[:2] == (1, 1) for _, image in first)
    for conv, image in first:
        assert min(conv.output_size(*image[:2])) > 0


def test_constants_choose_what_was_fastest(costs):
    told = []
    found = tune.constants(1e9, lambda count, over: told.append((count, over)), seed=1, most=60)
    assert (len(found.fitted), len(found.apart)) == (3 * 48, 3 * 12)
    assert told[0][0] == 0 and all(0 <= over < 1 for _, over in told)
    assert sum(map(sum, (counts.values() for counts in found.fastest().values()))) == len(found.fitted) + len(
        found.apart
    )
    before, after = found.qualities(Rule()).values()
    assert before.mean + 0.1 < after.mean <= 1  # not all times that were made up are sums of counts
    assert found.rule.is_tuned


def test_too_little_time_is_said(costs):
    with pytest.raises(ValueError, match="at least 10 layers, got 9"):
        tune.constants(1e9, lambda *_: None, most=9)


def test_quality_by_hand():
    """Two layers of two directions: 3 of 4 seconds, and 1 of 1."""
    times = {"sparse": 1.0, "dense": 2.0}
    rule = Rule("x", {cost.name(Case(LAYER, d, (4, 4, 8)), "dense"): (0.0,) * 11 for d in ("forward",)})
    timed = [(Case(LAYER, "forward", (4, 4, 8)), {"sparse": 1.0, "dense": 2.0})]
    timed += [(Case(LAYER, "input_gradient", (4, 4, 8)), {"sparse": 2.0, "dense": 9.0})]
    assert rule.kernel(LAYER, "forward", (4, 4, 8)) == "dense"
    assert tune.quality(rule, timed).mean == pytest.approx(3 / 4)
    assert tune.quality(Rule(), [(Case(LAYER, "forward", (4, 4, 8)), times)]) == (1.0, 1.0, 1.0)


def test_a_network_s_layers_are_those_of_its_step():
    net = se.sparsify(se.models.small_cnn(width=8), density=0.5, seed=0)
    cases = layers.of_network(net, torch.randn(4, 3, 16, 16), Plan())
    convs = [case for case in cases if case.kind == "conv"]
    assert {case.direction for case in convs} == set(DIRECTIONS)
    assert all(case.image[2] == 4 for case in cases)
    for case in cases:  # growth takes the gradient of the whole weight
        whole = Case(replace(case.conv, density=1.0), DIRECTIONS[2], case.image)
        assert whole in cases


def test_what_was_found_of_a_network_is_added_to_a_plan(costs):
    cases = [Case(LAYER, direction, (8, 8, 4)) for direction in DIRECTIONS]
    into = Plan({"forward x": "dense"}, threads=None)
    found = list(tune.network(cases, into))
    best = min(sc.candidates(LAYER), key=lambda kernel: costs.get(kernel, 9e-9))
    assert {one.kernel for one in found} == {best} and found[0].gain == costs["sparse"] / costs[best]
    assert into.measured["forward x"] == "dense" and len(into.measured) == 4
    assert (
        into.kernel(LAYER, "forward", 8, 8, 4) == best
        or into.measured[plan.key(LAYER, "forward", (8, 8, 4), 1)] == best
    )


def test_found_by_hand():
    timed = [(Case(LAYER, d, (4, 4, 8)), {"sparse": 1.0, "torch": 0.5}) for d in DIRECTIONS]
    assert Found(timed[:2], timed[2:]).fastest() == {"torch": dict.fromkeys(DIRECTIONS, 1)}
