"""Random chains of steps: the native session is the reference."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import KINDS, batches, captured, network, samples, seeds

import sparse_engine as se
from sparse_engine.program.cpu.session import Session
from sparse_engine.program.reference import Reference
from sparsefl.kernels import native

pytestmark = pytest.mark.skipif(not native.built(), reason="the native kernels are not built")


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
