"""Pattern and SparseTensor: masks in, index structures and packed values out."""

import pytest
import torch
from helpers import on, random_bitmap, variants
from hypothesis import given, settings
from hypothesis import strategies as st

import sparse_engine as se

MASK = torch.tensor([[True, False, True], [False, False, False], [False, True, True]])


def test_a_pattern_by_hand():
    pattern = se.Pattern.from_mask(MASK)
    assert (pattern.shape, pattern.nnz, pattern.numel, pattern.density) == ((3, 3), 4, 9, 4 / 9)
    assert torch.equal(pattern.mask(), MASK)
    assert pattern.csr.pointers.tolist() == [0, 2, 2, 4]
    assert pattern.csr.columns.tolist() == [0, 2, 1, 2]
    assert pattern.transpose.pointers.tolist() == [0, 1, 2, 4]
    assert pattern.transpose.rows.tolist() == [0, 2, 0, 2]
    assert pattern.transpose.order.tolist() == [0, 2, 1, 3]
    assert repr(pattern) == "Pattern((3, 3), 4 of 9 stored)"


def test_structures_are_built_once_and_nothing_can_be_set():
    pattern = se.Pattern.from_mask(MASK)
    assert pattern.csr is pattern.csr
    assert pattern.transpose is pattern.transpose
    with pytest.raises(AttributeError):
        pattern.shape = (9,)
    pattern.mask().zero_()
    assert torch.equal(pattern.mask(), MASK)


def test_rows_of_a_convolution_run_over_in_kh_kw():
    mask = torch.rand(4, 3, 2, 2, generator=torch.Generator().manual_seed(0)) < 0.5
    row, column = mask.view(4, 12).nonzero().unbind(1)
    csr = se.Pattern.from_mask(mask).csr
    assert csr.columns.tolist() == column.tolist()
    assert csr.pointers.diff().tolist() == torch.bincount(row, minlength=4).tolist()


def test_a_mask_of_any_strides():
    assert torch.equal(se.Pattern.from_mask(MASK.t()).mask(), MASK.t())


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0,)])
def test_a_weight_without_entries(shape):
    pattern = se.Pattern.from_mask(torch.ones(shape, dtype=torch.bool))
    assert (pattern.nnz, pattern.density) == (0, 1.0)
    assert pattern.csr.pointers.tolist() == [0] * (shape[0] + 1)
    assert pattern.mask().shape == shape


def test_refusals():
    with pytest.raises(ValueError, match="expected dtype torch.bool"):
        se.Pattern.from_mask(torch.ones(3))
    with pytest.raises(ValueError, match="got a scalar"):
        se.Pattern.from_mask(torch.tensor(True))
    with pytest.raises(ValueError, match="one weight, 6 entries, got sizes \\(7,\\)"):
        se.Pattern((2, 3), random_bitmap((7,), 0.5))
    with pytest.raises(ValueError, match="got sizes \\(3, 3\\)"):
        se.Pattern((2, 3), random_bitmap((3, 3), 0.5))
    pattern = se.Pattern.from_mask(MASK)
    with pytest.raises(ValueError, match="expected 4 values"):
        se.SparseTensor(pattern, torch.zeros(5))
    with pytest.raises(ValueError, match="expected 1-D"):
        se.SparseTensor(pattern, torch.zeros(2, 2))
    with pytest.raises(ValueError, match="'w': \\(9,\\), 'mask': \\(3, 3\\)"):
        se.SparseTensor.from_dense(torch.zeros(9), MASK)


@pytest.mark.parametrize("variant", variants())
def test_dense_and_back(variant):
    w = torch.arange(1.0, 10).view(3, 3)
    with on(variant) as put:
        tensor = se.SparseTensor.from_dense(put(w), put(MASK))
        assert tensor.values.tolist() == [1, 3, 8, 9]
        assert torch.equal(tensor.to_dense().cpu(), w * MASK)
    assert repr(tensor) == "SparseTensor((3, 3), 4 of 9 stored, torch.float32)"


def test_values_are_shared_with_the_caller_but_not_with_the_dense_weight():
    w = torch.ones(3, 3, requires_grad=True)
    values = torch.zeros(4)
    tensor = se.SparseTensor(se.Pattern.from_mask(MASK), values)
    values[0] = 5.0
    assert tensor.to_dense()[0, 0] == 5.0
    assert tensor.packed.values is values
    packed = se.SparseTensor.from_dense(w, tensor.pattern)
    assert packed.pattern is tensor.pattern
    packed.values.zero_()
    assert w.sum() == 9


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.floats(0, 1), st.integers(0, 999))
def test_any_mask_and_weight_round_trip(shape, density, seed):
    generator = torch.Generator().manual_seed(seed)
    w, mask = torch.randn(shape, generator=generator), torch.rand(shape, generator=generator) < density
    tensor = se.SparseTensor.from_dense(w, mask)
    assert torch.equal(tensor.pattern.mask(), mask)
    assert torch.equal(tensor.to_dense(), w.where(mask, torch.zeros(())))
