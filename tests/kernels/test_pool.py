"""sparsefl.kernels.pool against torch's own pools and autograd in float64, on every native variant."""

import pytest
import torch
from helpers import variants
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from sparsefl.kernels import pool, use_backend, use_threads
from sparsefl.kernels.pool import Window

NATIVE = variants("pool", without=["reference"])
ALL = [*NATIVE, "reference"]


def image(shape, *, ties=False, seed=0):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=draw)
    return x.mul(2).round() if ties else x


def nchw(x):
    return x.double().permute(3, 0, 1, 2).contiguous()


def autograd(layer, x):
    """y and dx of torch's layer in float64, batch-last, and the dy they were made with."""
    leaf = nchw(x).requires_grad_()
    y = layer(leaf)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).double()
    y.backward(dy)
    y, dx, dy = (t.permute(1, 2, 3, 0).contiguous() for t in (y.detach(), leaf.grad, dy))
    return y, dx, dy.float()


def compare_max(window, x, threads=1):
    y, dx, dy = autograd(lambda x: F.max_pool2d(x, window.kernel, window.stride, window.padding), x)
    for backend in ALL:
        with use_backend(backend), use_threads(threads):
            found = pool.max_pool(window, x)
            assert torch.equal(found.y.double(), y)
            back = pool.max_pool_backward(window, dy, found.tap, tuple(x.shape[1:3]))
            torch.testing.assert_close(back.double(), dx, rtol=1e-6, atol=1e-6)


def compare_average(window, x, threads=1):
    y, dx, dy = autograd(lambda x: F.avg_pool2d(x, window.kernel, window.stride, window.padding), x)
    for backend in ALL:
        with use_backend(backend), use_threads(threads):
            torch.testing.assert_close(pool.average_pool(window, x).double(), y, rtol=1e-5, atol=2e-6)
            back = pool.average_pool_backward(window, dy, tuple(x.shape[1:3]))
            torch.testing.assert_close(back.double(), dx, rtol=1e-5, atol=2e-6)


def compare_adaptive(size, x, threads=1):
    y, dx, dy = autograd(lambda x: F.adaptive_avg_pool2d(x, size), x)
    for backend in ALL:
        with use_backend(backend), use_threads(threads):
            torch.testing.assert_close(pool.adaptive_average_pool(x, size).double(), y, rtol=1e-5, atol=2e-6)
            back = pool.adaptive_average_pool_backward(dy, tuple(x.shape[1:3]))
            torch.testing.assert_close(back.double(), dx, rtol=1e-5, atol=2e-6)


WINDOWS = [
    Window.of(2),
    Window.of(2, 1),
    Window.of(2, 3),  # inputs between windows are in none
    Window.of(3),
    Window.of((1, 4)),
    Window.of(3, 2),
    Window.of(3, 2, 1),
    Window.of(3, 1, 1),
    Window.of((2, 3), (3, 1), (1, 0)),
    Window.of(1, 3),
]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("batch", [1, 7, 16, 18, 33, 64])
def test_windows_and_batches(window, batch):
    x = image((5, 9, 8, batch))
    compare_max(window, x)
    compare_average(window, x)


@pytest.mark.parametrize("batch", [1, 7, 18, 32])
@pytest.mark.parametrize("size", [(8, 8), (9, 7), (7, 10), (2, 3)], ids=str)
@pytest.mark.parametrize("window", [Window.of(2, *how) for how in [(), (3,), (2, 1), (1,)]], ids=str)
def test_windows_apart_and_what_is_between_them(window, size, batch):
    """Two by two, with gaps, with padding, and overlapping; inputs of no window get zeros."""
    x = image((3, *size, batch), ties=True)
    compare_max(window, x)
    compare_average(window, x)


@pytest.mark.parametrize("window", [Window.of(2), Window.of(3, 2, 1)], ids=str)
def test_a_gradient_is_a_sum_without_negative_zeros(window):
    x = image((2, 6, 6, 18))
    for backend in NATIVE:
        with use_backend(backend):
            y, tap = pool.max_pool(window, x)
            dy = torch.full_like(y, -0.0)
            assert not pool.max_pool_backward(window, dy, tap, (6, 6)).signbit().any()
            assert not pool.average_pool_backward(window, dy, (6, 6)).signbit().any()


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_the_first_of_equal_maxima_wins(window):
    compare_max(window, image((3, 8, 9, 21), ties=True))
    compare_max(window, torch.full((2, 6, 6, 9), -torch.inf))


