"""XXH64: published values, and the variants against each other."""

import numpy as np
import pytest
from helpers import variants

from sparsefl.kernels import use_backend
from sparsefl.kernels.checksum import chain, checksum

EVERY = variants("checksum")


def of(data: bytes, seed: int = 0) -> int:
    return checksum(np.frombuffer(data, np.uint8), seed)


@pytest.mark.parametrize("variant", EVERY)
def test_published_values(variant):
    with use_backend(variant):
        assert of(b"") == 0xEF46DB3751D8E999
        assert of(b"", 1) == 0xD5AFBA1336A3BE4B
        assert of(b"a") == 0xD24EC4F1A98C6E5B
        assert of(b"abc") == 0x44BC2CF5AD770999
        assert of(b"Nobody inspects the spammish repetition") == 0xFBCEA83C8A378BF1


@pytest.mark.parametrize("variant", EVERY)
@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_every_length(variant, seed):
    data = np.random.default_rng(0).integers(0, 256, 200, dtype=np.uint8)
    for n in [*range(70), 200]:
        with use_backend("reference"):
            expected = checksum(data[1 : 1 + n], seed)
        with use_backend(variant):
            assert checksum(data[1 : 1 + n], seed) == expected


@pytest.mark.parametrize(
    "data", [np.zeros(4, np.int8), np.zeros((2, 2), np.uint8), np.zeros(8, np.uint8)[::2]]
)
def test_other_arrays_are_refused(data):
    with pytest.raises(ValueError, match="expected contiguous bytes"):
        checksum(data)


@pytest.mark.parametrize("variant", variants("checksum"))
def test_a_chain_seeds_each_part_with_the_one_before(variant):
    parts = [np.arange(n, dtype=np.uint8) for n in (40, 0, 7)]
    with use_backend(variant):
        assert chain(parts, 5) == checksum(parts[2], checksum(parts[1], checksum(parts[0], 5)))
        assert chain([], 5) == 5
