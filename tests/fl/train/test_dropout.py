"""fl.train.dropout: torch's dropouts replaced by ones that start anew with a seed."""

import torch
from torch import nn

from fl.train.dropout import Dropout, seeded


def network():
    return nn.Sequential(nn.Linear(6, 40), nn.Dropout(0.5), nn.Sequential(nn.ReLU(), nn.Dropout(0.2)))


def test_every_dropout_is_replaced_in_its_place():
    net = network()
    found = seeded(net)
    assert [module.p for module in found] == [0.5, 0.2]
    assert net[1] is found[0] and net[2][1] is found[1]
    assert not any(isinstance(module, nn.Dropout) for module in net.modules())


def test_passes_differ_and_a_start_repeats_them():
    layer, x = Dropout(0.5), torch.ones(16, 40)
    layer.start(5)
    first = [layer(x) for _ in range(3)]
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[1], first[2])
    layer.start(5)
    assert all(torch.equal(layer(x), y) for y in first)
    layer.start(6)
    assert not torch.equal(layer(x), first[0])


def test_nothing_is_dropped_in_evaluation_or_without_probability():
    x = torch.ones(16, 40)
    assert Dropout(0.0)(x) is x
    layer = Dropout(0.5).eval()
    assert layer(x) is x
    assert torch.equal(layer.train()(x), Dropout(0.5)(x))  # evaluation took no step


def test_torchs_generator_is_left_alone():
    before = torch.get_rng_state()
    Dropout(0.5)(torch.ones(4, 4))
    assert torch.equal(before, torch.get_rng_state())
