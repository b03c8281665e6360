"""Records keep their bytes for as long as somebody looks, and give their room back when nobody does."""

import gc

import numpy as np
import pytest
import torch

from fl.clients.arena import Arena
from fl.errors import StoreError

MB = 1 << 20


def record(number, length=MB):
    return np.full(length // 8, number, np.int64)


def resident():
    with open("/proc/self/status") as told:
        return next(1024 * int(line.split()[1]) for line in told if line.startswith("VmRSS"))


@pytest.fixture(params=["memory", "files"])
def arena(request, tmp_path):
    return Arena(tmp_path if request.param == "files" else None)


def test_views_stay_as_they_are_beyond_256_mb(arena):
    """300 MB are dropped while tensors made of views of some are there; as much is written over them."""
    places = [arena.put([record(i)], MB) for i in range(300)]
    seen = {i: torch.from_numpy(arena.look(places[i]))[7:].view(torch.float64)[3:] for i in range(0, 300, 30)}
    for place in places:
        arena.drop(place)
    gc.collect()
    again = [arena.put([record(-i)], MB) for i in range(1, 301)]
    assert all((one.view(torch.int64) == i).all() for i, one in seen.items())
    assert arena.nbytes == 310 * MB
    del seen
    arena.tidy()
    assert arena.nbytes == 300 * MB
    assert all((arena.look(place) == -i).all() for i, place in enumerate(again, 1))


def test_rows_are_used_again(arena):
    first = arena.put([record(1)], MB)
    arena.drop(first)
    assert arena.put([record(2)], MB - 8) == first
    other = arena.put([record(3, 80)], 80)
    assert other.chunk != first.chunk and arena.look(first)[0] == 2 and arena.look(other)[9] == 3


def test_idle_memory_goes_back_to_the_system():
    arena, before = Arena(), resident()
    places = [arena.put([record(i)], MB) for i in range(400)]
    assert resident() - before > 390 * MB
    for place in places[1:]:
        arena.drop(place)
    assert resident() - before < 60 * MB and arena.look(places[0])[0] == 0
    smaller = [arena.put([record(i, MB // 2)], MB // 2) for i in range(10)]
    assert [int(arena.look(place)[1]) for place in smaller] == [*range(10)]


def test_a_look_counts_once_each_and_drops_late(arena):
    place = arena.put([record(5)], MB)
    one, two = arena.look(place), torch.from_numpy(arena.look(place))
    arena.drop(place)
    del one
    arena.tidy()
    assert arena.nbytes == MB and (two == 5).all()
    del two
    arena.tidy()
    assert arena.nbytes == 0


def test_a_full_disk_is_said(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    arena = Arena(tmp_path)
    kept = arena.put([record(1)], MB)
    with monkeypatch.context() as patch:
        patch.setattr("os.posix_fallocate", full)
        with pytest.raises(
            StoreError, match=r"1,048,576 bytes in a file in .* No space left on device; .* 1.0 MB"
        ):
            arena.put([record(2)], MB)
    assert arena.look(kept)[0] == 1 and arena.look(arena.put([record(2)], MB))[0] == 2
