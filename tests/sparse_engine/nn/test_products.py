"""Linear layers on rows: the sparse kernels and torch's product give what the dense layer gives; grouped
convolutions between sparse layers, too."""

import copy

import pytest
import torch
from torch import nn

import sparse_engine as se
from sparse_engine.choice import products
from sparse_engine.nn.batch_last import is_batch_last
from sparse_engine.nn.functional import full_conv
from sparsefl.kernels import bitmap


def stepped(net, x, masks):
    """y, and the gradients of x and of every parameter by name, dense."""
    x = x.clone().requires_grad_()
    y = net(x)
    y.square().mean().backward()
    gradients = {name: p.grad for name, p in net.named_parameters()}
    for name, mask in masks.items():
        gradients[name] = torch.zeros(mask.shape).masked_scatter(mask, gradients[name])
    return y, x.grad, gradients


def assert_like_dense(net, x, density=0.4):
    sparse = se.sparsify(copy.deepcopy(net), density=density, seed=0)
    masks = se.masks(sparse)
    y, dx, dw = stepped(sparse, x, masks)
    wanted, wanted_dx, wanted_dw = stepped(se.to_dense(sparse), x, {})
    assert torch.allclose(y, wanted, rtol=1e-4, atol=1e-5)
    assert torch.allclose(dx, wanted_dx, rtol=1e-3, atol=1e-6)
    for name, g in dw.items():
        there = masks.get(name, torch.ones_like(g, dtype=torch.bool))
        assert torch.allclose(g, wanted_dw[name] * there, rtol=1e-3, atol=1e-5), name


@pytest.mark.parametrize("pays", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 24), (2, 24), (17, 24), (3, 5, 24), (2, 3, 4, 24), (0, 24)])
def test_both_products_are_the_dense_layers(monkeypatch, shape, bias, pays):
    monkeypatch.setattr(products, "dense_pays", lambda conv, rows: pays)
    if shape[0] == 0:
        assert se.sparsify(nn.Linear(24, 10, bias=bias), density=0.4)(torch.zeros(shape)).shape == (0, 10)
        return
    torch.manual_seed(0)
    assert_like_dense(nn.Linear(24, 10, bias=bias), torch.randn(shape))


@pytest.mark.parametrize("pays", [False, True])
def test_rows_in_any_order_of_memory(monkeypatch, pays):
    monkeypatch.setattr(products, "dense_pays", lambda conv, rows: pays)
    torch.manual_seed(0)
    net, x = nn.Linear(24, 10), torch.randn(7, 5, 24)
    for given in (x, x.transpose(0, 1), x.permute(2, 0, 1).contiguous().permute(1, 2, 0), x[:, ::2]):
        assert_like_dense(net, given)


def test_a_chain_of_token_layers(monkeypatch):
    torch.manual_seed(0)
    for pays in (False, True):
        monkeypatch.setattr(products, "dense_pays", lambda conv, rows, pays=pays: pays)
        net = nn.Sequential(
            nn.LayerNorm(24), nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 24), nn.LayerNorm(24)
        )
        assert_like_dense(net, torch.randn(3, 6, 24))


def test_the_rule_takes_torch_for_what_is_small_or_nearly_dense():
    conv = {d: se.sparsify(nn.Linear(128, 512), density=d).conv for d in (0.1, 0.5, 0.9)}
    assert [products.dense_pays(conv[d], 2048) for d in conv] == [False, False, True]
    assert [products.dense_pays(conv[d], 16) for d in conv] == [True, True, True]


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("into", "out", "groups"), [(8, 8, 8), (8, 16, 8), (8, 12, 4), (6, 6, 2)])
def test_grouped_convolutions_stay_batch_last(into, out, groups, stride):
    torch.manual_seed(0)
    grouped = nn.Conv2d(into, out, 3, stride, 1, groups=groups)
    net = nn.Sequential(nn.Conv2d(3, into, 1), grouped, nn.ReLU(), nn.Conv2d(out, 4, 1))
    assert_like_dense(net, torch.randn(5, 3, 9, 7))
    sparse, seen = se.sparsify(copy.deepcopy(net), density=0.5), []
    sparse[1].register_forward_hook(lambda module, given, y: seen.append(is_batch_last(y)))
    sparse(torch.randn(5, 3, 9, 7))
    assert seen == [True]


def test_blocks_of_a_grouped_weight_lie_in_its_own_order():
    conv = full_conv((6, 2, 1, 1), 1, (0, 0), (1, 1), torch.device("cpu"), 3)
    mask = torch.zeros(6, 6, dtype=torch.bool)
    for g in range(3):
        mask[2 * g : 2 * g + 2, 2 * g : 2 * g + 2] = True
    assert conv.in_channels == 6 and conv.bitmap.nnz == 12
    assert torch.equal(bitmap.to_mask(conv.bitmap).view(6, 6), mask)


def test_results_have_their_features_first_in_memory(monkeypatch):
    """Tokens, too: whether they come row after row or the same way."""
    monkeypatch.setattr(products, "dense_pays", lambda conv, rows: False)
    layer = se.sparsify(nn.Linear(24, 10), density=0.4)
    for x in (torch.randn(3, 5, 24), torch.randn(24, 3, 5).permute(1, 2, 0)):
        y = layer(x)
        assert y.shape == (3, 5, 10) and y.movedim(-1, 0).is_contiguous()
