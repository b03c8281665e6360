"""sparse_engine.nn.dropout: its gradient, its memory order, and the numbers that decide."""

import pytest
import torch
from torch import nn

from sparse_engine.nn.batch_last import is_batch_last, to_images, to_planes
from sparse_engine.nn.dropout import dropout
from sparsefl.kernels import use_backend

HOW = {"seed": 3, "step": 1}


@pytest.mark.parametrize("shape", [(5,), (6, 7), (4, 3, 5, 2), (33, 2, 3)])
def test_the_gradient_passes_where_the_value_did(shape):
    x = torch.ones(shape, requires_grad=True)
    y = dropout(x, 0.25, **HOW)
    y.backward(2 * torch.ones(shape))
    assert set(y.unique().tolist()) <= {0.0, float(torch.tensor(1 / 0.75))}
    assert torch.equal(x.grad, 2 * y)


def test_gradcheck():
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    with use_backend("reference"):
        assert torch.autograd.gradcheck(lambda x: dropout(x, 0.5, **HOW), x)


def test_memory_stays_in_its_order_and_does_not_decide():
    x = torch.randn(9, 3, 4, 5)
    turned = to_images(to_planes(x))
    a, b = dropout(x, 0.5, **HOW), dropout(turned, 0.5, **HOW)
    assert torch.equal(a, b) and a.is_contiguous() and is_batch_last(b)


def test_seed_and_step_decide():
    x = torch.ones(8, 50)
    first = dropout(x, 0.5, **HOW)
    assert torch.equal(first, dropout(x, 0.5, **HOW))
    assert not torch.equal(first, dropout(x, 0.5, seed=3, step=2))
    assert not torch.equal(first, dropout(x, 0.5, seed=4, step=1))


def test_as_a_layer_of_a_network():
    net = nn.Linear(6, 4)
    x = torch.randn(5, 6)
    dropout(net(x), 0.5, **HOW).sum().backward()
    kept = dropout(torch.ones(5, 4), 0.5, **HOW)
    torch.testing.assert_close(net.bias.grad, kept.sum(0))
    torch.testing.assert_close(net.weight.grad, kept.T @ x)
