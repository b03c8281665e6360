"""sparsefl.kernels.sparse_conv against dense PyTorch in float64, on every variant."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers import assert_close, random_bitmap, variants
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefl.kernels import memory, native, use_backend, use_threads
from sparsefl.kernels import sparse_conv as sc
from sparsefl.kernels.sparse_conv import _cpu_plan as plan
from sparsefl.kernels.sparse_conv import _cpu_planes as planes
from sparsefl.kernels.sparse_conv._cpu_geometry import FEW_LINEAR
from sparsefl.kernels.sparse_conv._cpu_sweep import Sweep

NATIVE = variants("sparse_conv", without=["reference"])


def case(conv, height, width, batch, seed=0):
    draw = torch.Generator().manual_seed(seed)
    out_height, out_width = conv.output_size(height, width)
    x = torch.randn(conv.in_channels, height, width, batch, generator=draw)
    dy = torch.randn(conv.out_channels, out_height, out_width, batch, generator=draw)
    values = torch.randn(conv.bitmap.nnz, generator=draw)
    return values, x, dy, torch.randn(conv.out_channels, generator=draw)


def run(conv, values, x, dy, bias, kernel=None):
    return {
        "y": sc.forward(conv, values, x, bias, kernel=kernel),
        "dx": sc.input_gradient(conv, values, dy, tuple(x.shape[1:3]), kernel=kernel),
        "dv": sc.weight_gradient(conv, x, dy, kernel=kernel),
    }


def spoil_idle_memory():
    """What is read before it is written, or beyond what is there, shows up in the result."""
    for size in (1 << 20, 1 << 14, 1 << 8):
        memory.empty((size,), torch.empty(0)).fill_(float("nan"))


def compare(conv, height, width, batch, threads=1):
    """All kernels that can run it, on all instruction sets."""
    given = case(conv, height, width, batch)
    with use_backend("reference"):
        expected = run(conv, *(t.double() for t in given))
        sizes = run(conv, *(t.double().abs() for t in given))
    terms = max(conv.in_channels * conv.taps, conv.out_channels * conv.taps, given[2][0].numel())
    for variant, kernel in every_kernel(conv):
        # Winograd's transforms add numbers up to 100 times the result: 1e-4
        allowed = 1e-4 / (4 * torch.finfo(torch.float32).eps) if "winograd" in kernel else terms
        spoil_idle_memory()
        with use_backend(variant), use_threads(threads):
            for name, found in run(conv, *given, kernel).items():
                scale = sizes[name].max().item() if found.numel() else 1.0
                assert_close(found, expected[name], terms=allowed, scale=scale / terms**0.5)


def every_kernel(conv):
    """(variant, kernel); those that name an instruction set run as that variant: test_..._of_its_own."""
    for variant in NATIVE:
        with use_backend(variant):
            kernels = sc.candidates(conv)
        yield from ((variant, kernel) for kernel in kernels if not sc.split(kernel)[1])


def make(out, into, kernel, density, **how):
    bitmap = random_bitmap([out * into * kernel[0] * kernel[1]], density, seed=out + into)
    return sc.Conv(bitmap, out, into, kernel, **how)


@pytest.mark.parametrize("batch", [1, 7, 16, 33, 64])
@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
def test_3x3_matches_dense_torch(batch, density):
    compare(make(20, 17, (3, 3), density, padding=(1, 1)), 6, 9, batch)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("batch", [5, 16, 32, 64, 130])
def test_tiles_of_either_size(monkeypatch, batch, stride, half):
    """Which one runs depends on the processor's first cache."""

    def size(halo, itemsize=4):
        most = native.extension().conv_tile()
        return most // 2 if half and native.extension().conv_vector() == 16 else most

    monkeypatch.setattr(planes, "tile_size", size)
    compare(make(7, 21, (3, 3), 0.3, padding=(1, 1), stride=stride), 5, 6, batch)


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (4, 4), (5, 3), (8, 32)])
@pytest.mark.parametrize("batch", [8, 32])
def test_image_sizes(size, batch):
    compare(make(9, 40, (3, 3), 0.3, padding=(1, 1)), *size, batch)


