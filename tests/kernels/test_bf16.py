"""Convolutions and norms on bfloat16 images against float64, on every instruction set, with and without the
instruction for products of pairs."""

from contextlib import nullcontext

import pytest
import torch
from helpers import random_bitmap, variants

from sparsefl.kernels import memory, native, norm, use_backend, use_threads
from sparsefl.kernels import sparse_conv as sc
from sparsefl.kernels.native import without_bf16_dot

EPS = torch.finfo(torch.bfloat16).eps
ISAS = variants("sparse_conv", without=["reference"])
DOTS = [nullcontext, without_bf16_dot]
SHAPES = [  # out, in, kernel, stride, padding, dilation, height, width, batch
    (5, 3, (3, 3), 1, (1, 1), (1, 1), 6, 7, 32),
    (7, 9, (3, 3), 1, (1, 1), (1, 1), 9, 8, 33),
    (4, 6, (3, 3), 2, (1, 1), (1, 1), 8, 9, 64),
    (6, 4, (1, 1), 2, (0, 0), (1, 1), 7, 5, 7),
    (8, 40, (3, 3), 1, (1, 1), (1, 1), 4, 4, 32),
    (3, 2, (5, 2), 1, (0, 1), (1, 2), 9, 9, 1),
    (70, 33, (1, 1), 1, (0, 0), (1, 1), 1, 1, 20),
]


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def spoil_idle_memory():
    for size in (1 << 20, 1 << 16):
        memory.empty((size,), torch.empty(0)).fill_(float("nan"))


def directions(conv, values, x, dy, bias, kernel):
    return {
        "y": sc.forward(conv, values, x, bias, kernel=kernel),
        "dx": sc.input_gradient(conv, values, dy, tuple(x.shape[1:3]), kernel=kernel),
        "dv": sc.weight_gradient(conv, x, dy, kernel=kernel),
    }


@pytest.mark.parametrize("variant", ISAS)
@pytest.mark.parametrize("dot", DOTS)
@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_convolution(variant, dot, density, shape):
    out, into, kernel, stride, padding, dilation, height, width, batch = shape
    bitmap = random_bitmap([out * into * kernel[0] * kernel[1]], density, seed=out)
    conv = sc.Conv(bitmap, out, into, kernel, stride, padding, dilation)
    values, bias = drawn(bitmap.nnz, seed=1).float(), drawn(out, seed=2).float()
    x, dy = drawn(into, height, width, batch), drawn(out, *conv.output_size(height, width), batch, seed=3)
    given = values, x, dy, bias
    with use_backend("reference"):
        wanted = directions(conv, *(t.double() for t in given), None)
        sizes = directions(conv, *(t.double().abs() for t in given), None)
    for name in (kernel for kernel in sc.candidates(conv) if not sc.split(kernel)[1]):
        spoil_idle_memory()
        with use_backend(variant), dot(), use_threads(2):
            found = directions(conv, *given, name)
        for what, result in found.items():
            assert result.dtype == (torch.float32 if what == "dv" else torch.bfloat16)
            # inputs and weights are exact here: a sum is float32, and its result is rounded once
            exact = what == "dv" and name != "torch"
            rounding = 0.0 if exact else EPS / 2 * wanted[what].abs()
            sums = 1e-4 if name == "winograd" else 1e-5
            error = (result.double() - wanted[what]).abs() - rounding
            assert (error <= sums * sizes[what].max()).all() if result.numel() else True, (name, what)


@pytest.mark.parametrize("variant", ISAS)
def test_weights_are_rounded_to_the_nearest_where_they_meet_pairs(variant):
    """The master values stay as they are; the sparse kernel sees what bfloat16 makes of them."""
    conv = sc.Conv(random_bitmap([4 * 6 * 9], 0.5), 4, 6, (3, 3), 1, (1, 1))
    values = torch.randn(conv.bitmap.nnz, generator=torch.Generator().manual_seed(0))
    x = drawn(6, 5, 5, 32)
    with use_backend(variant):
        found = sc.forward(conv, values, x, kernel="sparse")
        wanted = sc.forward(conv, values.bfloat16().float(), x, kernel="sparse")
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("variant", ISAS)
def test_infinities_and_nans_stay(variant):
    conv = sc.Conv(random_bitmap([4], 1.0), 2, 2)
    x = torch.tensor([float("nan"), float("inf"), -1.0, 3e38]).bfloat16().repeat(2, 1, 1, 8)
    with use_backend(variant):
        y = sc.forward(conv, torch.ones(4), x, kernel="sparse")
    assert y[0, 0, 0, :3].isnan().tolist() == [True, False, False]
    assert y[0, 0, 0, 1:4].tolist() == [float("inf"), -2.0, float("inf")]


@pytest.mark.parametrize("variant", ISAS)
@pytest.mark.parametrize("batch", [1, 5, 16, 33])
@pytest.mark.parametrize("kind", ["group", "batch"])
@pytest.mark.parametrize("relu", [False, True])
def test_norms(variant, batch, kind, relu):
    x, dy = (2 + drawn(8, 3, 5, batch)).bfloat16(), drawn(8, 3, 5, batch, seed=1)
    gamma, beta = drawn(8, seed=2).float(), drawn(8, seed=3).float()

    def run(x, dy, gamma, beta):
        if kind == "group":
            out = norm.group_norm(x, 4, gamma, beta, relu=relu)
            return out, norm.group_norm_backward(dy, x, out.mean, out.rstd, gamma, beta, relu=relu)
        out = norm.batch_norm(x, gamma, beta, relu=relu)
        return out, norm.batch_norm_backward(dy, x, out.mean, out.rstd, gamma, beta, relu=relu)

    with use_backend("reference"):
        wanted = run(*(t.double() for t in (x, dy, gamma, beta)))
    with use_backend(variant):
        found = run(x, dy, gamma, beta)
    for a, b in zip((*found[0], *found[1]), (*wanted[0], *wanted[1]), strict=True):
        rounding = EPS / 2 * b.abs() if a.dtype == torch.bfloat16 else 0.0
        assert ((a.double() - b).abs() - rounding <= 2e-5 * b.abs().max()).all()
    assert found[0].mean.dtype == found[1].dgamma.dtype == torch.float32


def test_reference_takes_the_same():
    conv = sc.Conv(random_bitmap([4 * 6 * 9], 0.5), 4, 6, (3, 3), 1, (1, 1))
    values, x = drawn(conv.bitmap.nnz).float(), drawn(6, 5, 5, 32)
    with use_backend("reference"):
        found = sc.forward(conv, values, x)
        wanted = sc.forward(conv, values.double(), x.double())
    assert found.dtype == torch.bfloat16
    assert ((found.double() - wanted).abs() <= EPS * wanted.abs() + 1e-5).all()


def test_refuses_other_weights():
    conv = sc.Conv(random_bitmap([4], 1.0), 2, 2)
    with pytest.raises(ValueError, match=r"expected torch.float32 beside images of torch.bfloat16, got"):
        sc.forward(conv, torch.ones(4, dtype=torch.float64), drawn(2, 1, 1, 4))


def test_dot_is_asked_for():
    assert native.bf16_dot() in (True, False)
    with without_bf16_dot():
        assert not native.bf16_dot()
