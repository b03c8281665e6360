"""sparsefl.kernels.bitmap against plain torch and scipy, on every variant."""

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse
import torch
from helpers import host, on, random_bitmap, variants
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefl.kernels import bitmap, use_backend
from sparsefl.kernels.layout import Segments

SIZES = [(0,), (1,), (63,), (64,), (65,), (1023, 0, 1025), (5, 640, 64)]


@pytest.mark.parametrize("variant", variants("bitmap"))
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
def test_mask_round_trip_and_counts(variant, sizes, density):
    mask = torch.rand(sum(sizes), generator=torch.Generator().manual_seed(1)) < density
    with on(variant) as put:
        made = bitmap.from_mask(put(mask), sizes)
        assert torch.equal(bitmap.to_mask(made).cpu(), mask)
        assert made.counts.tolist() == [int(part.sum()) for part in mask.split(sizes)]
        assert torch.equal(bitmap.to_mask(bitmap.complement(made)).cpu(), ~mask)
        assert bitmap.full(sizes, put.device).counts.tolist() == list(sizes)


@pytest.mark.parametrize("variant", variants("bitmap"))
@pytest.mark.parametrize("shape", [(1, 1), (3, 64), (64, 27), (65, 129), (10, 1), (130, 200)])
@pytest.mark.parametrize("density", [0.0, 0.1, 0.6, 1.0])
def test_csr_and_transpose_are_scipys(variant, shape, density):
    rows, cols = shape
    pattern = random_bitmap([rows * cols], density, seed=rows)
    dense = bitmap.to_mask(pattern).view(shape).numpy()
    with on(variant) as put:
        placed = put(pattern)
        by_row, by_column = host(bitmap.csr(placed, rows)), host(bitmap.transpose(placed, rows))
    expected = scipy.sparse.csr_matrix(dense)
    assert np.array_equal(by_row.pointers, expected.indptr) and np.array_equal(
        by_row.columns, expected.indices
    )
    numbered = expected.astype(np.int64)
    numbered.data = np.arange(
        expected.nnz
    )  # each entry carries its packed position through the transposition
    expected = numbered.T.tocsr()
    assert np.array_equal(by_column.pointers, expected.indptr)
    assert np.array_equal(by_column.rows, expected.indices)
    assert np.array_equal(by_column.order, expected.data)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 150), st.integers(1, 150), st.floats(0, 1), st.integers(0, 10**6))
def test_transpose_on_the_native_variants(rows, cols, density, seed):
    pattern = random_bitmap([rows * cols], density, seed)
    with use_backend("reference"):
        expected = bitmap.csr(pattern, rows), bitmap.transpose(pattern, rows)
    for variant in variants("bitmap", without=["reference", "triton"]):
        with use_backend(variant):
            found = bitmap.csr(pattern, rows), bitmap.transpose(pattern, rows)
        for mine, theirs in zip(found, expected, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_segment_is_a_view():
    pattern = random_bitmap([70, 10, 200], 0.4)
    part = pattern.segment(2)
    assert part.words.data_ptr() == pattern.words[3:].data_ptr() and part.nnz == int(pattern.counts[2])
    assert torch.equal(bitmap.to_mask(part), bitmap.to_mask(pattern)[80:])


@pytest.mark.parametrize("variant", variants("bitmap"))
def test_bits_after_the_end_of_any_tensor_are_refused(variant):
    for sizes, word in (((10, 70), 0), ((70, 10), 1), ((64, 10, 64), 1)):
        words = torch.zeros(Segments(sizes).num_words, dtype=torch.int64)
        words[word] = 1 << 9 if sizes[0] != 70 else 1 << 5
        with on(variant) as put:
            words = put(words)
            assert bitmap.make(words, sizes).nnz == 1
            words[word] |= 1 << 10
            with pytest.raises(ValueError, match="zero bits after the end"):
                bitmap.make(words, sizes)


def test_a_copy_keeps_no_address_of_the_original():
    pattern = random_bitmap([70, 10, 200], 0.4)
    pattern.derived.of("kept", lambda: 1)
    bitmap.to_mask(pattern)
    assert pattern.segments.derived and pattern.derived.of("kept", lambda: 2) == 1
    for copied in (copy.deepcopy(pattern), pickle.loads(pickle.dumps(pattern))):
        assert not copied.derived and not copied.segments.derived
        assert copied.segments == pattern.segments and torch.equal(copied.words, pattern.words)
        assert torch.equal(bitmap.to_mask(copied), bitmap.to_mask(pattern))


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="expected 2 words"):
        bitmap.make(torch.zeros(3, dtype=torch.int64), (65,))
    with pytest.raises(ValueError, match="dtype torch.int64"):
        bitmap.make(torch.zeros(2), (65,))
    with pytest.raises(ValueError, match="dtype torch.bool"):
        bitmap.from_mask(torch.zeros(8))
    with pytest.raises(ValueError, match="contiguous"):
        bitmap.from_mask(torch.zeros(8, 8, dtype=torch.bool).t())
    with pytest.raises(ValueError, match="expected 9 entries"):
        bitmap.from_mask(torch.zeros(8, dtype=torch.bool), (9,))
    with pytest.raises(ValueError, match="divides 10 entries, got 3"):
        bitmap.csr(random_bitmap([10], 0.5), 3)
    with pytest.raises(ValueError, match="one tensor, got 2"):
        bitmap.transpose(random_bitmap([10, 10], 0.5), 5)
    with pytest.raises(ValueError, match="sizes from 0"):
        Segments((3, -1))