@pytest.mark.parametrize("batch", [1, 3, 18, 32])
@pytest.mark.parametrize("shape", [(6, 1, 28, 2), (16, 6, 14, 0)], ids=["first", "second"])
def test_layers_of_lenet5(shape, batch):
    out, into, size, padding = shape
    compare(make(out, into, (5, 5), 0.4, padding=(padding, padding)), size, size, batch)


def test_a_winograd_gradient_of_several_passes():
    compare(make(5, 6, (3, 3), 0.8, padding=(1, 1)), 8, 32, batch=64)


def test_winograd_is_for_full_tiles():
    conv = make(40, 40, (3, 3), 0.4, padding=(1, 1))
    assert sc.suggest(conv, "forward", 8, 8, 64) == "winograd"
    assert sc.suggest(conv, "forward", 5, 5, 64) == "sparse"  # 25 of 64 outputs of its tiles
    assert sc.suggest(conv, "input_gradient", 0, 5, 64) == "sparse"


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("padding", [(0, 0), (1, 1), (2, 3)])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 3)])
def test_strides_paddings_and_dilations(stride, padding, dilation):
    compare(make(5, 6, (3, 2), 0.5, stride=stride, padding=padding, dilation=dilation), 9, 10, 18)


@pytest.mark.parametrize("density", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels", [(1, 1), (7, 5), (20, 33)])
def test_every_kernel_serves_any_density(density, stride, channels):
    compare(make(*channels, (3, 3), density, stride=stride, padding=(1, 1)), 7, 6, 18)


def test_many_channels_go_through_several_blocks():
    compare(make(70, 150, (3, 3), 0.5, padding=(1, 0)), 11, 10, 24)


def test_a_kernel_that_does_not_fit_is_refused():
    conv = make(4, 3, (3, 3), 0.5, stride=2)
    values, x, *_ = case(conv, 5, 5, 8)
    with pytest.raises(ValueError, match="expected a kernel of"):
        sc.forward(conv, values, x, kernel="winograd")


@pytest.mark.parametrize("batch", [1, 5, 9, 20, 32, 40, 60, 64, 128, 200])
def test_a_linear_layer_is_a_1x1_convolution(batch):
    compare(make(30, 300, (1, 1), 0.2), 1, 1, batch)


@pytest.mark.parametrize("batch", [7, 32])
def test_a_linear_layer_of_several_blocks_and_groups(batch):
    compare(make(1100, 300, (1, 1), 0.4), 1, 1, batch, threads=2)


@pytest.mark.parametrize("batch", [8, 32, 64, 128])
def test_blocks_of_a_linear_layer_grow_where_rows_are_short(batch):
    conv = make(20, 2000, (1, 1), 0.05)
    (only,) = plan.forward(conv, 1, 1, batch, "sparse").passes
    assert isinstance(only.sweep, Sweep)
    assert only.sweep.block * conv.density >= FEW_LINEAR


@pytest.mark.parametrize("stride", [2, 3])
def test_a_1x1_convolution_skips_what_it_does_not_meet(stride):
    conv = make(12, 10, (1, 1), 0.7, stride=stride)
    compare(conv, 9, 8, 18)
    assert plan.forward(conv, 9, 8, 18, "dense").planes.phases == 1


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_geometry(data):
    small = st.integers(1, 12)
    kernel = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    conv = make(
        data.draw(st.integers(1, 40)),
        data.draw(st.integers(1, 40)),
        kernel,
        data.draw(st.sampled_from([0.0, 0.05, 0.5, 1.0])),
        stride=data.draw(st.integers(1, 3)),
        padding=data.draw(st.tuples(st.integers(0, 2), st.integers(0, 2))),
        dilation=data.draw(st.tuples(st.integers(1, 2), st.integers(1, 2))),
    )
    height, width = data.draw(st.tuples(small, small))
    fits = all(
        n + 2 * p >= d * (k - 1) + 1
        for n, p, d, k in zip((height, width), conv.padding, conv.dilation, kernel, strict=True)
    )
    if fits:
        compare(conv, height, width, data.draw(st.sampled_from([1, 5, 16, 40])), data.draw(st.integers(1, 2)))
    else:
        with pytest.raises(ValueError, match="kernel fits into"):
            conv.output_size(height, width)


@pytest.mark.parametrize(
    ("conv", "size"),
    [
        (make(33, 40, (3, 3), 0.3, padding=(1, 1)), (7, 7, 40)),
        (make(20, 160, (3, 3), 0.3, padding=(1, 1)), (7, 7, 40)),  # Winograd's blocks in groups
        (make(600, 300, (1, 1), 0.4), (1, 1, 32)),
    ],
    ids=["few channels", "many channels", "linear"],
)
def test_threads_do_not_change_a_bit(conv, size):
    given = case(conv, *size)
    for kernel in sc.candidates(conv):
        results = []
        for threads in (1, 2, 3):
            with use_threads(threads):
                results.append(run(conv, *given, kernel))
        for name, first in results[0].items():
            assert all(torch.equal(first, other[name]) for other in results[1:]), (kernel, name)


@pytest.mark.skipif(len(native.isas()) < 3, reason="needs AVX-512 beside AVX2")
@pytest.mark.parametrize(
    ("conv", "size"),
    [
        (make(33, 40, (3, 3), 0.3, padding=(1, 1)), (7, 7, 40)),
        (make(12, 10, (3, 3), 0.5, padding=(1, 1), stride=2), (9, 8, 18)),
        (make(600, 300, (1, 1), 0.4), (1, 1, 32)),
        (make(30, 300, (1, 1), 1.0), (1, 1, 100)),
    ],
    ids=["3x3", "stride", "linear", "full"],
)
def test_a_kernel_on_an_instruction_set_of_its_own_gives_the_bits_of_that_one(conv, size):
    given = case(conv, *size)
    for kernel in sc.candidates(conv):
        name, isa = sc.split(kernel)
        if isa:
            with use_backend("cpu:avx512"):
                found = run(conv, *given, kernel)
                assert native.isa() == "avx512"  # again
            with use_backend(f"cpu:{isa}"):
                expected = run(conv, *given, name)
            assert all(torch.equal(found[key], expected[key]) for key in expected), kernel


def test_candidates_stay_within_the_instruction_set_that_was_asked_for():
    conv = make(4, 3, (3, 3), 0.5)
    for variant in NATIVE:
        with use_backend(variant):
            named = {sc.split(kernel)[1] for kernel in sc.candidates(conv)}
        assert named == ({"", "avx2"} if variant == "cpu:avx512" else {""})


def test_an_instruction_set_holds_for_one_thread_and_not_beyond_an_error():
    here = native.isa()
    with pytest.raises(ZeroDivisionError), native.on("baseline"):
        assert native.isa() == "baseline"
        with ThreadPoolExecutor(1) as others:
            assert others.submit(native.isa).result() == here
        1 / 0  # noqa: B018
    assert native.isa() == here


def test_bad_input_is_refused():
    conv = make(4, 3, (3, 3), 0.5, padding=(1, 1))
    values, x, dy, bias = case(conv, 5, 5, 8)
    with pytest.raises(ValueError, match=r"expected x as \[3, height, width, batch\]"):
        sc.forward(conv, values, x[:2])
    with pytest.raises(ValueError, match="contiguous"):
        sc.forward(conv, values, x.transpose(1, 2))
    with pytest.raises(ValueError, match="packed values"):
        sc.forward(conv, values[1:], x)
    with pytest.raises(ValueError, match="4 biases"):
        sc.forward(conv, values, x, bias[1:])
    with pytest.raises(ValueError, match="one dtype"):
        sc.forward(conv, values, x.double())
    with pytest.raises(ValueError, match=r"dy of \(5, 6\)"):
        sc.input_gradient(conv, values, dy, (5, 6))
    with pytest.raises(ValueError, match="one batch size"):
        sc.weight_gradient(conv, x, dy[..., :4].contiguous())
    with pytest.raises(ValueError, match="bitmap of a weight"):
        sc.Conv(conv.bitmap, 4, 4, (3, 3))
    with pytest.raises(ValueError, match="stride and dilation from 1"):
        sc.Conv(conv.bitmap, 4, 3, (3, 3), stride=0)
