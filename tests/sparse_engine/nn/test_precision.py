"""precision="bf16": activations in bfloat16, weights and what comes out in float32."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sparse_engine as se


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(16, 5),
    )  # fmt: skip


def step(net, x):
    loss = F.cross_entropy(net(x), torch.arange(len(x)) % 5)
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten() for p in net.parameters()])


def test_gradients_are_near_those_of_float32():
    x = torch.randn(32, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    exact, found = (step(se.sparsify(network(), density=0.5, precision=p), x) for p in ("fp32", "bf16"))
    assert found[0] == pytest.approx(exact[0], rel=0.02)
    assert found[0] != exact[0]  # it did run in another precision
    assert found[1].dtype == torch.float32
    assert (found[1] - exact[1]).norm() < 0.1 * exact[1].norm()


def test_activations_are_bfloat16_and_results_float32():
    net = se.sparsify(network(), density=0.5, precision="bf16")
    seen = {}
    for name, layer in net.named_children():
        layer.register_forward_hook(lambda _, __, y, name=name: seen.update({name: y.dtype}))
    y = net(torch.randn(4, 3, 8, 8))
    assert set(seen.values()) == {torch.bfloat16}
    assert y.dtype == torch.float32
    assert {p.dtype for p in net.parameters()} == {torch.float32}


def test_copies_keep_the_precision_and_dense_networks_have_none():
    net = se.sparsify(network(), density=0.5, precision="bf16").eval()
    x = torch.randn(4, 3, 8, 8)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(twin(x), net(x))
    assert "bfloat16" in str(se.report(net))
    assert "bfloat16" not in str(se.report(se.to_dense(net)))


def test_it_can_be_a_program():
    net = se.sparsify(network(), density=0.5, precision="bf16")
    assert "in bfloat16" in str(se.compile(net, torch.randn(4, 3, 8, 8)))
    assert "Can train as a program" in se.report(net, (3, 8, 8)).program


def test_refuses_other_precisions():
    with pytest.raises(ValueError, match="expected a precision of .*, got 'fp16'"):
        se.sparsify(network(), density=0.5, precision="fp16")
    with pytest.raises(ValueError, match=r"expected float32 weights for precision bf16, got torch.float64"):
        se.sparsify(network().double(), density=0.5, precision="bf16")
