"""What training costs: the figures of algorithms.md 7, and the engine's own count."""

import pytest
import torch

import sparse_engine as se
from fl.run import setup
from fl.train.cost import Cost, Costs
from fl.train.local import Local
from fl.train.worker import Worker


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
    assert cost.dense_forward == cost.forward(dense.bitmap) == forward
    assert cost.dense_training(5 * samples) == pytest.approx(training, rel=0.002)
    shapes = dict(zip(dense.layout.names, dense.layout.shapes, strict=True))
    sparse = dense.with_pattern(dense.layout.bitmap_of(se.erk_masks(shapes, 0.5, seed=0)))
    assert cost.training(sparse.bitmap, 1) / cost.dense_training(1) == pytest.approx(share, abs=5e-4)


def test_as_the_engine_counts():
    net = se.models.small_cnn(width=4)
    dense = se.compress(net, exempt="conv2.weight")
    shapes = dict(zip(dense.layout.names, dense.layout.shapes, strict=True))
    masks = se.uniform_masks(shapes, 0.3, seed=1)
    cost = Cost.of(net, dense.layout, (3, 16, 16))
    counted = se.count_flops(net, (3, 16, 16), masks)
    sparse = dense.with_pattern(dense.layout.bitmap_of(masks))
    assert cost.forward(sparse.bitmap) == counted.sparse_forward < counted.dense_forward == cost.dense_forward
    assert cost.training(sparse.bitmap, 7) == 7 * counted.sparse_step


def test_a_turn_by_hand():
    """Two weights, used 3 times and once; 5 of the first and 2 of the second are stored; 10 fixed."""
    layout = se.Layout(("a", "b"), ((2, 4), (1, 4)))
    masks = {"a": torch.arange(8).view(2, 4) < 5, "b": torch.arange(4).view(1, 4) < 2}
    costs = Costs(Cost((3, 1), fixed=10, dense_forward=2 * (3 * 8 + 4) + 10), samples=[7, 20])
    mask, local = layout.bitmap_of(masks), Local(epochs=2, batch_size=8, lr=0.1)
    step, dense = 3 * (2 * (3 * 5 + 2) + 10), 3 * 66
    assert [costs.turn(k, mask, local) for k in (0, 1)] == [14 * step, 40 * step]
    assert costs.turn(0, mask, local, grow_batches=1) == 14 * step + 7 * dense  # a batch of all it has
    assert costs.turn(1, mask, local, grow_batches=2) == 40 * step + 16 * dense
    assert costs.turn(1, mask, Local(epochs=1, batch_size=8, lr=0.1, rho=0.5)) == 2 * 20 * step


@pytest.mark.parametrize("batches", [0, 1, 2, 100])
@pytest.mark.parametrize("rho", [0.0, 0.1])
def test_turns_report_what_was_expected_of_them(tiny, batches, rho):
    setting = setup.prepare(tiny("training.epochs=2"))
    layout = setting.initial.layout
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    start = setting.initial.with_pattern(layout.bitmap_of(se.erk_masks(shapes, 0.4, seed=2)))
    local = Local.of(setting.training, 0, rho=rho)
    turn = Worker(setting).turn(1, 0, start)
    report = turn.train(local)
    if batches:
        report = report.plus(turn.grow(0.3, batches).report)
    assert report.flop == setting.costs.turn(1, start.bitmap, local, grow_batches=batches) > 0
