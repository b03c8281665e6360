"""kernels.memory: buffers come back, and are bounded."""

import threading

import pytest
import torch

from kernels import memory, native

pytestmark = pytest.mark.skipif(
    not (native.isas() and native.extension().pooled()),
    reason="no pool: not built, or built for the sanitizer",
)
FLOAT = torch.zeros(())
MIB = 1 << 18  # floats


@pytest.fixture(autouse=True)
def nothing_idle():
    memory.trim()
    yield
    memory.trim()


def test_a_freed_buffer_is_used_again():
    first = memory.empty((3, MIB), FLOAT)
    address = first.data_ptr()
    del first
    assert memory.idle_bytes() == 4 * 3 * MIB
    again = memory.empty((MIB, 3), FLOAT)
    assert again.data_ptr() == address and again.shape == (MIB, 3) and again.is_contiguous()
    assert memory.idle_bytes() == 0


def test_views_keep_the_buffer():
    whole = memory.empty((4, MIB), FLOAT)
    address, view = whole.data_ptr(), whole[1]
    view.fill_(7)
    del whole
    other = memory.empty((4, MIB), FLOAT)
    assert other.data_ptr() != address
    other.fill_(0)
    assert view.eq(7).all()


def test_idle_buffers_of_other_sizes_do_not_pile_up():
    for size in range(1, 40):
        buffer = memory.empty((size, MIB), FLOAT)
        used = 4 * buffer.numel()
        assert used + memory.idle_bytes() <= used + used // 8
        del buffer


def test_trim_returns_what_is_idle():
    del_me = memory.empty((MIB,), FLOAT)
    del del_me
    assert memory.idle_bytes() > 0
    memory.trim()
    assert memory.idle_bytes() == 0


def test_small_double_and_reference_results_are_ordinary():
    assert memory.empty((5,), FLOAT).numel() == 5
    assert memory.empty((MIB,), FLOAT.double()).dtype == torch.float64
    assert memory.empty((0, MIB), FLOAT).numel() == 0
    assert memory.idle_bytes() == 0


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
