"""Sparse layers and networks against dense PyTorch on masked weights."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sparse_engine as se
from sparse_engine.nn import SparseConv2d, SparseLinear, functional
from sparse_engine.nn.batch_last import is_batch_last
from sparse_engine.nn.optim import SparseSGD
from sparsefl.kernels import bitmap, sparse_conv, use_backend
from sparsefl.kernels.sparse_conv import Conv


class Small(nn.Module):
    """What users write: modules and functions mixed, a shortcut, a flatten."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.GroupNorm(4, 16)
        self.second = nn.Conv2d(16, 24, 3, stride=2, padding=1, bias=False)
        self.shortcut = nn.Conv2d(16, 24, 1, stride=2)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.head = nn.Linear(24 * 4, 10)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        x = F.relu(self.second(x) + self.shortcut(x))
        x = self.pool(F.max_pool2d(x, 2))
        return self.head(x.flatten(1))


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Small()


@pytest.fixture
def batch():
    """No activation so near 0 that rounding decides on which side of a ReLU it falls (seed 1 has one)."""
    draw = torch.Generator().manual_seed(2)
    return torch.randn(20, 3, 12, 12, generator=draw), torch.randint(0, 10, (20,), generator=draw)


def gradients(net, images, labels):
    net.zero_grad()
    F.cross_entropy(net(images), labels).backward()
    return {name: p.grad for name, p in net.named_parameters()}


def test_outputs_and_gradients_are_those_of_the_masked_dense_network(net, batch):
    sparse = se.sparsify(net, density=0.4, seed=1)
    dense = se.to_dense(sparse)
    assert type(dense) is Small and type(dense.first) is nn.Conv2d
    torch.testing.assert_close(sparse(batch[0]), dense(batch[0]), rtol=1e-4, atol=1e-5)
    ours, theirs = gradients(sparse, *batch), gradients(dense, *batch)
    masks = se.masks(sparse)
    assert list(ours) == list(theirs)
    for name, expected in theirs.items():
        expected = expected[masks[name]] if name in masks else expected
        error = (ours[name] - expected).norm() / expected.norm()
        assert error < 1e-4, name


def test_weights_outside_the_mask_are_dropped_and_names_stay(net):
    sparse = se.sparsify(net, density=0.3, seed=2)
    masks, dense = se.masks(sparse), se.to_dense(sparse)
    assert list(masks) == ["first.weight", "second.weight", "head.weight"]
    for name, mask in masks.items():
        weight = dense.get_parameter(name)
        assert torch.equal(weight, net.get_parameter(name) * mask)
    assert isinstance(sparse.first, SparseConv2d)
    assert type(net.first) is nn.Conv2d  # the given one is untouched


def test_images_stay_batch_last_between_layers(net, batch):
    sparse = se.sparsify(net, density=0.5)
    seen = []
    for layer in (sparse.second, sparse.shortcut):
        layer.register_forward_pre_hook(lambda module, args: seen.append(is_batch_last(args[0])))
    sparse(batch[0])
    assert seen == [True, True]


UNPRUNED = {
    "group norm": nn.GroupNorm(4, 8),
    "group norm, no affine": nn.GroupNorm(2, 8, affine=False),
    "batch norm": nn.BatchNorm2d(8),
    "batch norm, no statistics": nn.BatchNorm2d(8, track_running_stats=False),
    "max pool": nn.MaxPool2d(3, stride=2, padding=1),
    "max pool, ceil": nn.MaxPool2d(2, ceil_mode=True),
    "max pool, dilated": nn.MaxPool2d(2, dilation=2),
    "average pool": nn.AvgPool2d(2),
    "average pool, padded": nn.AvgPool2d(3, stride=2, padding=1),
    "average pool, padding not counted": nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False),
    "adaptive pool": nn.AdaptiveAvgPool2d((3, 2)),
    "adaptive pool, one side": nn.AdaptiveAvgPool2d((None, 2)),
    "dense convolution": nn.Conv2d(8, 5, 3, padding=1, stride=2),
    "dropout in eval": nn.Dropout(0.5).eval(),
    "relu in place": nn.ReLU(inplace=True),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", UNPRUNED)
def test_unpruned_layers_do_what_torch_does(name, training, batch):
    """Between two sparse layers, so that their input is batch-last; ours or torch's: the same result."""
    torch.manual_seed(0)
    middle = copy.deepcopy(UNPRUNED[name])
    net = nn.Sequential(nn.Conv2d(3, 8, 3), middle, nn.Flatten(), nn.LazyLinear(10))
    net(batch[0])
    net.train(training)
    if name.startswith("dropout"):
        middle.eval()
    names = {"0.weight", "3.weight"}
    exempt = [n for n, p in net.named_parameters() if p.dim() > 1 and n not in names]
    sparse = se.sparsify(net, density=0.6, exempt=exempt)
    dense = se.to_dense(sparse)
    torch.testing.assert_close(sparse(batch[0]), dense(batch[0]), rtol=1e-4, atol=1e-5)
    ours, theirs = gradients(sparse, *batch), gradients(dense, *batch)
    masks = {n: m for n, m in se.masks(sparse, exempt).items() if n in names}
    for n, expected in theirs.items():
        expected = expected[masks[n]] if n in masks else expected
        torch.testing.assert_close(ours[n], expected, rtol=1e-3, atol=1e-5)
    for ours_, theirs_ in zip(sparse[1].buffers(), dense[1].buffers(), strict=True):
        torch.testing.assert_close(ours_, theirs_)