def test_a_nan_wins():
    x = image((2, 6, 6, 9))
    x[1, 2, 3, 4] = torch.nan
    for backend in ALL:
        with use_backend(backend):
            for window in (Window.of(3, 2, 1), Window.of(2)):
                y = pool.max_pool(window, x).y
                expected = F.max_pool2d(nchw(x), window.kernel, window.stride, window.padding)
                expected = expected.permute(1, 2, 3, 0)
                torch.testing.assert_close(y.double(), expected, equal_nan=True, rtol=0, atol=0)


def test_a_window_of_more_than_256_taps():
    x = image((3, 20, 20, 9))
    window = Window.of(20)
    assert Window.of(16).index_dtype == torch.uint8 and window.index_dtype == torch.int32
    compare_max(window, x)
    compare_max(Window.of(16), x)
    compare_average(window, x)


@pytest.mark.parametrize("size", [1, (1, 1), (2, 3), (7, 7), (3, 11), (12, 16)])
@pytest.mark.parametrize("batch", [1, 16, 33])
def test_adaptive_windows(size, batch):
    compare_adaptive(size, image((4, 7, 11, batch)))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_geometry(data):
    pair = lambda lo, hi: st.tuples(st.integers(lo, hi), st.integers(lo, hi))  # noqa: E731
    kernel = data.draw(pair(1, 5))
    padding = data.draw(st.tuples(*(st.integers(0, k // 2) for k in kernel)))
    window = Window(kernel, data.draw(pair(1, 4)), padding)
    size, batch, threads = data.draw(pair(1, 13)), data.draw(st.integers(1, 70)), data.draw(st.integers(1, 2))
    x = image((data.draw(st.integers(1, 4)), *size, batch), ties=data.draw(st.booleans()))
    if all(n + 2 * p >= k for n, k, p in zip(size, kernel, padding, strict=True)):
        compare_max(window, x, threads)
        compare_average(window, x, threads)
    else:
        with pytest.raises(ValueError, match="window fits into"):
            window.output_size(*size)
    compare_adaptive(data.draw(pair(1, 9)), x, threads)


@pytest.mark.parametrize("window", [Window.of(3, 2, 1), Window.of(2)], ids=str)
def test_threads_do_not_change_a_bit(window):
    x = image((9, 11, 10, 40))
    results = []
    for threads in (1, 2, 3):
        with use_threads(threads):
            y, index = pool.max_pool(window, x)
            average = pool.average_pool(window, x)
            results.append(
                [
                    y,
                    index,
                    average,
                    pool.max_pool_backward(window, y, index, (11, 10)),
                    pool.average_pool_backward(window, average, (11, 10)),
                    pool.adaptive_average_pool_backward(pool.adaptive_average_pool(x, 3), (11, 10)),
                ]
            )
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_an_empty_batch():
    x = torch.zeros(3, 4, 4, 0)
    y, index = pool.max_pool(Window.of(2), x)
    assert y.shape == index.shape == (3, 2, 2, 0)
    assert pool.max_pool_backward(Window.of(2), y, index, (4, 4)).shape == x.shape
    assert pool.adaptive_average_pool(x, 1).shape == (3, 1, 1, 0)


def test_bad_input_is_refused():
    window, x = Window.of(2), image((3, 6, 6, 8))
    y, index = pool.max_pool(window, x)
    with pytest.raises(ValueError, match="kernel and stride from 1"):
        Window.of(2, 0)
    with pytest.raises(ValueError, match="padding up to half the kernel"):
        Window.of(3, 1, 2)
    with pytest.raises(ValueError, match="one number or two"):
        Window.of((1, 2, 3))
    with pytest.raises(ValueError, match=r"x as \[channels, height, width, batch\]"):
        pool.max_pool(window, x[0])
    with pytest.raises(ValueError, match="contiguous"):
        pool.average_pool(window, x.transpose(1, 2))
    with pytest.raises(ValueError, match="torch.float32 or torch.float64"):
        pool.average_pool(window, x.half())
    with pytest.raises(ValueError, match=r"dy of \(4, 4\) for an image of \(8, 8\)"):
        pool.max_pool_backward(window, y, index, (8, 8))
    with pytest.raises(ValueError, match=r"dy of \(2, 3\)"):
        pool.average_pool_backward(window, y, (4, 6))
    with pytest.raises(ValueError, match="one shape"):
        pool.max_pool_backward(window, y, index[1:], (6, 6))
    with pytest.raises(ValueError, match="torch.uint8"):
        pool.max_pool_backward(window, y, index.int(), (6, 6))
    with pytest.raises(ValueError, match="sizes from 1"):
        pool.adaptive_average_pool(x, 0)
    with pytest.raises(ValueError, match="sizes from 1"):
        pool.adaptive_average_pool_backward(y, (0, 4))
