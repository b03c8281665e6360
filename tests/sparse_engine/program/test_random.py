"""Random chains of steps: the native session is the reference."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import Net, batches, captured, samples, seeds
from torch import nn

import sparse_engine as se
from sparse_engine.program.cpu.session import Session
from sparse_engine.program.reference import Reference
from sparsefl.kernels import native

pytestmark = pytest.mark.skipif(not native.built(), reason="the native kernels are not built")
KINDS = ("conv", "strided", "1x1", "group", "batch", "relu", "max", "average", "drop", "sum", "twice", "back")


def network(kinds: list[str], channels: int, classes: int) -> nn.Module:
    """Steps of these kinds one after the other. "sum" adds the last value of its shape, "back" the first."""
    layers: dict[str, nn.Module] = {}
    for i, kind in enumerate(kinds):
        made = {
            "conv": lambda: nn.Conv2d(channels, channels, 3, padding=1),
            "strided": lambda: nn.Conv2d(channels, channels, 3, stride=2, padding=1, bias=False),
            "1x1": lambda: nn.Conv2d(channels, channels, 1),
            "group": lambda: nn.GroupNorm(1, channels),
            "batch": lambda: nn.BatchNorm2d(channels),
            "drop": lambda: nn.Dropout(0.3),
        }.get(kind)
        if made is not None:
            layers[f"layer{i}"] = made()

    def run(net, x):
        values = [net.first(x)]
        for i, kind in enumerate(kinds):
            h = values[-1]
            if hasattr(net, f"layer{i}"):
                h = getattr(net, f"layer{i}")(h)
            elif kind == "relu":
                h = F.relu(h)
            elif kind == "max":
                h = F.max_pool2d(h, 3, 1, 1)
            elif kind == "average":
                h = F.avg_pool2d(h, 3, 2, 1)
            elif kind == "twice":
                h = h + h
            else:
                halved = [0, *(j + 1 for j, k in enumerate(kinds[:i]) if k in ("strided", "average"))][-1]
                h = h + values[halved if kind == "back" else max(halved, len(values) - 2)]
            values.append(h)
        return net.fc(values[-1].mean((2, 3)))

    return Net(run, first=nn.Conv2d(2, channels, 3, padding=1), **layers, fc=nn.Linear(channels, classes))


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    kinds=st.lists(st.sampled_from(KINDS), max_size=8),
    channels=st.integers(1, 7),
    size=st.sampled_from([2, 9, 17, 32]),
    density=st.sampled_from([0.3, 0.8, 1]),
)
def test_a_chain_of_steps_has_the_reference_s_gradients(kinds, channels, size, density):
    torch.manual_seed(len(kinds))
    graph, model = captured(network(kinds, channels, 3), (2, 7, 6), density)
    given = batches(samples(graph, size), size)
    ours, done = Session(graph).gradient(model, given, seeds(graph))
    theirs, wanted = Reference(graph).gradient(model, given, seeds(graph))
    assert done.loss == pytest.approx(wanted.loss, rel=1e-4)
    # Norms of few channels divide by small deviations: wider than elsewhere, far below any wrong step.
    scale = max(1e-3, *(float(x.abs().max()) for x in (theirs.values, theirs.rest) if x.numel()))
    for a, b in ((ours.values, theirs.values), (ours.rest, theirs.rest)):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-4 * scale)
    assert Session(graph).evaluate(model, given) == Reference(graph).evaluate(model, given)


def test_every_kind_can_be_captured():
    graph, _ = captured(network([*KINDS], 4, 3), (2, 7, 6))
    assert len(graph.steps) > len(KINDS)
    assert isinstance(graph, se.program.steps.Graph)
