"""The compiled extension among threads and processes: whose threads, how many, the GIL."""

import multiprocessing
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from helpers import randn, random_bitmap

from sparsefl.kernels import native, num_threads, use_threads
from sparsefl.kernels.drift import drift
from sparsefl.kernels.layout import Packed
from sparsefl.kernels.masked_average import masked_average
from sparsefl.kernels.pqi import pqi
from sparsefl.kernels.select import select

SIZES = (300_000, 64, 0, 200_001)  # several chunks, so that two threads have something to share


@pytest.fixture(scope="module")
def models():
    bitmaps = [random_bitmap(SIZES, 0.4, seed) for seed in range(3)]
    return [Packed(bitmap, randn(bitmap.nnz, seed)) for seed, bitmap in enumerate(bitmaps)]


def work(models):
    """Something of every shape: a map, a reduction, a selection."""
    bitmap, values = models[0]
    return [
        masked_average(bitmap, models),
        pqi(values, bitmap.offsets).pqi,
        drift(models[0], models[1]),
        select(values, bitmap, bitmap.counts // 3).words,
    ]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("count", [0, -1])
def test_use_threads_wants_at_least_one(count):
    with pytest.raises(ValueError, match=f"expected at least 1 thread, got {count}"), use_threads(count):
        pass


def test_use_threads_nests_and_ends(monkeypatch):
    monkeypatch.delenv("SPARSE_THREADS", raising=False)
    assert num_threads() == torch.get_num_threads()
    with use_threads(5):
        with use_threads(2):
            assert num_threads() == 2
        assert num_threads() == 5
    assert num_threads() == torch.get_num_threads()


def test_one_threads_choice_does_not_reach_another():
    seen = []
    with use_threads(7):
        thread = threading.Thread(target=lambda: seen.append((num_threads(), torch.get_num_threads())))
        thread.start()
        thread.join()
    ((ours, torchs),) = seen  # torch's count may differ between threads, too: OpenMP keeps one per thread
    assert ours == torchs != 7


@pytest.mark.parametrize("count", [2, 3, 16])
def test_same_bits_on_any_number_of_threads(models, count):
    with use_threads(1):
        expected = work(models)
    with use_threads(count):
        assert same(work(models), expected)


def test_calls_from_several_python_threads(models):
    with use_threads(1):
        expected = work(models)

    def repeat(_):
        with use_threads(2):
            return all(same(work(models), expected) for _ in range(10))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(repeat, range(4)))


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="no /proc")
def test_torch_and_kernels_run_on_the_same_threads():
    """Beside those of torch, which spin, threads of our own would get half a core (docs/native.md)."""
    code = """
import os, torch
from sparsefl.kernels.native import use_threads
from sparsefl.kernels.pqi import pqi

def tasks():
    return os.listdir("/proc/self/task")

torch.set_num_threads(1)
values, offsets = torch.ones(1 << 20), torch.tensor([0, 1 << 20])
torch.set_num_threads(2)
first = tasks()
with use_threads(2):
    pqi(values, offsets)
ours = tasks()
values.add_(1)
assert len(first) < len(ours) and tasks() == ours
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_child_forked_before_the_first_kernel_does_not_wait_for_threads_of_torch():
    code = """
import os, torch
from sparsefl.kernels.native import use_threads
from sparsefl.kernels.pqi import pqi

torch.set_num_threads(2)
values, offsets = torch.ones(1 << 20).add_(1), torch.tensor([0, 1 << 20])
if os.fork():
    raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
with use_threads(2):
    pqi(values, offsets)
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def _child(models, expected, answer):
    torch.set_num_threads(1)  # torch's OpenMP threads do not survive a fork: torch.equal would hang
    with use_threads(2):
        answer.send(same(work(models), expected))
    answer.close()


def test_a_forked_child_has_threads_of_its_own(models):
    with use_threads(2):
        expected = work(models)  # the helpers of this process are running now
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(models, expected, theirs))
    child.start()
    theirs.close()
    try:
        assert ours.poll(60), "the child hangs"
        assert ours.recv()
    finally:
        child.join(5)
        if child.is_alive():
            child.kill()
    assert child.exitcode == 0
    with use_threads(2):
        assert same(work(models), expected)  # and the parent's threads still work


def test_the_gil_is_released():
    values, offsets = randn(4_000_000), torch.tensor([0, 4_000_000])
    running, ticks = threading.Event(), []

    def tick():
        while running.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    running.set()
    thread = threading.Thread(target=tick)
    thread.start()
    start = time.perf_counter()
    with use_threads(1):
        pqi(values, offsets, p=0.7, q=1.9)  # the slow path: one call of some 100 ms
    end = time.perf_counter()
    running.clear()
    thread.join()
    inside = [t for t in ticks if start + 0.1 * (end - start) < t < end - 0.1 * (end - start)]
    assert end - start > 0.02, "too quick to tell"
    assert len(inside) >= 3


def test_pointer_refuses_what_native_code_cannot_take():
    with pytest.raises(ValueError, match="got torch.float64 on cpu"):
        native.pointer(torch.zeros(3, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"with strides \(2,\)"):
        native.pointer(torch.zeros(6)[::2])
    with pytest.raises(ValueError, match="on meta"):
        native.pointer(torch.zeros(3, device="meta"))
