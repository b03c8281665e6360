"""sparsefl.kernels.memory: buffers come back, join, and are never two people's."""

import threading
from itertools import pairwise
from random import Random

import pytest
import torch
from torch.utils.dlpack import from_dlpack

from sparsefl.kernels import memory, native

pytestmark = pytest.mark.skipif(
    not (native.isas() and native.extension().pooled()),
    reason="no pool: not built, or built for the sanitizer",
)
FLOAT = torch.zeros(())
MIB = 1 << 18  # floats


@pytest.fixture(autouse=True)
def little_idle():
    memory.trim()
    yield
    memory.trim()


def test_a_freed_buffer_is_used_again():
    first = memory.empty((3, MIB), FLOAT)
    address = first.data_ptr()
    idle = memory.idle_bytes()
    del first
    assert memory.idle_bytes() == idle + 4 * 3 * MIB
    again = memory.empty((MIB, 3), FLOAT)
    assert again.data_ptr() == address and again.shape == (MIB, 3) and again.is_contiguous()
    assert memory.idle_bytes() == idle


def test_views_keep_the_buffer():
    whole = memory.empty((4, MIB), FLOAT)
    address, view = whole.data_ptr(), whole[1]
    view.fill_(7)
    del whole
    other = memory.empty((4, MIB), FLOAT)
    assert other.data_ptr() != address
    other.fill_(0)
    assert view.eq(7).all()


def test_neighbours_join_so_that_another_size_fits():
    pieces = [memory.empty((n, MIB), FLOAT) for n in (3, 5, 4)]
    held = sum(4 * piece.numel() for piece in pieces) + memory.idle_bytes()
    first = pieces[0].data_ptr()
    for n in (1, 0, 2):  # before, after, and both
        pieces[n] = FLOAT
    whole = memory.empty((12, MIB), FLOAT)
    assert whole.data_ptr() == first
    assert 4 * whole.numel() + memory.idle_bytes() == held


def test_a_step_with_other_sizes_takes_no_more_memory():
    def step(sizes: list[int]) -> int:
        buffers = [memory.empty((size, MIB), FLOAT) for size in sizes]
        held = sum(4 * buffer.numel() for buffer in buffers) + memory.idle_bytes()
        del buffers
        return held

    most = step([40])
    for sizes in ([1] * 40, [7, 9, 24], [39, 1], [13, 13, 13]):
        assert step(sizes) == most


@pytest.mark.parametrize("seed", range(3))
def test_buffers_in_use_never_overlap(seed):
    random = Random(seed)
    buffers: list[torch.Tensor] = []
    for _ in range(600):
        if buffers and random.random() < 0.45:
            buffers.pop(random.randrange(len(buffers)))
        else:
            buffers.append(memory.empty((random.randrange(memory.LARGE // 4, 1 << 19),), FLOAT))
        spans = sorted((x.data_ptr(), x.data_ptr() + 4 * x.numel()) for x in buffers)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
        assert all(start % 64 == 0 for start, _ in spans)


def test_more_than_a_segment():
    large, small = memory.empty((300, MIB), FLOAT), memory.empty((1, MIB), FLOAT)
    large[-1].fill_(1)
    small.fill_(2)
    assert large[-1].eq(1).all()


def test_growing_buffers_do_not_pile_up():
    before = memory.idle_bytes()
    for size in range(300, 400, 20):  # each with a segment of its own
        buffer = memory.empty((size, MIB), FLOAT)
        assert memory.idle_bytes() <= before
        del buffer
        before += 4 * size * MIB * (size == 300)


def test_without_memory_there_is_an_error():
    with pytest.raises(MemoryError):
        memory.empty((1 << 28, MIB), FLOAT)


def test_trim_leaves_neighbours_alone_that_share_a_page():
    small = [from_dlpack(native.extension().empty((16,))) for _ in range(2)]
    lost = memory.empty((MIB + 5,), FLOAT)
    small += [from_dlpack(native.extension().empty((16,))) for _ in range(2)]
    for n, x in enumerate(small):
        x.fill_(n)
    del lost
    memory.trim()
    assert all(x.eq(n).all() for n, x in enumerate(small))


def test_trim_returns_what_is_idle():
    before = memory.idle_bytes()
    lost, kept = memory.empty((MIB,), FLOAT), memory.empty((MIB,), FLOAT)
    kept.fill_(3)
    del lost
    memory.trim()  # kept is in the same segment
    assert kept.eq(3).all()
    del kept
    memory.trim()
    assert memory.idle_bytes() <= before


def test_small_double_and_reference_results_are_ordinary():
    before = memory.idle_bytes()
    assert memory.empty((5,), FLOAT).numel() == 5
    assert memory.empty((MIB,), FLOAT.double()).dtype == torch.float64
    assert memory.empty((0, MIB), FLOAT).numel() == 0
    assert memory.idle_bytes() == before


def test_threads_never_share_a_buffer():
    wrong = []

    def work(number: int) -> None:
        for _ in range(200):
            mine = memory.empty((1 << 15,), FLOAT)
            mine.fill_(number)
            if not mine.eq(number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
