"""sparsefl.kernels.add_relu: one rounding, so it equals torch bit for bit, on every variant."""

import pytest
import torch
from helpers import randn, variants

from sparsefl.kernels import use_backend, use_threads
from sparsefl.kernels.add_relu import add_relu, add_relu_

VARIANTS = variants("add_relu")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 31, 33, 1000, 2**15 - 1, 2**15 + 1, 70001])
def test_equals_torch(variant, n):
    a, b = randn(n, 1), randn(n, 2)
    expected = (a + b).relu()
    with use_backend(variant), use_threads(2):
        assert torch.equal(add_relu(a, b), expected)
        add_relu_(a, b)
        assert torch.equal(a, expected)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_nan_stays_one(variant):
    a, b = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5)
    a[1, 2, 3, 4] = b[0, 0, 0, 0] = torch.nan
    with use_backend(variant):
        torch.testing.assert_close(add_relu(a, b), (a + b).relu(), equal_nan=True, rtol=0, atol=0)


def test_bad_input_is_refused():
    a = torch.randn(4, 6)
    with pytest.raises(ValueError, match="one shape"):
        add_relu(a, a[1:])
    with pytest.raises(ValueError, match="contiguous"):
        add_relu(a, torch.randn(6, 4).T)
    with pytest.raises(ValueError, match="one dtype"):
        add_relu_(a, a.double())
    with pytest.raises(ValueError, match="torch.float32 or torch.float64"):
        add_relu_(a.long(), a.long())
