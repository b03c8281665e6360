"""Numbers without what their exponents have in common: native against whole numbers in Python, bit by bit."""

import numpy as np
import pytest
import torch
from helpers import randn, variants
from hypothesis import given
from hypothesis import strategies as st

from sparsefl.kernels import number_code, use_backend
from sparsefl.kernels.number_code import BLOCK
from sparsefl.kernels.number_code._reference import LOW, frequencies

EVERY = variants("number_code")
NATIVE = variants("number_code", without=["reference"])
DTYPES = {4: torch.float32, 2: torch.bfloat16, 1: torch.int8}


def numbers(n, width, seed=0):
    x = randn(n, seed) * (0.05 if width > 1 else 9.0)
    return x.to(DTYPES[width]).view(torch.uint8).numpy()


def entropy(lead):
    share = np.unique(lead, return_counts=True)[1] / lead.size
    return float(-lead.size * (share * np.log2(share)).sum()) / 8


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("n", [500, 501, 502, 503, BLOCK + 1])
def test_all_variants_write_the_same_code_and_read_it(width, n):
    data = numbers(n, width)
    codes = {}
    for variant in EVERY:
        with use_backend(variant):
            codes[variant] = number_code.encode(data, width)
            assert number_code.decode(codes[variant], n, width).tobytes() == data.tobytes()
    assert len({code.tobytes() for code in codes.values()}) == 1


def test_as_short_as_the_exponents_allow():
    n = 3 * BLOCK
    for width in (2, 4):
        words = numbers(n, width).view(f"<u{width}")
        exponents = (words >> 8 * width - 9 & 255).astype(np.uint8)
        bound = n * (width - 1) + entropy(exponents)
        assert bound < number_code.encode(words.view(np.uint8), width).size < 1.005 * bound
    codes = numbers(n, 1)
    assert entropy(codes) < number_code.encode(codes, 1).size < 1.01 * entropy(codes)


@pytest.mark.parametrize("variant", EVERY)
def test_equal_numbers_take_a_few_bytes(variant):
    with use_backend(variant):
        for n in (5, BLOCK + 7):
            code = number_code.encode(np.zeros(n, np.uint8), 1)
            assert code.size == 4 * -(-n // BLOCK)
            assert not number_code.decode(code, n, 1).any()
        assert number_code.decode(np.empty(0, np.uint8), 0, 4).size == 0


@pytest.mark.parametrize("variant", EVERY)
def test_what_does_not_get_shorter_is_not_coded(variant):
    noise = np.random.default_rng(0).integers(0, 256, 4000, dtype=np.uint8)
    with use_backend(variant):
        for width in (1, 2, 4):
            assert number_code.encode(noise, width) is None
            assert number_code.encode(noise[:0], width) is None
            assert number_code.encode(noise[:width], width) is None


@given(st.lists(st.integers(1, BLOCK), min_size=1, max_size=256))
def test_frequencies_fill_their_range(counts):
    f = frequencies(counts)
    assert sum(f) == 4096 and min(f) >= 1


@given(st.binary(max_size=400), st.integers(1, 8), st.sampled_from([1, 2, 4]))
def test_any_numbers_come_back(data, times, width):
    data = np.frombuffer(data * times, np.uint8)
    data = data[: data.size // width * width]
    codes = []
    for variant in NATIVE:
        with use_backend(variant):
            codes.append(number_code.encode(data, width))
    if codes[0] is None:
        assert codes == [None] * len(codes)
        return
    assert all(code.tobytes() == codes[0].tobytes() for code in codes) and codes[0].size < data.size
    assert number_code.decode(codes[0], data.size // width, width).tobytes() == data.tobytes()


@pytest.mark.parametrize("variant", EVERY)
def test_another_code_is_refused(variant):
    n = 600
    code = number_code.encode(numbers(n, 2), 2)
    low, distinct = n, int(code[n]) + 1
    states = low + 1 + 3 * distinct

    def changed(at, *new):
        copy = code.copy()
        copy[at : at + len(new)] = new
        return copy

    wrong = {
        "short": code[:-1],
        "a word less": code[:-4],
        "no states": code[: states + 31],
        "no counts": code[: low + 5],
        "nothing": code[:0],
        "lower bytes only": code[:low],
        "longer": np.concatenate([code, code[:4]]),
        "one more kind of byte": changed(low, distinct),
        "bytes not ascending": changed(low + 1, code[low + 2], code[low + 1]),
        "a byte twice": changed(low + 1, code[low + 2]),
        "counts that are too many": changed(low + 1 + distinct, 255, 255),
        "a state too low": changed(states, *(LOW - 1).to_bytes(8, "little")),
        "a state too high": changed(states, *(LOW << 32).to_bytes(8, "little")),
    }
    with use_backend(variant):
        for what, data in wrong.items():
            with pytest.raises(ValueError, match="expected the code of 600 numbers"):
                number_code.decode(data, n, 2)
                pytest.fail(what)
        with pytest.raises(ValueError, match="expected the code of 601 numbers"):
            number_code.decode(code, n + 1, 2)


@pytest.mark.parametrize("variant", EVERY)
def test_a_changed_code_is_refused_or_that_of_other_numbers(variant):
    """Whatever is accepted is what encoding gives: no numbers have two codes."""
    data = numbers(1000, 1)
    code = number_code.encode(data, 1)
    refused = 0
    with use_backend(variant):
        for bit in range(0, 8 * code.size, 1 if variant != "reference" else 37):
            changed = code.copy()
            changed[bit // 8] ^= 1 << bit % 8
            try:
                other = number_code.decode(changed, 1000, 1)
            except ValueError:
                refused += 1
                continue
            assert other.tobytes() != data.tobytes()
            assert number_code.encode(other, 1).tobytes() == changed.tobytes()
    assert refused


@pytest.mark.parametrize(
    ("data", "width", "reason"),
    [
        (np.zeros(6, np.uint8), 3, "1, 2 or 4 bytes, got 3"),
        (np.zeros(6, np.uint8), 4, "a multiple of 4 bytes, got 6"),
        (np.zeros(6, np.int8), 1, "contiguous bytes"),
        (np.zeros(6, np.uint8)[::2], 1, "contiguous bytes"),
    ],
)
def test_other_arguments_are_refused(data, width, reason):
    with pytest.raises(ValueError, match=reason):
        number_code.encode(data, width)
