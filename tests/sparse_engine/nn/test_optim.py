"""SparseSGD against torch.optim.SGD."""

import pytest
import torch
from torch import nn

import sparse_engine as se
from sparse_engine.nn.optim import SparseSGD


@pytest.mark.parametrize(
    "numbers",
    [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}],
    ids=["plain", "momentum", "nesterov"],
)
def test_dense_parameters_move_as_with_torch(numbers):
    torch.manual_seed(0)
    ours, theirs = nn.Linear(5, 3), nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    optimizers = SparseSGD(ours, lr=0.1, **numbers), torch.optim.SGD(theirs.parameters(), lr=0.1, **numbers)
    for _ in range(3):
        x = torch.randn(7, 5)
        for net, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            net(x).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(ours.weight, theirs.weight)
    torch.testing.assert_close(ours.bias, theirs.bias)


def test_max_norm_clips_all_parameters_together():
    torch.manual_seed(0)
    ours, theirs = nn.Linear(5, 3), nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    x = 100 * torch.randn(7, 5)
    for net in (ours, theirs):
        net(x).square().sum().backward()
    SparseSGD(ours, lr=0.1, max_norm=10.0).step()
    nn.utils.clip_grad_norm_(theirs.parameters(), 10.0)
    torch.optim.SGD(theirs.parameters(), lr=0.1).step()
    torch.testing.assert_close(ours.weight, theirs.weight)


def test_momentum_starts_afresh_with_a_new_pattern():
    torch.manual_seed(0)
    net = se.sparsify(nn.Sequential(nn.Linear(20, 4)), density=0.5)
    optimizer = SparseSGD(net, lr=0.1, momentum=0.9)
    for density in (0.5, 0.3):
        net[0].set_pattern(se.Pattern.from_mask(torch.rand(4, 20) < density))
        net(torch.randn(2, 20)).sum().backward()
        optimizer.step()
        assert optimizer.state[net[0].weight]["u"].numel() == net[0].weight.numel()


@pytest.mark.parametrize(
    "numbers", [{"lr": -1}, {"momentum": 1.0}, {"weight_decay": -1}, {"max_norm": 0}, {"nesterov": True}]
)
def test_bad_numbers_are_refused(numbers):
    with pytest.raises(ValueError, match="expected"):
        SparseSGD(nn.Linear(2, 2), **({"lr": 0.1} | numbers))
