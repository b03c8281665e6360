"""The plan of memory: what lives at once never overlaps, and sharing saves most of it."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import MODELS, ODD, captured, made, samples

import sparse_engine as se
from sparse_engine.program.cpu.memory import LINE, Buffer, Planned, place
from sparse_engine.program.cpu.program import MODES
from sparse_engine.program.cpu.session import Session
from sparsefl.kernels import memory, native

pytestmark = pytest.mark.skipif(not native.built(), reason="the native kernels are not built")


def assert_apart(planned, places):
    """No two buffers that live at once overlap, all are within the workspace, each begins a cache line."""
    lives = {}
    for i, step in enumerate(planned):
        for x in step.buffers:
            lives.setdefault(x, []).append(i)
    spans = {x: (0, len(planned)) if x.pinned else (min(at), max(at)) for x, at in lives.items()}
    assert places.at.keys() == spans.keys()
    for x, (first, last) in spans.items():
        at = places.at[x]
        assert at % LINE == 0 and at + x.size <= places.size <= places.alone
        assert at == 0 or not x.pinned
        for y, (start, end) in spans.items():
            if x is not y and first <= end and start <= last:
                assert at + x.size <= places.at[y] or places.at[y] + y.size <= at, (x, y)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 11), st.integers(0, 11)), min_size=1, max_size=25)
)
def test_buffers_of_random_lives_do_not_overlap(given):
    buffers = [
        (Buffer(size, str(i), pinned=not i), min(a, b), max(a, b)) for i, (size, a, b) in enumerate(given)
    ]
    planned = [
        Planned("Step", {x.what: x for x, first, last in buffers if i in (first, last)}) for i in range(12)
    ]
    assert_apart(planned, place(planned))


@pytest.mark.parametrize("name", [*ODD, *MODELS])
def test_buffers_of_a_network_do_not_overlap(name):
    graph, model = made(name, density=0.2)
    program = Session(graph).program(model.bitmap, 20)
    for mode in MODES:
        assert_apart(program.planned[mode], program.places[mode])
    assert program.places["train"].size < program.places["train"].alone


@pytest.mark.skipif(not native.built() or not native.extension().pooled(), reason="buffers are not counted")
def test_a_training_of_resnet18_takes_what_layer_by_layer_does(monkeypatch):
    """Results in use at once, layer by layer, against the workspace of a training and the stored weights of a
    layer in another order."""
    net = se.models.resnet18(num_classes=10)
    graph, model = captured(net, (3, 32, 32), density=0.2)
    given, taken, before, real = samples(graph, 32), [], native.extension().bytes_taken(), memory.empty

    def watched(*args):
        found = real(*args)
        taken.append(native.extension().bytes_taken() - before)
        return found

    monkeypatch.setattr(memory, "empty", watched)
    layers = se.load(se.sparsify(net, masks={}, exempt=()), model)
    F.cross_entropy(layers(torch.from_numpy(given.x)), torch.from_numpy(given.labels)).backward()
    workspace = Session(graph).program(model.bitmap, 32).places["train"].size
    assert 4 * (workspace + max(model.bitmap.stored)) <= max(taken)
