"""sparsefl.kernels.drift against dense float64 norms, on every variant."""

import pytest
import torch
from helpers import assert_close, on, randn, random_bitmap, variants

from sparsefl.kernels import bitmap, use_threads
from sparsefl.kernels.drift import drift
from sparsefl.kernels.layout import Packed


def model(sizes, density, seed):
    support = random_bitmap(sizes, density, seed)
    return Packed(support, randn(support.nnz, seed + 1))


def dense(packed):
    out = torch.zeros(packed.bitmap.segments.numel, dtype=torch.float64)
    out[bitmap.to_mask(packed.bitmap)] = packed.values.double()
    return out


@pytest.mark.parametrize("variant", variants("drift"))
@pytest.mark.parametrize("sizes", [(1,), (64, 0, 65), (1023, 1, 2000)])
@pytest.mark.parametrize("density", [(0.0, 0.5), (0.3, 0.6), (1.0, 1.0), (1.0, 0.1)])
def test_is_the_norm_of_the_difference(variant, sizes, density):
    a, b = model(sizes, density[0], 1), model(sizes, density[1], 2)
    wanted = torch.stack([part.norm() for part in (dense(a) - dense(b)).split(sizes)])
    with on(variant) as put:
        a, b = put(a), put(b)
        assert_close(drift(a, b).float(), wanted, terms=64)
        assert drift(a, a).tolist() == [0.0] * len(sizes)


@pytest.mark.skipif(torch.cuda.is_available(), reason="reads what was compiled for the virtual card")
def test_the_sum_of_squares_is_not_fused():
    """Where it is (triton 3.9 does so), lanes that add the same two numbers get different last bits."""
    from virtual_card import compiled

    texts = [binary.ptx for name, binary in compiled.binaries().items() if "_drift_kernel" in name]
    assert len(texts) == 1 and "fma." not in texts[0]


def test_threads_do_not_change_a_bit():
    a, b = model([100_000, 50_001], 0.5, 1), model([100_000, 50_001], 0.4, 2)
    results = []
    for threads in (1, 2):
        with use_threads(threads):
            results.append(drift(a, b))
    assert torch.equal(*results)


def test_bad_input_is_refused():
    a = model([100], 0.5, 1)
    with pytest.raises(ValueError, match="models of one shape"):
        drift(a, model([99], 0.5, 1))
    with pytest.raises(ValueError, match="values of b"):
        drift(a, Packed(a.bitmap, a.values[1:]))
    with pytest.raises(ValueError, match="one dtype"):
        drift(a, Packed(a.bitmap, a.values.double()))
