"""The networks: algorithms.md's parameter counts and names, shapes, the seed decides, they train."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sparse_engine as se
from sparse_engine.nn.bridge import prunable


def size(tensors):
    return sum(x.numel() for x in tensors)


@pytest.mark.parametrize(
    ("net", "parameters", "weights"),
    [
        (lambda: se.models.resnet18(10), 11_173_962, 10_992_320),
        (lambda: se.models.resnet18(10, norm="batch"), 11_173_962, 10_992_320),
        (lambda: se.models.vgg11(100), 9_277_284, 9_268_928),
        (lambda: se.models.alexnet(7), 23_259_975, 23_250_624),
        (lambda: se.models.lenet5(), 61_706, 61_470),
    ],
)
def test_parameter_counts(net, parameters, weights):
    net = net()
    assert size(net.parameters()) == parameters
    assert size(prunable(net).values()) == weights


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_resnet18_has_the_authors_weights(norm):
    with np.load(Path(__file__).parents[1] / "data" / "erk.npz") as erk:
        names = erk["erk_resnet18_names"].tolist()
        shapes = [tuple(n for n in row if n) for row in erk["erk_resnet18_shapes"].tolist()]
    net = se.models.resnet18(norm=norm)
    assert {name: tuple(w.shape) for name, w in prunable(net).items()} == dict(
        zip(names, shapes, strict=True)
    )
    exempt = [name for name in prunable(net, exempt=()) if name not in names]
    assert exempt == [f"layer{i}.0.shortcut.0.weight" for i in (2, 3, 4)]


def test_names():
    resnet = dict(se.models.resnet18().named_parameters())
    assert {"bn1.weight", "layer1.0.bn1.weight", "layer4.1.bn2.bias", "linear.bias"} < set(resnet)
    assert not any("conv" in name and name.endswith("bias") for name in resnet)
    assert list(prunable(se.models.vgg11()))[::8] == ["features.0.weight", "classifier.weight"]
    assert list(prunable(se.models.alexnet()))[5:] == [f"classifier.{i}.weight" for i in (1, 4, 6)]
    assert [*prunable(se.models.small_cnn())] == [
        f"{x}.weight" for x in ("conv1", "conv2", "conv3", "linear")
    ]
    assert [*prunable(se.models.mlp(hidden=(5, 4)))] == [
        "layers.0.weight",
        "layers.2.weight",
        "linear.weight",
    ]


SAMPLES = [
    ("resnet18", {}, (3, 32, 32), 10),
    ("resnet18", {"norm": "batch", "in_channels": 1, "num_classes": 4}, (1, 8, 8), 4),
    ("vgg11", {}, (3, 32, 32), 100),
    ("vgg11", {"norm": "batch", "num_classes": 3}, (3, 32, 32), 3),
    ("vgg11", {"norm": None, "in_channels": 1, "num_classes": 3}, (1, 32, 32), 3),
    ("alexnet", {}, (3, 64, 64), 7),
    ("alexnet", {"num_classes": 10, "in_channels": 1}, (1, 16, 16), 10),
    ("lenet5", {}, (1, 28, 28), 10),
    ("lenet5", {"num_classes": 4, "in_channels": 3}, (3, 32, 32), 4),
    ("small_cnn", {}, (3, 32, 32), 10),
    ("small_cnn", {"num_classes": 4, "in_channels": 1, "width": 5}, (1, 8, 8), 4),
    ("mlp", {}, (64,), 10),
    ("mlp", {"in_features": 64, "hidden": (16, 8), "num_classes": 2}, (1, 8, 8), 2),
    ("mlp", {"in_features": 6, "hidden": ()}, (6,), 10),
]


@pytest.mark.parametrize(("name", "kwargs", "sample", "classes"), SAMPLES)
def test_logits_and_gradients(name, kwargs, sample, classes):
    net = se.models.by_name(name, **kwargs)
    logits = net(torch.randn(2, *sample))
    assert logits.shape == (2, classes)
    F.cross_entropy(logits, torch.tensor([0, 1])).backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in net.parameters())


@pytest.mark.parametrize("name", ["resnet18", "vgg11", "lenet5", "small_cnn", "mlp"])
def test_the_seed_decides(name):
    nets = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        nets.append(se.models.by_name(name).state_dict())
    assert all(torch.equal(x, y) for x, y in zip(nets[0].values(), nets[1].values(), strict=True))
    assert not all(torch.equal(x, y) for x, y in zip(nets[0].values(), nets[2].values(), strict=True))


def test_resnet18_by_other_means():
    """The same function written out, with an average pool of 4 as algorithms.md has it."""
    net = se.models.resnet18().eval()
    x = torch.randn(2, 3, 32, 32)
    y = net.bn1(net.conv1(x)).relu()
    for layer in (net.layer1, net.layer2, net.layer3, net.layer4):
        for block in layer:
            z = block.bn2(block.conv2(block.bn1(block.conv1(y)).relu()))
            y = (z + (block.shortcut[1](block.shortcut[0](y)) if len(block.shortcut) else y)).relu()
    expected = net.linear(F.avg_pool2d(y, 4).flatten(1))
    torch.testing.assert_close(net(x), expected)


def test_lenet5_and_small_cnn_leave_their_own_image_size_alone():
    for net, sample in ((se.models.lenet5(), (1, 28, 28)), (se.models.small_cnn(), (3, 8, 8))):
        x = torch.randn(2, *sample)
        plain = copy.deepcopy(net)
        plain.pool = nn.Identity()
        assert torch.equal(net(x), plain(x))


def test_compress_and_load():
    net = se.models.small_cnn(in_channels=1, width=4)
    state = se.compress(net, se.erk_masks({n: w.shape for n, w in prunable(net).items()}, 0.5, seed=0))
    other = se.load(se.models.small_cnn(in_channels=1, width=4), state)
    for name, mask in se.masks(state).items():
        w = dict(net.named_parameters())[name]
        assert torch.equal(dict(other.named_parameters())[name], torch.where(mask, w, 0))


def test_a_small_cnn_learns():
    torch.manual_seed(0)
    net = se.models.small_cnn(num_classes=2, in_channels=1, width=4)
    labels = torch.arange(32) % 2
    images = torch.randn(32, 1, 8, 8) + labels.view(-1, 1, 1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(100):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
    assert (net(images).argmax(1) == labels).float().mean() > 0.9


def test_refusals():
    with pytest.raises(ValueError, match=r"out of \['alexnet', 'lenet5', 'mlp', .*'vgg11'\], got 'resnet50'"):
        se.models.by_name("resnet50")
    for make in (se.models.resnet18, se.models.vgg11):
        with pytest.raises(ValueError, match="expected norm 'group' or 'batch', got 'layer'"):
            make(norm="layer")
    with pytest.raises(ValueError, match="got None"):
        se.models.resnet18(norm=None)
    with pytest.raises(TypeError, match="width"):
        se.models.by_name("lenet5", width=3)


def test_the_functions_and_their_files_live_together():
    import sparse_engine.models.alexnet
    import sparse_engine.models.mlp  # noqa: F401

    assert callable(se.models.alexnet) and callable(se.models.mlp)
    assert set(se.models.__all__) - {"by_name"} == set(se.models._NETWORKS)
