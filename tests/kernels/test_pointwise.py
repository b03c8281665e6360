"""sparsefl.kernels.pointwise: at most one rounding, so it equals torch bit for bit, on every variant."""

import pytest
import torch
from helpers import randn, variants

from sparsefl.kernels import pointwise, use_backend, use_threads

VARIANTS = variants("pointwise")
SIZES = [0, 1, 7, 8, 9, 18, 31, 32, 33, 1000, 2**15 - 1, 2**15 + 1, 70001]
OPERATIONS = {
    pointwise.add: lambda a, b: a + b,
    pointwise.add_relu: lambda a, b: (a + b).relu(),
    pointwise.relu_backward: lambda a, b: torch.ops.aten.threshold_backward(b, a, 0),
    pointwise.relu: lambda a: a.relu(),
}


def given(operation, n):
    tensors = randn(n, 1), randn(n, 2)
    tensors[0][::3] = 0
    return tensors[:1] if operation is pointwise.relu else tensors


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("n", SIZES)
def test_equals_torch(variant, operation, n):
    tensors = given(operation, n)
    expected = OPERATIONS[operation](*tensors)
    with use_backend(variant), use_threads(2):
        assert torch.equal(operation(*tensors), expected)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("n", SIZES)
def test_out_may_be_an_argument(variant, operation, n):
    expected = OPERATIONS[operation](*given(operation, n))
    for which in range(len(given(operation, n))):
        tensors = given(operation, n)
        with use_backend(variant), use_threads(2):
            assert operation(*tensors, out=tensors[which]) is tensors[which]
        assert torch.equal(tensors[which], expected)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda f: f.__name__)
def test_a_nan_stays_one(variant, operation):
    tensors = [x.view(2, 3, 4, 5) for x in given(operation, 120)]
    tensors[0][1, 2, 3, 4] = tensors[-1][0, 0, 0, 0] = torch.nan
    expected = OPERATIONS[operation](*tensors)
    with use_backend(variant):
        torch.testing.assert_close(operation(*tensors), expected, equal_nan=True, rtol=0, atol=0)


def test_bad_input_is_refused():
    a = torch.randn(4, 6)
    with pytest.raises(ValueError, match="one shape"):
        pointwise.add_relu(a, a[1:])
    with pytest.raises(ValueError, match="one shape"):
        pointwise.relu(a, out=a[1:])
    with pytest.raises(ValueError, match="contiguous"):
        pointwise.add(a, torch.randn(6, 4).T)
    with pytest.raises(ValueError, match="one dtype"):
        pointwise.relu_backward(a, a.double())
    with pytest.raises(ValueError, match="torch.float32 or torch.float64"):
        pointwise.relu(a.long())