@pytest.mark.parametrize("stored", [False, True])
def test_nothing_and_everything(net, batch, stored):
    sparse = se.sparsify(net, masks={n: torch.full_like(m, stored) for n, m in se.masks(net).items()})
    torch.testing.assert_close(sparse(batch[0]), se.to_dense(sparse)(batch[0]), rtol=1e-4, atol=1e-5)
    gradients(sparse, *batch)


def test_compress_and_load(net, batch):
    sparse, other = se.sparsify(net, density=0.4, seed=1), se.sparsify(net, density=0.2, seed=5)
    state = se.compress(sparse)
    assert state.layout == se.compress(se.to_dense(sparse)).layout
    assert se.load(other, state) is other
    assert torch.equal(other(batch[0]), sparse(batch[0]))
    assert torch.equal(se.compress(other).values, state.values)
    dense = se.load(Small(), state)
    torch.testing.assert_close(dense(batch[0]), sparse(batch[0]), rtol=1e-4, atol=1e-5)


def test_state_dict_and_deepcopy(net, batch, tmp_path):
    sparse = se.sparsify(net, density=0.4, seed=1)
    expected = sparse(batch[0])
    torch.save(sparse.state_dict(), tmp_path / "net.pt")
    other = se.sparsify(Small(), density=0.2, seed=9)
    other.load_state_dict(torch.load(tmp_path / "net.pt"))
    twin = copy.deepcopy(sparse)
    with torch.no_grad():
        sparse.first.weight.zero_()
    assert torch.equal(other(batch[0]), expected) and torch.equal(twin(batch[0]), expected)
    broken = other.state_dict()
    broken["first.weight"] = broken["first.weight"][:-1]
    with pytest.raises((ValueError, RuntimeError)):
        other.load_state_dict(broken)


def test_a_new_pattern_carries_values_over(net):
    layer = se.sparsify(net, density=0.4, seed=1).second
    before = layer.tensor().to_dense()
    mask = torch.rand(layer.pattern.shape, generator=torch.Generator().manual_seed(3)) < 0.5
    layer.set_pattern(se.Pattern.from_mask(mask))
    assert torch.equal(layer.tensor().to_dense(), before * mask)
    assert layer.weight.numel() == int(mask.sum())


def test_what_cannot_be_sparse_stays_torch_and_is_reported(batch):
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1, groups=3),
        nn.Conv2d(6, 8, 3, padding="same"),
        nn.Conv2d(8, 8, 3, stride=(1, 2)),
        nn.ConvTranspose2d(8, 4, 2),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(4, 4, 3),
    )
    with pytest.warns(UserWarning, match="covers 9.7% of the weights"):
        sparse = se.sparsify(net, density=0.5, distribution="uniform")
    lines = {line.name: line for line in se.report(sparse)}
    assert {name: line.kind for name, line in lines.items()} == dict.fromkeys("01234", "torch") | {
        "5": "sparse"
    }
    words = ["grouped", "same", "stride", "ConvTranspose2d", "reflect"]
    assert all(word in lines[str(i)].why for i, word in enumerate(words))
    images = batch[0][:, :, :9, :9]
    torch.testing.assert_close(sparse(images), se.to_dense(sparse)(images), rtol=1e-4, atol=1e-5)


def test_double_networks_stay_torch():
    net = nn.Sequential(nn.Conv2d(1, 2, 3)).double()
    with pytest.warns(UserWarning, match="covers 0.0% of the weights"):
        sparse = se.sparsify(net, density=0.5)
    x = torch.randn(2, 1, 5, 5, dtype=torch.float64)
    assert torch.equal(sparse(x), net(x)) and se.report(sparse)[0].why == "weight is torch.float64"


def test_a_single_layer_is_a_network():
    torch.manual_seed(0)
    sparse = se.sparsify(nn.Linear(30, 7), density=0.5)
    assert isinstance(sparse, SparseLinear)
    x = torch.randn(4, 5, 30)
    torch.testing.assert_close(sparse(x), se.to_dense(sparse)(x), rtol=1e-4, atol=1e-5)


