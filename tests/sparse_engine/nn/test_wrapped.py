"""Sparse networks through pickle, copy and state dicts: the same network comes out, and it trains."""

import copy
import multiprocessing
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sparse_engine as se


def small(density=0.4, seed=1):
    torch.manual_seed(seed)
    return se.sparsify(se.models.by_name("small_cnn", num_classes=4, width=6), density=density, seed=seed)


@pytest.fixture
def batch():
    draw = torch.Generator().manual_seed(2)
    return torch.randn(5, 3, 16, 16, generator=draw), torch.randint(0, 4, (5,), generator=draw)


def trained(net, batch, steps=3):
    opt = se.SparseSGD(net, lr=0.05, momentum=0.9)
    for _ in range(steps):
        opt.zero_grad()
        F.cross_entropy(net(batch[0]), batch[1]).backward()
        opt.step()
    return net


def same(a, b):
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def by_torch(net, path):
    torch.save(net, path / "net.pt")
    return torch.load(path / "net.pt", weights_only=False)


def by_pickle(net, path):
    return pickle.loads(pickle.dumps(net))


@pytest.mark.parametrize("again", [by_torch, by_pickle, lambda net, path: copy.deepcopy(net)])
def test_a_saved_network_is_the_same_network_and_trains_on(again, batch, tmp_path):
    net = trained(small(), batch)
    with torch.no_grad():
        expected = net(batch[0])
    other = again(net, tmp_path)
    assert type(other) is type(net) and same(other, net)
    assert torch.equal(other(batch[0]), expected)
    assert [p.requires_grad for p in other.parameters()] == [p.requires_grad for p in net.parameters()]
    assert same(trained(other, batch), trained(net, batch))
    assert type(se.to_dense(other)) is type(se.to_dense(net)) is type(se.models.by_name("small_cnn"))


def test_a_single_layer_and_a_frozen_one_are_saved(tmp_path):
    layer = se.sparsify(nn.Linear(9, 5).requires_grad_(False), density=0.5)
    other = by_torch(layer, tmp_path)
    x = torch.randn(2, 9)
    assert torch.equal(other(x), layer(x)) and not other.weight.requires_grad
    assert other.pattern.shape == (5, 9)


def test_what_is_derived_from_the_pattern_is_not_saved(batch):
    net = small()
    before = len(pickle.dumps(net))
    trained(net, batch)
    net.zero_grad()
    assert len(pickle.dumps(net)) < 1.05 * before


class Own(nn.Module):
    """With a pickle protocol of its own."""

    def __init__(self, n):
        super().__init__()
        self.n, self.fc = n, nn.Linear(n, n)

    def forward(self, x):
        return self.fc(x)

    def __reduce__(self):
        return Own, (self.n,), self.__dict__


def test_a_network_with_a_pickle_protocol_of_its_own():
    net = se.sparsify(Own(6), density=0.5)
    other = by_pickle(net, None)
    assert type(other) is type(net) and torch.equal(other(torch.ones(1, 6)), net(torch.ones(1, 6)))


def test_a_traced_network_is_copied_and_saved(batch, tmp_path):
    net = se.sparsify(torch.fx.symbolic_trace(nn.Sequential(nn.Flatten(), nn.Linear(768, 4))), density=0.1)
    expected = net(batch[0])
    for other in (copy.deepcopy(net), copy.deepcopy(copy.deepcopy(net)), by_torch(net, tmp_path)):
        assert torch.equal(other(batch[0]), expected)
    torch.testing.assert_close(se.to_dense(net)(batch[0]), expected, rtol=1e-4, atol=1e-5)


def test_a_spawned_process_takes_a_sparse_network(batch):
    net = small().requires_grad_(False)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(net, (batch[0],))
    torch.testing.assert_close(found, net(batch[0]))


def test_a_dense_network_takes_a_sparse_state_dict_by_se_load(batch):
    net = trained(small(), batch)
    dense = se.models.by_name("small_cnn", num_classes=4, width=6)
    with pytest.raises(RuntimeError, match="bitmap"):
        dense.load_state_dict(net.state_dict())
    assert se.load(dense, net.state_dict()) is dense
    assert same(dense, se.to_dense(net))
    assert same(se.load(small(seed=5), net.state_dict()), net)


def test_a_sparse_network_takes_a_dense_state_dict_that_fits_its_pattern(batch):
    net = trained(small(), batch)
    other = copy.deepcopy(net)
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    other.load_state_dict(se.to_dense(net).state_dict())
    assert same(other, net)
    dense = se.models.by_name("small_cnn", num_classes=4, width=6)
    with pytest.raises(
        RuntimeError, match="would lose entries: load it into the dense network, then sparsify"
    ):
        other.load_state_dict(dense.state_dict())


def test_a_refused_state_dict_changes_nothing():
    net, state = small(), small(seed=4).state_dict()
    before = copy.deepcopy(net)
    del state[next(name for name in reversed(state) if name.endswith("bias"))]
    for target in (net, se.to_dense(net)):
        with pytest.raises(ValueError, match="expected a state dict of this network"):
            se.load(target, state)
    assert same(net, before)
