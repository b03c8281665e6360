"""Named random streams: what they depend on, and what not."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fl.rng import stream

ROOT = Path(__file__).parents[2]
KEY = (3, "reuse", 5, 7)


def words(*key, n=8):
    return stream(*key).integers(2**64, size=n, dtype=np.uint64).tolist()


def test_the_same_name_gives_the_same_bits():
    assert words(*KEY) == words(*KEY)


def test_bits_are_pinned():
    """A change here changes every run that anybody recorded."""
    assert words(0, "topology", n=2) == [1077333184280319264, 11693290495734968867]
    assert words(*KEY, n=2) == [11638724642752604625, 11894397147125110463]


@pytest.mark.parametrize(
    "other", [(4, "reuse", 5, 7), (3, "batch", 5, 7), (3, "reuse", 6, 7), (3, "reuse", 5, 8)]
)
def test_every_part_of_the_name_counts(other):
    assert not set(words(*KEY)) & set(words(*other))


def test_rounds_and_clients_are_not_confused():
    first = {(t, k): words(0, "x", t, k, n=1)[0] for t in range(40) for k in range(40)}
    assert len(set(first.values())) == 1600


def test_seed_and_purpose_are_not_confused():
    assert words(1, "1 x") != words(1, "x") and words(11, "x") != words(1, "1x")


def test_streams_of_neighbouring_clients_are_uncorrelated():
    draws = np.array([stream(0, "x", 0, k).standard_normal(2000) for k in range(20)])
    off = np.corrcoef(draws)[~np.eye(20, dtype=bool)]
    assert abs(off).max() < 4.5 / np.sqrt(2000)


def test_another_process_draws_the_same():
    code = "from fl.rng import stream; print(stream(3, 'reuse', 5, 7).integers(2**62))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) == stream(*KEY).integers(2**62)


def test_negative_rounds_are_refused():
    with pytest.raises(ValueError, match="expected a round and a client from 0 on, got t=-1, k=0"):
        stream(0, "x", -1)


def test_negative_seeds_are_seeds():
    assert words(-1, "x") != words(1, "x")