def test_gradcheck_in_float64():
    mask = torch.rand(4 * 3 * 9, generator=torch.Generator().manual_seed(0)) < 0.5
    conv = Conv(bitmap.from_mask(mask), 4, 3, (3, 3), stride=2, padding=(1, 1))
    x = torch.randn(2, 3, 5, 5, dtype=torch.float64, requires_grad=True)
    values = torch.randn(conv.bitmap.nnz, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(4, dtype=torch.float64, requires_grad=True)
    with use_backend("reference"):
        assert torch.autograd.gradcheck(
            lambda *t: functional.conv2d(t[0], t[1], conv, t[2]), (x, values, bias)
        )


def test_full_convolutions_are_planned_once_and_dropped_in_time(net, batch, monkeypatch):
    made = []
    monkeypatch.setattr(functional, "Conv", lambda *how: made.append(how) or Conv(*how))
    functional.full_conv.cache_clear()
    sparse = se.sparsify(net, density=0.3, seed=1)
    for _ in range(3):
        with se.dense_gradients(sparse, lambda *_: None):
            gradients(sparse, *batch)
    assert len(made) == len(set(how[1:] for how in made)) == functional.full_conv.cache_info().currsize
    for out in range(1, 200):
        functional.full_conv((out, 1, 1, 1), 1, (0, 0), (1, 1), torch.device("cpu"))
    assert functional.full_conv.cache_info().currsize == 128
    functional.full_conv.cache_clear()


def test_full_convolutions_are_kept_per_device():
    how = (2, 1, 1, 1), 1, (0, 0), (1, 1)
    first = functional.full_conv(*how, torch.device("cpu"))
    assert functional.full_conv(*how, torch.device("cpu")) is first
    assert functional.full_conv(*how, torch.device("cpu", 0)) is not first


def test_the_weight_gradient_of_a_full_convolution_makes_no_index_of_its_weights():
    conv = functional.full_conv((5, 4, 3, 3), 2, (1, 1), (1, 1), torch.device("cpu"))
    sparse_conv.weight_gradient(conv, torch.randn(4, 6, 6, 2), torch.randn(5, 3, 3, 2), kernel="dense")
    sweeps = conv.plans.parts()
    assert sweeps and not any("index" in vars(sweep) for sweep in sweeps)


def test_dense_gradients_come_one_layer_at_a_time(net, batch):
    sparse = se.sparsify(net, density=0.3, seed=1)
    found = {}
    with se.dense_gradients(sparse, found.__setitem__):
        gradients(sparse, *batch)
    assert list(found) == ["head.weight", "second.weight", "first.weight"]  # as backward meets them
    expected = gradients(se.to_dense(sparse), *batch)
    for name, gradient in found.items():
        assert (gradient - expected[name]).norm() / expected[name].norm() < 1e-4
    found.clear()
    gradients(sparse, *batch)
    assert not found


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({}, "either a density or masks, got neither"),
        ({"density": 0.5, "masks": {}}, "got both"),
        ({"density": 1.5}, "density"),
        ({"density": 0.5, "distribution": "best"}, "out of \\['erk', 'uniform'\\], got 'best'"),
        ({"masks": {"nobody": torch.ones(1, dtype=torch.bool)}}, "nobody"),
        ({"masks": {"head.weight": torch.ones(3, dtype=torch.bool)}}, "head.weight"),
    ],
)
def test_bad_requests_are_refused(net, how, message):
    with pytest.raises(ValueError, match=message):
        se.sparsify(net, **how)


def test_training_on_real_images_follows_masked_dense_training():
    """200 steps on handwritten digits: the loss curves agree within 1 %."""
    data = np.load(Path(__file__).parents[3] / "fl" / "data" / "digits.npz")
    images = torch.from_numpy(data["x"].astype(np.float32) / 16).unsqueeze(1)
    labels = torch.from_numpy(data["y"].astype(np.int64))
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 16, 10),
    )  # fmt: skip
    sparse = se.sparsify(net, density=0.3, seed=0)
    dense, masks = se.to_dense(sparse), se.masks(sparse)
    numbers = {"lr": 0.03, "weight_decay": 5e-4}
    ours, theirs = SparseSGD(sparse, **numbers), torch.optim.SGD(dense.parameters(), **numbers)
    order = torch.Generator().manual_seed(0)
    curves = {"ours": [], "theirs": []}
    for _ in range(200):
        pick = torch.randint(0, len(images), (32,), generator=order)
        for who, model, optimizer in (("ours", sparse, ours), ("theirs", dense, theirs)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[pick]), labels[pick])
            loss.backward()
            if who == "theirs":
                for name, mask in masks.items():
                    model.get_parameter(name).grad.mul_(mask)
            optimizer.step()
            curves[who].append(loss.item())
    mean = {who: np.convolve(curve, np.ones(20) / 20, "valid") for who, curve in curves.items()}
    assert mean["ours"][-1] < 0.3 * mean["ours"][0]  # it learns
    assert np.abs(mean["ours"] / mean["theirs"] - 1).max() < 0.01
