"""C: what arrives, and how many bytes it took."""

import pytest
import torch
from helpers import randn

import sparse_engine as se
from fl.algorithms.compression import Compression, compress, largest
from fl.config import Messages
from fl.errors import Diverged
from sparse_engine.model.model import Entry
from sparse_engine.wire import quantised

LAYOUT = se.Layout(("a", "b"), ((3, 40), (10, 8)), (Entry("c", (7,), torch.float32),))
FULL = LAYOUT.bitmap_of({"a": torch.ones(3, 40).bool(), "b": torch.ones(10, 8).bool()})


def model(values=None):
    empty = torch.empty(0, dtype=torch.int64)
    return se.Model(LAYOUT, FULL, randn(200) if values is None else values, randn(7, seed=1), empty)


def sent(x, messages=None, **how):
    noise = torch.Generator().manual_seed(0)
    return compress(x, Compression(**how), messages or Messages(), noise, 3, 5)


def test_everything():
    x = model()
    arrived, sizes = sent(x, kind="identity")
    assert torch.equal(arrived.values, x.values) and torch.equal(arrived.rest, x.rest)
    assert sizes == (len(se.wire.encode(x, sender=3, round=5)), 4 * 207, 4 * 207)


@pytest.mark.parametrize("keep", [0.001, 0.25, 1.0])
def test_the_largest(keep):
    x = model()
    count = max(1, round(keep * 200))
    order = sorted(range(200), key=lambda i: -abs(x.values[i].item()))[:count]
    wanted = torch.zeros(200)
    wanted[order] = x.values[order]
    arrived, (real, paper, dense) = sent(x, kind="top_k", keep=keep)
    assert torch.equal(arrived.values, wanted) and torch.equal(arrived.rest, x.rest)
    assert arrived.bitmap.nnz == 200
    assert (paper, dense) == (4 * (count + 7), 4 * 207)
    assert real == len(se.wire.encode(largest(x, keep), sender=3, round=5))
    lost = (x.values - arrived.values).square().sum() / x.values.square().sum()
    assert lost <= 1 - count / 200  # a contraction


def test_sixteen_bits_of_the_largest():
    arrived, sizes = sent(model(), Messages(values="bf16"), kind="top_k")
    exact, sizes_exact = sent(model(), kind="top_k")
    assert sizes[0] < sizes_exact[0] and sizes[1:] == sizes_exact[1:]
    assert torch.equal(arrived.values, exact.values.bfloat16().float())


@pytest.mark.parametrize("bits", [2, 5, 8])
def test_a_few_bits(bits):
    x = model()
    arrived, (real, paper, dense) = sent(x, kind="gsgd", bits=bits)
    blob = quantised.encode(x, bits, torch.Generator().manual_seed(0))
    wanted = quantised.decode(blob, like=x)
    assert torch.allclose(arrived.values * quantised.damping(bits), wanted.values)
    assert torch.allclose(arrived.rest * quantised.damping(bits), wanted.rest)
    assert (real, paper, dense) == (len(blob), -(-207 * bits // 8), 4 * 207)


@pytest.mark.parametrize("kind", ["gsgd", "top_k", "identity"])
def test_what_is_not_finite_is_said(kind):
    with pytest.raises(Diverged, match="client 3 in round 5 .*finite"):
        sent(model(torch.full((200,), torch.nan)), kind=kind)
