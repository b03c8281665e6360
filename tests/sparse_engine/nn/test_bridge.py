"""compress and load: a network to its at-rest form and back, exactly."""

import pytest
import torch
from helpers import host, on, randn, variants
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import sparse_engine as se
from sparse_engine.nn.bridge import prunable

PRUNABLE = ["conv1.weight", "conv2.weight", "fc.weight"]


def tensors(net):
    return {name: x.clone() for name, x in net.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(a[n].dtype == b[n].dtype and torch.equal(a[n], b[n]) for n in a)


def test_what_is_prunable(toy):
    net = toy()
    assert list(prunable(net)) == PRUNABLE
    assert list(prunable(net, ())) == ["conv1.weight", "conv2.weight", "shortcut.weight", "fc.weight"]
    assert list(prunable(net, ["conv*", "fc.weight"])) == ["shortcut.weight"]
    assert list(prunable(net, "conv*")) == ["shortcut.weight", "fc.weight"]
    assert list(prunable(nn.Linear(2, 3))) == ["weight"]
    others = nn.Sequential(
        nn.Conv2d(4, 4, 3, groups=2), nn.Conv1d(2, 2, 1), nn.Embedding(3, 2), nn.Linear(2, 2).half()
    )
    assert list(prunable(others)) == []


def test_the_parts_of_a_compressed_network(toy):
    net = toy()
    state = se.compress(net)
    assert list(state.layout.names) == PRUNABLE
    assert state.layout.shapes == ((8, 3, 3, 3), (16, 8, 3, 3), (10, 64))
    assert [entry.name for entry in state.layout.integers] == ["bn1.num_batches_tracked"]
    assert "shortcut.weight" in state.rest_tensors()
    assert state.density == 1.0
    assert state.rest.numel() == 8 + 4 * 8 + 16 + 16 * 8 + 10
    assert same(se.masks(net), se.masks(state))


@pytest.mark.parametrize("variant", variants())
def test_masked_weights_come_back_masked(variant, toy):
    net, fresh = toy(1), toy(2)
    masks = {"conv2.weight": randn(1152, 9).view(16, 8, 3, 3) > 0.5, "fc.weight": torch.zeros(10, 64).bool()}
    with on(variant) as put:
        expected = tensors(net)
        state = se.compress(put(net), put(masks))
        fresh = put(fresh)
        assert se.load(fresh, state) is fresh
        fresh, state = host(fresh), host(state)
    for name, mask in masks.items():
        expected[name] = expected[name].where(mask, torch.zeros(()))
    assert same(tensors(fresh), expected)
    assert state.pattern("conv1.weight").density == 1.0
    assert state.pattern("fc.weight").nnz == 0


@settings(max_examples=20, deadline=None)
@given(st.floats(0, 1), st.integers(0, 99))
def test_compress_load_compress(toy, density, seed):
    net = toy(seed)
    masks = se.uniform_masks({name: w.shape for name, w in prunable(net).items()}, density, seed)
    state = se.compress(net, masks)
    loaded = se.load(toy(seed + 1), state)
    again = se.compress(loaded, masks)
    assert again.layout is state.layout
    assert same(se.masks(state), masks)
    for part in ("values", "rest", "integers"):
        assert torch.equal(getattr(state, part), getattr(again, part))
    unmasked = [name for name in net.state_dict() if name not in masks]
    assert all(torch.equal(net.state_dict()[name], loaded.state_dict()[name]) for name in unmasked)


def test_a_state_has_memory_of_its_own_and_no_graph(toy):
    net = toy()
    state = se.compress(net)
    before = state.clone()
    with torch.no_grad():
        for x in net.state_dict().values():
            x.zero_()
    for part in ("values", "rest", "integers"):
        assert torch.equal(getattr(state, part), getattr(before, part))
        assert not getattr(state, part).requires_grad
    se.load(net, state)
    assert all(p.requires_grad for p in net.parameters())
    state.values.zero_()
    assert net.conv1.weight.abs().sum() > 0


def test_integers_and_halves_are_exact():
    net = nn.Module()
    net.register_buffer("big", torch.tensor([2**62 + 1, -(2**62) - 1]))
    net.register_buffer("flags", torch.tensor([True, False]))
    net.register_buffer("narrow", torch.tensor([0.1, 65504.0], dtype=torch.float16))
    net.register_buffer("brain", torch.tensor([0.1, 3e38], dtype=torch.bfloat16))
    net.register_buffer("passing", torch.ones(3), persistent=False)
    expected = tensors(net)
    state = se.compress(net)
    for x in net.state_dict().values():
        x.zero_()
    assert same(tensors(se.load(net, state)), expected)
    assert "passing" not in state.rest_tensors()


def test_weights_of_any_strides(toy):
    net = toy().to(memory_format=torch.channels_last)
    fresh = se.load(toy(3), se.compress(net))
    assert same(tensors(fresh), tensors(net))
    assert same(
        tensors(se.load(toy(4).to(memory_format=torch.channels_last), se.compress(net))), tensors(net)
    )


def test_exempt_weights_are_kept_whole(toy):
    net = toy()
    state = se.compress(net, exempt=["conv1.weight"])
    assert list(state.layout.names) == ["conv2.weight", "shortcut.weight", "fc.weight"]
    assert torch.equal(state.rest_tensors()["conv1.weight"], net.conv1.weight)
    assert list(se.masks(net, exempt=["conv1.weight"])) == list(state.layout.names)


def tied():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    return net


class WithExtraState(nn.Linear):
    def get_extra_state(self):
        return {"note": 1}


@pytest.mark.parametrize(
    ("net", "arguments", "message"),
    [
        (nn.Linear(4, 3), {"masks": {"wait": torch.ones(3, 4).bool()}}, r"\['weight'\], got \['wait'\]"),
        (nn.Linear(4, 3), {"masks": {"weight": torch.ones(4, 3).bool()}}, r"\(4, 3\), 'wanted \(3, 4\)'"),
        (
            nn.Linear(4, 3),
            {"masks": {"weight": torch.ones(3, 4)}},
            r"expected bool masks .*\(torch.float32, \(3, 4\)",
        ),
        (nn.Linear(4, 3), {"masks": {"bias": torch.ones(3).bool()}}, r"got \['bias'\]"),
        (
            nn.Linear(4, 3),
            {"masks": {"weight": torch.ones(3, 4).bool()}, "exempt": "weight"},
            r"got \['weight'\]",
        ),
        (nn.Linear(4, 3), {"exempt": ["wait"]}, r"exempt weights out of \['weight'\], .* got \['wait'\]"),
        (nn.Linear(4, 3).double(), {}, "hold exactly, got {'weight': torch.float64"),
        (tied(), {}, "under one name, got tied ones {'1.weight': '0.weight'}"),
        (WithExtraState(4, 3), {}, r"extra state \['_extra_state'\]"),
    ],
)
def test_compress_refuses(net, arguments, message):
    with pytest.raises(ValueError, match=message):
        se.compress(net, **arguments)


@pytest.mark.parametrize(
    ("other", "names"),
    [
        (nn.Linear(4, 2), ["weight", "bias"]),
        (nn.Linear(4, 3, bias=False), ["bias"]),
        (nn.Sequential(nn.Linear(4, 3)), ["weight", "bias", "0.weight", "0.bias"]),
        (nn.Linear(4, 3).half(), ["weight", "bias"]),
    ],
)
def test_load_refuses_and_changes_nothing(other, names):
    before = tensors(other)
    with pytest.raises(ValueError, match="expected a state of this network") as refusal:
        se.load(other, se.compress(nn.Linear(4, 3)))
    assert all(f"'{name}'" in str(refusal.value) for name in names)
    assert same(tensors(other), before)
