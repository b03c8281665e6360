"""sparsefl.kernels.pqi: closed forms, float64, and degenerate layers, on every variant."""

import math

import pytest
import torch
from helpers import on, randn, variants

from sparsefl.kernels import use_threads
from sparsefl.kernels.pqi import pqi


def offsets(*sizes):
    return torch.tensor([0, *sizes]).cumsum(0)


def exact(w, p, q):
    w = w.double().abs()
    return 1 - w.pow(p).mean() ** (1 / p) / w.pow(q).mean() ** (1 / q)


@pytest.mark.parametrize("variant", variants("pqi"))
@pytest.mark.parametrize("p,q", [(0.5, 1.0), (1.0, 2.0), (0.5, 2.0), (0.3, 1.7), (2.0, 40.0)])
def test_matches_float64(variant, p, q):
    sizes = (1, 5, 64, 1000, 2500)
    w = randn(sum(sizes)) * 0.01
    with on(variant) as put:
        found = pqi(put(w), offsets(*sizes), p=p, q=q)
    for i, layer in enumerate(w.split(sizes)):
        norm = torch.linalg.vector_norm(layer.double(), p)
        assert found.p_norm[i].item() == pytest.approx(norm.item(), rel=2e-6)
        assert found.pqi[i].item() == pytest.approx(exact(layer, p, q).item(), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("variant", variants("pqi"))
def test_closed_forms(variant):
    torch.manual_seed(0)
    n = 400_000
    uniform = (torch.arange(n) + 0.5) / n  # quantiles instead of draws: no noise
    gauss, laplace = torch.special.ndtri(uniform.double()).float(), -uniform.log()
    onehot = torch.eye(64)[3]
    layers = [gauss, laplace, uniform, torch.full((77,), 0.3), onehot]
    with on(variant) as put:
        index = pqi(put(torch.cat(layers)), offsets(*map(len, layers))).pqi.tolist()
    assert index == pytest.approx([0.1527, 0.2146, 1 / 9, 0, 1 - 1 / 64], abs=1e-4)


@pytest.mark.parametrize("variant", variants("pqi"))
def test_degenerate_layers(variant):
    w = torch.tensor([0.0, 0.0, 0.0, 5.0, 1.0, math.nan])
    with on(variant) as put:
        found = pqi(put(w), offsets(0, 3, 1, 0, 2))
        empty = pqi(put(torch.empty(0)), offsets(0, 0))
    assert found.pqi[:4].tolist() == pytest.approx([0, 0, 0, 0], abs=1e-7) and found.pqi[4].isnan()
    assert found.q_norm[:4].tolist() == [0, 0, 5, 0]
    assert empty.pqi.tolist() == [0, 0]


@pytest.mark.parametrize("variant", variants("pqi"))
@pytest.mark.parametrize("size", [1e-34, 1e-30, 1e-10, 1e10, 3e38])
def test_the_size_of_the_numbers_does_not_matter(variant, size):
    w = torch.tensor([1.0, 0.5, 0.25, 0.25, 0.125] * 8)
    with on(variant) as put:
        assert pqi(put(w * size), offsets(40)).pqi.item() == pytest.approx(exact(w, 0.5, 1).item(), abs=1e-6)


def test_threads_do_not_change_a_bit():
    w, at = randn(700_001), offsets(1, 300_000, 400_000)
    results = []
    for threads in (1, 2, 5):
        with use_threads(threads):
            results.append(pqi(w, at).pqi)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


@pytest.mark.parametrize("p,q", [(0.0, 1.0), (1.0, 1.0), (2.0, 1.0), (-1.0, 1.0), (0.5, math.inf)])
def test_powers_out_of_order_are_refused(p, q):
    with pytest.raises(ValueError, match="0 < p < q"):
        pqi(torch.ones(3), offsets(3), p=p, q=q)


@pytest.mark.parametrize("at", [offsets(2), offsets(4), torch.tensor([0, 2, 1, 3]), torch.tensor([1, 3])])
def test_offsets_that_do_not_fit_are_refused(at):
    with pytest.raises(ValueError, match="ascend from 0 to 3"):
        pqi(torch.ones(3), at)
