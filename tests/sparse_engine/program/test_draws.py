"""Native draws (csrc/program/draws.cpp) against numpy's generator: the streams of fl/rng.py."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl import rng
from sparsefl.kernels.native import extension

WORD = 2**64


def native(seed, purpose, t, k, samples, epochs, corners):
    key = rng.key(seed, purpose)
    native_key = extension().program.StreamKey(low=key % WORD, high=key // WORD)
    return extension().program.draw(native_key, t, k, list(samples), epochs, corners)


def numpys(seed, purpose, t, k, samples, epochs, corners):
    stream, found = rng.stream(seed, purpose, t, k), ([], [], [], [])
    for _ in range(epochs):
        found[0].extend(stream.permutation(samples).tolist())
        rows, columns = stream.integers(0, corners + 1, (2, len(samples)))
        found[1].extend(rows.tolist())
        found[2].extend(columns.tolist())
        found[3].extend((stream.random(len(samples)) < 0.5).astype(int).tolist())
    return found


@given(
    seed=st.integers(0, 2**63 - 1),
    t=st.integers(0, 2**40),
    k=st.integers(0, 2**40),
    size=st.integers(0, 70),
    epochs=st.integers(1, 3),
    wide=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_draws_are_those_of_numpy(seed, t, k, size, epochs, wide):
    samples = np.arange(size, dtype=np.int64 if wide else np.int32) * 3 + 5
    assert tuple(native(seed, "batches", t, k, samples, epochs, 8)) == numpys(
        seed, "batches", t, k, samples, epochs, 8
    )


@pytest.mark.parametrize("corners", [0, 1, 2, 8, 1000, 2**31])
def test_every_bound(corners):
    samples = np.arange(500)
    found, wanted = (f(7, "grow", 2, 3, samples, 2, corners) for f in (native, numpys))
    assert tuple(found) == wanted
