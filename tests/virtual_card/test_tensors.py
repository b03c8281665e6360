"""Tensors of the virtual card behave as those of cuda:0: devices, refusals, copies, fresh memory."""

import copy

import pytest
import torch
from helpers import randn
from torch import nn

from virtual_card import Fault

CUDA = torch.device("cuda", 0)


def test_they_say_where_they_are(card):
    x = randn(6).to("cuda")
    made = [x + 1, x.view(2, 3).t().contiguous(), x[1:], torch.zeros_like(x), x.new_ones(3), copy.deepcopy(x)]
    made += [
        torch.arange(3, device="cuda"),
        torch.tensor([1, 2], device=CUDA),
        torch.rand(2, device="cuda:0"),
    ]
    assert {y.device for y in made} == {CUDA} and all(y.is_cuda for y in made)
    assert x.to("cuda") is x and x.to(torch.device("cuda")) is x and x.cuda() is x
    assert x.cpu().device.type == "cpu" and torch.equal(x.cpu(), randn(6))
    assert torch.equal(copy.deepcopy(x).cpu(), x.cpu()) and x.tolist() == randn(6).tolist()


def test_what_torch_refuses_is_refused(card):
    x, y = randn(6).to("cuda"), randn(6)
    with pytest.raises(RuntimeError, match="same device: add got cuda:0 and cpu"):
        x + y
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        x.numpy()
    assert (x + y[0].clone()).device == CUDA  # a number on the CPU goes along


def test_views_write_into_one_memory(card):
    x = torch.zeros(2, 3).to("cuda")
    x.t()[1] = 5
    x.view(-1)[0] = 7
    assert x.tolist() == [[7, 5, 0], [0, 5, 0]]


def test_copies_and_waits_are_counted(card):
    x = randn(6).to("cuda")
    x.sum().item()
    assert card.events == {"sync:cpu->cuda": 1, "launch": 1, "aten:sum": 1, "sync:_local_scalar_dense": 1}
    card.events.clear()
    x.view(2, 3)[0]
    assert not card.events
    randn(3).pin_memory().to("cuda", non_blocking=True)
    assert card.events == {"async:cpu->cuda": 1} and card.syncs == 0


def test_memory_that_nobody_wrote(card):
    x = torch.empty(4, device="cuda")
    for read in (lambda: x * 2, lambda: x.add_(1), lambda: x.cpu(), lambda: torch.stack([x, x])):
        with pytest.raises(Fault, match=r"reads memory of float32 \[4\] that nobody wrote"):
            read()
    x[:2] = 1
    assert x[:2].tolist() == [1, 1]
    with pytest.raises(Fault, match="nobody wrote"):
        x.sum()
    x.zero_()
    assert x.sum().item() == 0


def test_a_network_computes_there(card):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    ).eval()
    x, parameters = randn(32).view(2, 1, 4, 4), list(net.parameters())
    with torch.no_grad():
        wanted = net(x)
        moved = net.to("cuda")
        assert all(p is q for p, q in zip(moved.parameters(), parameters, strict=True))
        assert torch.equal(moved(x.to("cuda")).cpu(), wanted)
        assert torch.equal(moved.cpu()(x), wanted)
