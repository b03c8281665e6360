"""Networks that cannot take the data, or do not fit, are refused before a run begins."""

import numpy as np
import pytest
import torch

from fl import config
from fl.config import ConfigError
from fl.data import from_arrays, load, memory
from fl.data.sets import resized
from fl.run import setup
from fl.train import network


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("lenet5", 8, "expected images of at least 12 x 12 for lenet5, got 8 x 8 of digits"),
        ("lenet5", 11, "of at least 12 x 12 for lenet5, got 11 x 11"),
        ("alexnet", 8, "of at least 15 x 15 for alexnet, got 8 x 8"),
        ("vgg11", 8, "from 32 x 32 to 63 x 63 for vgg11, got 8 x 8"),
        ("vgg11", 64, "from 32 x 32 to 63 x 63 for vgg11, got 64 x 64"),
        ("small_cnn", 3, "of at least 4 x 4 for small_cnn, got 3 x 3"),
    ],
)
def test_images_that_a_network_cannot_take_are_refused(name, size, message):
    with pytest.raises(ConfigError, match=f"model.name: .*{message}"):
        network.build(config.Model(name=name), resized(load("digits"), size), 0)


@pytest.mark.parametrize(("name", "size"), [("lenet5", 12), ("small_cnn", 4), ("mlp", 1), ("resnet18", 1)])
def test_the_smallest_that_are_allowed_work(name, size):
    data = resized(load("digits"), size)
    net = network.build(config.Model(name=name), data, 0)
    assert net(torch.zeros(2, *data.shape)).shape == (2, 10)


def test_vectors_are_for_the_mlp():
    x = np.random.default_rng(0).normal(size=(60, 12))
    data = from_arrays(x, np.arange(60) % 3, name="vectors")
    assert network.build(config.Model(name="mlp"), data, 0)(torch.zeros(2, 12)).shape == (2, 3)
    with pytest.raises(
        ConfigError, match=r"samples of shape \(12,\) of vectors, got lenet5, which cannot take"
    ):
        network.build(config.Model(name="lenet5"), data, 0)


def test_a_network_that_does_not_fit_into_memory_is_refused():
    with pytest.raises(
        ConfigError, match="model: expected small_cnn with .* weights, four times, to fit into"
    ):
        network.build(config.Model(width=1_000_000), load("digits"), 0)
    with pytest.raises(ConfigError, match="model: expected a network that can be made, got small_cnn with"):
        network.build(config.Model(width=2**31 - 1), load("digits"), 0)


def test_memory_that_nobody_knows_refuses_nothing(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: None)
    memory.check(10**30, "anything")


def test_outputs_are_one_per_class(monkeypatch):
    monkeypatch.setattr(network.se.models, "by_name", lambda name, **_: torch.nn.Flatten())
    with pytest.raises(
        ConfigError, match=r"a network with 10 outputs per sample, got \(1, 64\) of small_cnn"
    ):
        network.build(config.Model(), load("digits"), 0)


def test_the_weights_are_those_of_the_seed_and_torchs_random_state_stays():
    before, data = torch.get_rng_state(), load("digits")
    one, same, other = (network.build(config.Model(), data, seed) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(one.conv1.weight, same.conv1.weight)
    assert not torch.equal(one.conv1.weight, other.conv1.weight)


def prepared(*changes):
    return setup.prepare(config.load("demo", ["model.name=resnet18", *changes]))


def test_a_last_batch_of_one_sample_is_refused_where_batchnorm_would_see_one_value():
    """ResNet's last layers see 8 x 8 images as 1 x 1: one sample has no deviation."""
    alone = ["data.train_per_client=33", "training.batch_size=32"]
    with pytest.raises(
        ConfigError, match="training.batch_size: .* got batches of 32 with 33 samples per client"
    ):
        prepared("model.norm=batch", *alone)
    prepared("model.norm=group", *alone)
    prepared("model.norm=batch", "data.train_per_client=34", "training.batch_size=32")
    prepared("model.norm=batch", "data.size=32", *alone)  # 4 x 4 values per channel
