"""sparsefl.kernels.bias_gradient against a sum in float64, on every variant."""

import pytest
import torch
from helpers import assert_close, randn, variants

from sparsefl.kernels import use_backend, use_threads
from sparsefl.kernels.bias_gradient import bias_gradient

VARIANTS = variants("bias_gradient")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("batch", [1, 3, 8, 18, 32, 33])
@pytest.mark.parametrize("shape", [(1,), (6, 1, 1), (5, 7, 3), (3, 40, 41), (300,)])
def test_is_the_sum(variant, batch, shape):
    dy = randn(torch.Size(shape).numel() * batch).view(*shape, batch)
    exact = dy.double().flatten(1).sum(1)
    with use_backend(variant), use_threads(2):
        assert_close(bias_gradient(dy), exact, terms=4, scale=dy[0].abs().sum().item() / 16)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_long_sum_keeps_its_digits(variant):
    dy = torch.full((2, 2**22 + 5), 0.1)
    with use_backend(variant):
        assert_close(bias_gradient(dy), dy.double().sum(1), terms=8)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_nan_shows_in_its_channel_alone(variant):
    dy = torch.ones(3, 5, 7)
    dy[1, 4, 6] = torch.nan
    with use_backend(variant):
        assert bias_gradient(dy).isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("variant", VARIANTS)
def test_threads_do_not_change_a_bit(variant):
    dy, found = randn(70 * 3001).view(70, 3001), []
    for threads in (1, 2, 3):
        with use_backend(variant), use_threads(threads):
            found.append(bias_gradient(dy))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_to_sum(variant):
    with use_backend(variant):
        assert bias_gradient(torch.zeros(3, 4, 0)).tolist() == [0, 0, 0]
        assert bias_gradient(torch.zeros(0, 4)).shape == (0,)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"expected dy as \[channels, ..., batch\], got \(3,\)"):
        bias_gradient(torch.zeros(3))
    with pytest.raises(ValueError, match="contiguous"):
        bias_gradient(torch.zeros(3, 4).T)
    with pytest.raises(ValueError, match="torch.float32 or torch.float64"):
        bias_gradient(torch.zeros(3, 4).half())
