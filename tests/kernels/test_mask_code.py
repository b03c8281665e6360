"""Masks as short as their density allows: the native code against whole numbers in Python, bit by bit."""

import math

import numpy as np
import pytest
import torch
from helpers import random_bitmap, variants
from hypothesis import given
from hypothesis import strategies as st

from sparsefl.kernels import mask_code, use_backend
from sparsefl.kernels.bitmap import from_mask, full
from sparsefl.kernels.layout import Segments
from sparsefl.kernels.mask_code import Flips
from sparsefl.kernels.mask_code._reference import LOW, ORDER, frequencies

NATIVE = variants("mask_code", without=["reference"])
EVERY = variants("mask_code")
SIZES = (1, 7, 8, 9, 63, 64, 65, 130, 0, 1000)


def decoded(code, bitmap, known=None):
    return mask_code.decode(code, bitmap.segments, mask_code.flips(bitmap, known), known)


def coded(variant, bitmap, known=None):
    with use_backend(variant):
        return mask_code.encode(bitmap, known)


@pytest.mark.parametrize("density", [0.0, 0.003, 0.1, 0.5, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("difference", [False, True])
def test_all_variants_write_the_same_code_and_read_it(density, difference):
    bitmap = random_bitmap(SIZES, density, seed=1)
    known = random_bitmap(SIZES, 0.4, seed=2) if difference else None
    codes = {variant: coded(variant, bitmap, known) for variant in EVERY}
    for variant, code in codes.items():
        assert code.tobytes() == codes["reference"].tobytes(), variant
        with use_backend(variant):
            assert decoded(code, bitmap, known).words.equal(bitmap.words)


@pytest.mark.parametrize("density", [1e-5, 1e-3, 0.1, 0.2, 0.35, 0.5, 0.97])
def test_as_short_as_the_density_allows(density):
    bitmap = random_bitmap((300_000, 100_000), density)
    counts = mask_code.flips(bitmap)
    bound = mask_code.entropy(counts, bitmap.segments) / 8
    by_hand = 0.0
    for c, n in zip(bitmap.counts.tolist(), bitmap.segments.sizes, strict=True):
        by_hand -= c * math.log2(c / n) + (n - c) * math.log2(1 - c / n) if 0 < c < n else 0
    assert bound == pytest.approx(by_hand / 8)
    assert bound - 4 <= mask_code.encode(bitmap).size <= 1.002 * bound + 48


def test_a_difference_costs_its_flips():
    known = random_bitmap((300_000,), 0.3)
    flipped = random_bitmap((300_000,), 0.01, seed=1)
    bitmap = from_mask(_mask(known) ^ _mask(flipped))
    dropped, grown = mask_code.flips(bitmap, known)
    assert int(dropped) == int((_mask(known) & _mask(flipped)).sum())
    assert int(grown) == int((~_mask(known) & _mask(flipped)).sum())
    bound = mask_code.entropy(Flips(dropped, grown), bitmap.segments, known) / 8
    assert bound <= mask_code.encode(bitmap, known).size <= 1.005 * bound + 48
    assert bound < mask_code.encode(bitmap).size / 8


def _mask(bitmap):
    return torch.from_numpy(
        np.unpackbits(bitmap.words.numpy().view(np.uint8), bitorder="little")[: bitmap.segments.numel]
    ).bool()


@pytest.mark.parametrize("variant", EVERY)
def test_full_and_empty_tensors_cost_nothing(variant):
    with use_backend(variant):
        for bitmap in (full((100, 64)), random_bitmap((100, 64), 0.0)):
            assert mask_code.encode(bitmap).size == 32  # the four states
            assert mask_code.encode(bitmap, bitmap).size == 32
            assert decoded(mask_code.encode(bitmap), bitmap).words.equal(bitmap.words)


def test_no_tensors():
    bitmap = random_bitmap((), 0.5)
    assert decoded(mask_code.encode(bitmap), bitmap).words.numel() == 0


@pytest.mark.parametrize("ones", [1, 2, 4, 5, 2**31, 2**32 - 2])
def test_frequencies_fill_their_range(ones):
    for bits in (8, 9, 1000, 2**31, 2**32 - 1):
        if ones >= bits:
            continue
        f = frequencies(ones, bits)
        p = ones / bits
        assert sum(f) == 1 << 24 and min(f) >= 1
        for byte, share in zip(ORDER, f, strict=True):
            k = byte.bit_count()
            assert share / 2**24 == pytest.approx(p**k * (1 - p) ** (8 - k), abs=2e-5)


@given(
    st.lists(st.integers(0, 200), min_size=1, max_size=4),
    st.sampled_from([0.0, 0.01, 0.3, 0.5, 0.95, 1.0]),
    st.sampled_from([None, 0.0, 0.2, 1.0]),
    st.integers(0, 2**31),
)
def test_any_mask_comes_back(sizes, density, known_density, seed):
    bitmap = random_bitmap(sizes, density, seed)
    known = None if known_density is None else random_bitmap(sizes, known_density, seed + 1)
    codes = [coded(variant, bitmap, known) for variant in NATIVE]
    assert all(code.tobytes() == codes[0].tobytes() for code in codes)
    assert decoded(codes[0], bitmap, known).words.equal(bitmap.words)


@pytest.mark.parametrize("variant", EVERY)
@pytest.mark.parametrize("difference", [False, True])
def test_another_code_is_refused(variant, difference):
    bitmap = random_bitmap((70, 200), 0.3)
    known = random_bitmap((70, 200), 0.5, seed=1) if difference else None
    code = mask_code.encode(bitmap, known)
    too_high, too_low = code.copy(), code.copy()
    too_high[:8], too_low[:8] = _state(LOW << 32), _state(LOW - 1)
    wrong = [code[:-4], code[:-1], code[:31], code[:0], _longer(code, 4), _longer(code, 1), too_high, too_low]
    with use_backend(variant):
        for changed in wrong:
            with pytest.raises(ValueError, match="expected the code of a mask"):
                decoded(changed, bitmap, known)


@pytest.mark.parametrize("variant", EVERY)
def test_a_changed_code_is_refused_or_that_of_another_mask(variant):
    """Whatever is accepted is what encoding gives: no mask has two codes."""
    bitmap, known = random_bitmap((70, 200), 0.3), random_bitmap((70, 200), 0.5, seed=1)
    code = mask_code.encode(bitmap, known)
    refused = 0
    with use_backend(variant):
        for bit in range(0, 8 * code.size, 1 if variant != "reference" else 17):
            changed = code.copy()
            changed[bit // 8] ^= 1 << bit % 8
            try:
                other = decoded(changed, bitmap, known)
            except ValueError:
                refused += 1
                continue
            assert not other.words.equal(bitmap.words) and other.nnz == bitmap.nnz
            assert mask_code.encode(other, known).tobytes() == changed.tobytes()
    assert refused


def _state(x):
    return np.frombuffer(x.to_bytes(8, "little"), np.uint8)


def _longer(code, n):
    return np.concatenate([code, np.zeros(n, np.uint8)])


@pytest.mark.parametrize("variant", EVERY)
def test_other_counts_are_refused(variant):
    bitmap, known = random_bitmap((70, 200), 0.3), random_bitmap((70, 200), 0.5, seed=1)
    code, (dropped, grown) = mask_code.encode(bitmap, known), mask_code.flips(bitmap, known)
    one = torch.tensor([0, 1])
    with use_backend(variant):
        for flips in (Flips(dropped + one, grown), Flips(dropped, grown - one), Flips(0 * dropped, grown)):
            with pytest.raises(ValueError, match="expected the code of a mask"):
                mask_code.decode(code, bitmap.segments, flips, known)
        with pytest.raises(ValueError, match="expected the code of a mask"):
            mask_code.decode(code, bitmap.segments, Flips(dropped, grown), random_bitmap((70, 200), 0.5, 2))
    for flips in (Flips(dropped, grown - 300), Flips(dropped + 300, grown)):
        with pytest.raises(ValueError, match="ones in a string of"):
            mask_code.decode(code, bitmap.segments, flips, known)


def test_sizes_must_agree():
    bitmap, known = random_bitmap((70,), 0.5), random_bitmap((71,), 0.5)
    with pytest.raises(ValueError, match=r"expected a known mask of sizes \(70,\), got \(71,\)"):
        mask_code.encode(bitmap, known)
    with pytest.raises(ValueError, match="expected tensors of at most 4294967295 entries"):
        mask_code.decode(np.zeros(32, np.uint8), Segments((2**32,)), mask_code.flips(bitmap))
