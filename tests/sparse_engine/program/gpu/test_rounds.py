"""Two rounds of DA-DPFL for three clients on the card: means, training, drift, pruning, growth."""

from contextlib import nullcontext

import pytest
import torch
from groups import pictures, shares, tiny_clients
from helpers import VIRTUAL, variants

import sparse_engine as se
from sparse_engine.model.grow import Growth
from sparse_engine.program.batches import Training
from sparse_engine.program.cpu.session import Session
from sparse_engine.program.gpu.session import GroupSession

REAL = torch.cuda.is_available()  # the interpreter is too slow for whole trainings
OURS = [name for name in variants("group_conv", without=["reference"]) if REAL or name != "triton"]
HOW = Training(lr=0.05, momentum=0.9, weight_decay=0.01)
NEIGHBOURS = {0: (1, 2), 1: (0,), 2: (1,)}


def the_card(variant):
    """No backend is forced: devices decide, as in a run. The drift of biases is summed on the host."""
    if variant != VIRTUAL:
        return nullcontext()
    import virtual_card  # imports triton: not for tests that go without

    return virtual_card.installed()


class OnCpu:
    """Client by client, natively."""

    def __init__(self, graph):
        self.session = Session(graph)

    def train(self, models, batches):
        for model, mine in zip(models, batches, strict=True):
            self.session.train(model, mine, HOW)

    def grow(self, models, fraction, batches):
        pairs = zip(models, batches, strict=True)
        return [self.session.grow(model, Growth(model, fraction), mine) for model, mine in pairs]


class OnCard:
    """All clients at once."""

    def __init__(self, graph, device):
        self.session = GroupSession(graph, device)

    def train(self, models, batches):
        self.session.train(models, batches, HOW)

    def grow(self, models, fraction, batches):
        return self.session.grow(models, fraction, batches)


def rounds(run, models, data):
    """Models, masks and drifts after every round; round 1 prunes."""
    masks, seen = [model.bitmap for model in models], []
    origins = models
    for t in range(2):
        starts = [se.average(models[k], [models[j] for j in NEIGHBOURS[k]], mask=masks[k]) for k in range(3)]
        run.train(starts, shares(data, epochs=1))
        drifts = [se.drift(start, origin) for start, origin in zip(starts, origins, strict=True)]
        if t == 1:
            starts = [se.prune_pqi(start) for start in starts]
        masks = run.grow(starts, 0.3, shares(data, epochs=1))
        models = starts
        seen.append(([model.to("cpu") for model in models], [mask.words.cpu() for mask in masks], drifts))
    return seen


@pytest.mark.parametrize("variant", OURS)
def test_two_rounds_are_those_of_the_cpu(variant):
    graph, models = tiny_clients()
    data = pictures(graph)
    wanted = rounds(OnCpu(graph), models, data)
    with the_card(variant):
        found = rounds(OnCard(graph, "cuda"), [model.to("cuda") for model in models], data)
    for (ours, our_masks, our_drifts), (theirs, masks, drifts) in zip(found, wanted, strict=True):
        assert our_drifts == pytest.approx(drifts, rel=1e-5)
        assert all(torch.equal(*pair) for pair in zip(our_masks, masks, strict=True))
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a.bitmap.words, b.bitmap.words)
            assert torch.allclose(a.values, b.values, rtol=1e-5, atol=1e-6)
            assert torch.allclose(a.rest, b.rest, rtol=1e-5, atol=1e-6)
    first, last = wanted[0][0], wanted[1][0]
    assert any(b.bitmap.nnz < a.bitmap.nnz for a, b in zip(first, last, strict=True)), "nothing was pruned"
