"""What training costs: the figures of algorithms.md 7, and the engine's own count."""

import pytest
import torch

import sparse_engine as se
from fl.train.cost import Cost


@pytest.mark.parametrize(
    ("name", "classes", "shape", "samples", "forward", "training", "share"),
    [
        ("resnet18", 10, (3, 32, 32), 499, 1_110_845_450, 8.32e12, 0.801),
        ("vgg11", 100, (3, 32, 32), 499, 305_782_884, 2.29e12, 0.701),
        ("alexnet", 7, (3, 64, 64), 640, 376_020_999, 3.61e12, 0.668),
    ],
)
def test_figures_of_the_paper(name, classes, shape, samples, forward, training, share):
    with torch.random.fork_rng():
        net = se.models.by_name(name, num_classes=classes)
    dense = se.compress(net)
    cost = Cost.of(net, dense.layout, shape)
    assert cost.dense_forward == cost.forward(dense) == forward
    assert cost.dense_training(5 * samples) == pytest.approx(training, rel=0.002)
    shapes = dict(zip(dense.layout.names, dense.layout.shapes, strict=True))
    sparse = dense.with_pattern(dense.layout.bitmap_of(se.erk_masks(shapes, 0.5, seed=0)))
    assert cost.training(sparse, 1) / cost.dense_training(1) == pytest.approx(share, abs=5e-4)


def test_as_the_engine_counts():
    net = se.models.small_cnn(width=4)
    dense = se.compress(net, exempt="conv2.weight")
    shapes = dict(zip(dense.layout.names, dense.layout.shapes, strict=True))
    masks = se.uniform_masks(shapes, 0.3, seed=1)
    cost = Cost.of(net, dense.layout, (3, 16, 16))
    counted = se.count_flops(net, (3, 16, 16), masks)
    sparse = dense.with_pattern(dense.layout.bitmap_of(masks))
    assert cost.forward(sparse) == counted.sparse_forward < counted.dense_forward == cost.dense_forward
    assert cost.training(sparse, 7) == 7 * counted.sparse_step
