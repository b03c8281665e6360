"""What stays dense of a network, in words, and networks of which nothing can be sparse."""

import pytest
import torch
from torch import nn

import sparse_engine as se
from fl.config import ConfigError
from fl.train import coverage


def test_networks_of_our_own_can_be_sparse_throughout():
    for name in ("small_cnn", "vgg11", "resnet18"):
        assert (
            coverage.remarks(se.models.by_name(name, in_channels=3, num_classes=10), name, (3, 32, 32)) == []
        )


def test_the_largest_that_stay_dense_are_named_with_the_reason():
    grouped = [nn.Conv2d(4 * n, 4 * n, 1, groups=n) for n in (2, 1, 4, 8, 16)]
    wider = [nn.Conv2d(4 * a, 4 * b, 1) for a, b in ((1, 2), (2, 1), (1, 4), (4, 8), (8, 16))]
    net = nn.Sequential(*(layer for pair in zip(wider, grouped, strict=True) for layer in pair))
    (told,) = coverage.remarks(net, "mine", (4, 2, 2))
    assert told.startswith("mine: 14.0% of the weights cannot be sparse")
    assert "dense: 9 (256): grouped convolution (16 groups); 7 (128): grouped" in told
    assert told.endswith("; 5 (64): grouped convolution (4 groups); and 1 more")


def test_what_is_not_counted_is_named():
    class Scaled(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)

        def forward(self, x):
            return x @ self.weight.T

    class Moved(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last, self.position = nn.Linear(4, 4), Scaled(), nn.Parameter(torch.zeros(1, 4))

        def forward(self, x):
            return self.last(self.first(x) + self.position)

    (told,) = coverage.remarks(Moved(), "mine", (4,))
    assert "last (12): Scaled has a forward of its own; position (4): a parameter of Moved itself" in told
    assert told.endswith("FLOP are counted without position")


@pytest.mark.parametrize(
    ("net", "exempt", "message"),
    [
        (nn.ConvTranspose2d(3, 2, 1), (), r"net: .*got mine with ConvTranspose2d \(6\): no sparse kernel"),
        (nn.Linear(3, 2), ("*",), "net: .*got mine with all layers in model.exempt"),
        (nn.BatchNorm1d(3), (), "net: .*got mine with no weights"),
    ],
)
def test_a_network_that_cannot_be_sparse_at_all(net, exempt, message):
    able = se.compress(net, exempt=exempt).layout.names
    with pytest.raises(ConfigError, match=message):
        coverage.check(net, able, "mine", "net")
    coverage.check(nn.Linear(3, 2), ("weight",), "mine", "net")
