"""se.report: the kernels that it names are those that a step runs."""

import pytest
import torch
from torch import nn

import sparse_engine as se
from sparse_engine.choice import plan
from sparse_engine.choice.plan import Plan, use_plan
from sparse_engine.choice.rule import Rule
from sparsefl.kernels import native
from sparsefl.kernels import sparse_conv as sc
from sparsefl.kernels.sparse_conv import _cpu


def network():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 600))
    return se.sparsify(net, density=0.3, seed=0)


def seen(monkeypatch, net, batch):
    """The kernels of a step, {direction: [kernel]}, the first layer's first."""
    found = {}
    for direction, name in (("forward", "_forward"), ("weight_gradient", "_weight_gradient")):
        own = getattr(_cpu, name)

        def spy(*given, own=own, direction=direction):
            found.setdefault(direction, []).append((given[-1], native.isa()))
            return own(*given)

        monkeypatch.setattr(_cpu, name, spy)
    net(torch.randn(batch, 3, 8, 8)).sum().backward()
    return found


@pytest.mark.parametrize("chosen", [Plan(), Plan(rule=plan.built_in())], ids=["thresholds", "built in"])
def test_named_kernels_are_those_that_run(monkeypatch, chosen):
    net = network()
    with use_plan(chosen):
        conv, linear = se.report(net, (3, 8, 8), batch=16).runs
        found = seen(monkeypatch, net, 16)
    assert (conv.name, conv.image, linear.image) == ("0", (8, 8, 16), (1, 1, 16))

    def told(kernel, isa):
        return kernel if kernel == "torch" else f"{kernel} {isa}"

    by_layer = [told(*one) for one in found["forward"]]
    assert conv.kernels[0] == by_layer[0] and conv.kernels[2] == told(*found["weight_gradient"][-1])
    if linear.kernels[0] != "torch":
        assert linear.kernels[0] == by_layer[1]


def test_reasons():
    net = network()
    conv = net[0].conv
    measured = {plan.key(conv, "forward", (8, 8, 16), None): "dense"}
    with use_plan(Plan(measured)):
        found = se.report(net, (3, 8, 8), batch=16)
    first = found.runs[0]
    assert first.kernels[0] == f"dense {native.isa()}" and first.why == ("measured", "rule", "rule")
    assert "0: forward dense" in str(found) and "for a batch of 16 (measured, sha256" in str(found)
    free = {f"torch {d} conv": (0.0,) * 10 for d in sc.DIRECTIONS}
    with use_plan(Plan(rule=Rule("x", free))):
        conv = se.report(net, (3, 8, 8)).runs[0]
    assert str(conv) == "0: torch (torch is faster)"
    assert se.report(net).runs == ()


def test_small_linear_layers_say_that_torch_runs_them():
    net = se.sparsify(nn.Linear(20, 30), density=0.5)
    (only,) = se.report(net, (20,)).runs
    assert only.kernels == ("torch",) * 3 and only.why == ("torch is faster",) * 3
