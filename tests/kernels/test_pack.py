"""sparsefl.kernels.pack: dense <-> packed is exact, on every variant."""

import pytest
import torch
from helpers import host, on, randn, random_bitmap, variants

from sparsefl.kernels import bitmap, use_threads
from sparsefl.kernels.pack import pack, unpack


@pytest.mark.parametrize("variant", variants("pack"))
@pytest.mark.parametrize("sizes", [(0,), (1,), (63, 65), (64,), (1023, 0, 1025), (300, 1, 4, 700)])
@pytest.mark.parametrize("density", [0.0, 0.2, 0.9, 1.0])
def test_round_trip(variant, sizes, density):
    pattern = random_bitmap(sizes, density)
    mask = bitmap.to_mask(pattern)
    dense = randn(sum(sizes))
    dense[~mask] = torch.nan
    with on(variant) as put:
        placed = put(pattern)
        values = pack(put(dense), placed)
        values, back = host((values, unpack(values, placed)))
    assert torch.equal(values, dense[mask])
    assert torch.equal(back[mask], values) and not back[~mask].any()


def test_threads_and_out():
    pattern = random_bitmap([5000, 70, 3001, 64], 0.5)
    dense, out = randn(pattern.segments.numel), torch.empty(pattern.nnz)
    with use_threads(3):
        assert pack(dense, pattern, out) is out
    assert torch.equal(out, dense[bitmap.to_mask(pattern)])


def test_bad_input_is_refused():
    pattern = random_bitmap([100], 0.5)
    with pytest.raises(ValueError, match="expected 100 dense entries"):
        pack(torch.ones(99), pattern)
    with pytest.raises(ValueError, match="packed values in the bitmap"):
        unpack(torch.ones(100), pattern)
    with pytest.raises(ValueError, match="expected 100 entries"):
        unpack(torch.ones(pattern.nnz), pattern, out=torch.ones(99))
    with pytest.raises(ValueError, match="one dtype"):
        unpack(torch.ones(pattern.nnz), pattern, out=torch.ones(100, dtype=torch.float64))
