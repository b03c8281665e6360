"""Transposes around the side of a square, on every variant."""

import pytest
import torch
from helpers import variants
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefl.kernels import use_backend, use_threads
from sparsefl.kernels.transpose import transpose

SIZES = (0, 1, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 64)


@pytest.mark.parametrize("variant", variants("transpose"))
@pytest.mark.parametrize("rows", SIZES)
def test_every_entry_is_where_it_belongs(variant, rows):
    for columns in SIZES:
        x = torch.arange(rows * columns, dtype=torch.float32).view(rows, columns)
        with use_backend(variant):
            y = transpose(x)
        assert y.is_contiguous() and torch.equal(y, x.t())


@given(st.integers(1, 100), st.integers(1, 100), st.integers(1, 3))
@settings(max_examples=50, deadline=None)
def test_twice_is_nothing(rows, columns, threads):
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows))
    with use_threads(threads):
        assert torch.equal(transpose(transpose(x)), x)


def test_what_is_no_matrix_is_refused():
    with pytest.raises(ValueError, match="expected a matrix"):
        transpose(torch.zeros(3))
    with pytest.raises(ValueError, match="contiguous"):
        transpose(torch.zeros(3, 4).t())
