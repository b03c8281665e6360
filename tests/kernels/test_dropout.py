"""sparsefl.kernels.dropout: the same bits on every variant, and random ones."""

import numpy as np
import pytest
import torch
from helpers import randn, variants
from scipy import stats

from sparsefl.kernels import use_backend, use_threads
from sparsefl.kernels.dropout import dropout
from sparsefl.kernels.dropout._reference import bits

VARIANTS = variants("dropout")
NATIVE = variants("dropout", without=["reference"])
SEEDS = [0, 1, 12345, 2**63 + 11, 2**64 - 1]


def kept(shape, p=0.5, **how):
    return dropout(torch.ones(shape), p, **how) > 0


@pytest.mark.parametrize("variant", NATIVE)
@pytest.mark.parametrize("batch", [1, 3, 4, 8, 15, 17, 18, 32, 33, 300])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.999])
@pytest.mark.parametrize("threads", [1, 3])
def test_every_variant_gives_the_bits_of_the_reference(variant, batch, p, threads):
    x = randn(6 * 5 * 7 * batch).view(6, 5, 7, batch)
    for seed, step in zip(SEEDS, (0, 1, 2, 2**40, 2**64 - 1), strict=True):
        with use_backend("reference"):
            expected = dropout(x, p, seed=seed, step=step)
        with use_backend(variant), use_threads(threads):
            assert torch.equal(dropout(x, p, seed=seed, step=step), expected)


@pytest.mark.parametrize("variant", VARIANTS)
def test_kept_entries_are_scaled_and_others_are_zero(variant):
    x = randn(40 * 33).view(40, 33)
    with use_backend(variant):
        y = dropout(x, 0.2, seed=7)
        assert torch.equal(dropout(x, 0.0, seed=7), x)
        inside = x.clone()
        assert dropout(inside, 0.2, seed=7, out=inside) is inside
    assert torch.equal(inside, y)
    assert torch.equal(y, torch.where(y == 0, 0.0, x * 1.25))
    assert 0.7 < (y != 0).float().mean() < 0.9


@pytest.mark.parametrize("variant", VARIANTS)
def test_neither_the_batch_nor_the_shape_decides(variant):
    with use_backend(variant):
        whole = kept((8, 3, 5, 33), seed=3, step=2)
        for batch in (1, 18, 32):
            assert torch.equal(kept((8, 3, 5, batch), seed=3, step=2), whole[..., :batch])
        assert torch.equal(kept((120, 33), seed=3, step=2), whole.view(120, 33))
        assert torch.equal(kept((2, 3, 5, 33), seed=3, step=2), whole[:2])


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_nan_is_not_dropped(variant):
    x = torch.full((20, 20), torch.nan)
    with use_backend(variant):
        assert dropout(x, 0.5, seed=1).isnan().all()


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("seed", SEEDS)
def test_as_many_are_dropped_as_asked_for(p, seed):
    dropped = ~kept((4000, 64), p, seed=seed)
    assert stats.binomtest(int(dropped.sum()), dropped.numel(), p).pvalue > 1e-4
    for axis in (0, 1):  # in every sample and every element
        n, counts = dropped.shape[axis], dropped.sum(axis).numpy()
        square = ((counts - n * p) ** 2).sum() / (n * p * (1 - p))
        assert 1e-4 < stats.chi2.cdf(square, len(counts)) < 1 - 1e-4


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_neighbours_are_independent(p):
    """Entries, samples, steps and seeds side by side, and far apart: their correlation is that of chance."""
    here = kept((2000, 64), p, seed=5, step=9).double()
    others = {
        f"seed {seed}": kept((2000, 64), p, seed=seed, step=9).double() for seed in (4, 6, 7, 5 + 2**32)
    }
    others |= {
        f"step {step}": kept((2000, 64), p, seed=5, step=step).double() for step in (8, 10, 11, 9 + 2**32)
    }
    pairs = {name: (here, other) for name, other in others.items()}
    for by in (1, 2, 4, 8, 16, 32):
        pairs[f"{by} samples on"] = here[:, by:], here[:, :-by]
        pairs[f"{by} elements on"] = here[by:], here[:-by]
        pairs[f"{by} of both on"] = here[by:, by:], here[:-by, :-by]
    for name, (a, b) in pairs.items():
        chance = ((a - (1 - p)) * (b - (1 - p))).sum() / (p * (1 - p) * a.numel() ** 0.5)
        assert abs(chance) < 4, name  # a normal deviate


def test_every_bit_is_random():
    found = bits(1, 2, 3000, 32).reshape(-1)
    for place in range(32):
        ones = int((found >> np.uint32(place) & 1).sum())
        assert stats.binomtest(ones, found.size).pvalue > 1e-4, place
    for place in (0, 8, 16, 24):
        assert stats.chisquare(np.bincount(found >> np.uint32(place) & 255, minlength=256)).pvalue > 1e-4
    assert len(np.unique(found)) > 0.9999 * found.size


def test_bad_input_is_refused():
    x = torch.zeros(4, 6)
    for p in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match=f"probability from 0 and below 1, got {p}"):
            dropout(x, p, seed=0)
    with pytest.raises(ValueError, match="a seed from 0"):
        dropout(x, 0.5, seed=-1)
    with pytest.raises(ValueError, match="a step from 0"):
        dropout(x, 0.5, seed=0, step=2**64)
    with pytest.raises(ValueError, match="a single number"):
        dropout(torch.tensor(1.0), 0.5, seed=0)
    with pytest.raises(ValueError, match="contiguous"):
        dropout(x.T, 0.5, seed=0)
    with pytest.raises(ValueError, match="one shape"):
        dropout(x, 0.5, seed=0, out=x[1:])
    with pytest.raises(ValueError, match="torch.float32 or torch.float64"):
        dropout(x.half(), 0.5, seed=0)
