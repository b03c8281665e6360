"""Moving a pattern, a tensor, a model, a network and its optimizer to a card and back moves all of it."""

from contextlib import nullcontext

import pytest
import torch
from helpers import randn
from torch import nn

import sparse_engine as se
from sparse_engine.nn import SparseLayer
from sparsefl.kernels import devices

virtual_card = pytest.importorskip("virtual_card", reason="no triton here", exc_type=ModuleNotFoundError)
NAMES = ["cuda", "cuda:0", torch.device("cuda"), torch.device("cuda", 0)]


@pytest.fixture
def card():
    """cuda:0, and None if it is a real one. The device of the tensors decides what runs where."""
    with nullcontext() if torch.cuda.is_available() else virtual_card.installed() as found:
        yield found


def network(seed=0):
    torch.manual_seed(seed)
    return se.sparsify(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(32, 50)), density=0.3)


def gradients(net, seed):
    for i, p in enumerate(net.parameters()):
        p.grad = randn(p.numel(), seed + i).view(p.shape).to(p.device)


@pytest.mark.parametrize("name", NAMES, ids=str)
def test_all_names_of_a_card_are_one(card, name, random_state):
    assert devices.numbered(name) == torch.device("cuda", 0)
    model = random_state().to(name)
    pattern, tensor = model.pattern("w1"), model.tensor("w1")
    for other in NAMES:
        assert model.to(other) is model and pattern.to(other) is pattern and tensor.to(other) is tensor


def test_a_model_and_its_parts_go_and_come_back(card, random_state):
    state = random_state()
    there = state.to("cuda")
    assert {x.device.type for x in there.tensors().values()} == {"cuda"}
    back = there.to("cpu")
    tensor = state.tensor("w2").to("cuda")
    assert tensor.values.device == tensor.pattern.bitmap.words.device == torch.device("cuda", 0)
    assert torch.equal(tensor.to_dense().cpu(), state.tensor("w2").to_dense())
    assert torch.equal(tensor.pattern.csr.columns.cpu(), state.pattern("w2").csr.columns)
    for name, x in state.tensors().items():
        assert torch.equal(x, back.tensors()[name])
    assert back.bitmap.offsets.tolist() == state.bitmap.offsets.tolist()


@pytest.mark.skipif(torch.cuda.is_available(), reason="counts what the virtual card was asked for")
def test_moving_a_model_copies_four_tensors_and_computes_nothing(card, random_state):
    random_state().to("cuda")
    assert card.events == {"sync:cpu->cuda": 4} and not card.launches


def test_a_network_moves_with_its_patterns(card):
    net = network()
    dense = {name: layer.tensor().to_dense() for name, layer in layers(net)}
    words = {name: layer.bitmap.clone() for name, layer in layers(net)}
    net.to("cuda")
    for name, layer in layers(net):
        places = [layer.weight, layer.bitmap, layer.pattern.bitmap.words, layer.conv.bitmap.words]
        assert {x.device for x in places} == {torch.device("cuda", 0)}
        assert layer.pattern.bitmap.words is layer.bitmap
        assert torch.equal(layer.tensor().to_dense().cpu(), dense[name])
    state = se.compress(net)
    assert state.values.device.type == "cuda"
    net.cpu()
    for name, layer in layers(net):
        assert layer.pattern.bitmap.words.device.type == "cpu"
        assert torch.equal(layer.bitmap, words[name]) and torch.equal(layer.tensor().to_dense(), dense[name])
    assert net(randn(2 * 3 * 16).view(2, 3, 4, 4)).shape == (2, 50)


def layers(net):
    return [(name, module) for name, module in net.named_modules() if isinstance(module, SparseLayer)]


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_follows_a_network(card, nesterov):
    how = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": nesterov, "max_norm": 3.0}
    stays, moves = network(), network()
    for net in (stays, moves):
        net.optimizer = se.SparseSGD(net, **how)
        gradients(net, 1)
        net.optimizer.step()
    gradients(stays, 10)
    stays.optimizer.step()
    moves.to("cuda")
    gradients(moves, 10)
    moves.optimizer.step()
    places = {state["u"].device.type for state in moves.optimizer.state.values()}
    assert places == {"cuda"}
    moves.cpu()
    for mine, theirs in zip(moves.parameters(), stays.parameters(), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-6)
