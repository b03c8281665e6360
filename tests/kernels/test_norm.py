"""sparsefl.kernels.norm against torch's own norms and autograd in float64, on every native variant."""

import pytest
import torch
from helpers import variants
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from sparsefl.kernels import norm, use_backend, use_threads

NATIVE = variants("norm", without=["reference"])
TOLERANCE = 1e-5  # relative to the largest, in float32; of sums, to the size that they have by chance
EPS = 1e-5


def case(shape, *, mean=0.0, std=1.0, affine=True, seed=0):
    draw = torch.Generator().manual_seed(seed)
    x = mean + std * torch.randn(shape, generator=draw)
    dy = torch.randn(shape, generator=draw)
    gamma, beta = torch.randn(2, shape[0], generator=draw).unbind() if affine else (None, None)
    return x, dy, gamma, beta


def nchw(x):
    return x.double().permute(3, 0, 1, 2).contiguous()


def batch_last(x):
    return x.permute(1, 2, 3, 0)


def autograd(layer, x, dy, gamma, beta, relu):
    """The results of torch's layer(x, gamma, beta) in float64, batch-last."""
    leaves = [nchw(x).requires_grad_()]
    leaves += [None if t is None else t.double().requires_grad_() for t in (gamma, beta)]
    before = layer(*leaves)
    y = before.relu() if relu else before
    y.backward(nchw(dy))
    x_, gamma_, beta_ = leaves
    grads = [None if t is None else t.grad for t in (gamma_, beta_)]
    return {
        "y": batch_last(y.detach()),
        "dx": batch_last(x_.grad),
        "dgamma": grads[0],
        "dbeta": grads[1],
        "before": batch_last(before.detach()),
    }


def away_from_the_kink(x, dy, gamma, beta, layer):
    """dy with zeros where rounding may decide on which side of relu's kink y falls."""
    leaves = [nchw(x), *(None if t is None else t.double() for t in (gamma, beta))]
    return torch.where(batch_last(layer(*leaves)).abs() < 1e-4, 0.0, dy).contiguous()


def check(found, expected):
    for name in ("y", "dx", "dgamma", "dbeta"):
        if expected[name] is None:
            assert found[name] is None
            continue
        by_chance = (expected["y"][0].numel() ** 0.5) if name in ("dgamma", "dbeta") else 1e-30
        scale = expected[name].abs().max().clamp(min=by_chance)
        off = ((found[name].double() - expected[name]).abs().max() / scale).item()
        assert off <= TOLERANCE, f"{name} is off by {off:.3g}"


def named(normed, gradients):
    return normed._asdict() | gradients._asdict()


def run_group_norm(x, dy, gamma, beta, groups, relu):
    forward = norm.group_norm(x, groups, gamma, beta, eps=EPS, relu=relu)
    return named(forward, norm.group_norm_backward(dy, x, forward.mean, forward.rstd, gamma, beta, relu=relu))


def run_batch_norm(x, dy, gamma, beta, relu, running=(None, None), training=True):
    how = {"training": training, "relu": relu}
    forward = norm.batch_norm(x, gamma, beta, *running, eps=EPS, **how)
    return named(forward, norm.batch_norm_backward(dy, x, forward.mean, forward.rstd, gamma, beta, **how))


def compare_group_norm(shape, groups, *, relu=False, threads=1, backends=NATIVE, **data):
    x, dy, gamma, beta = case(shape, **data)
    layer = lambda x, gamma, beta: F.group_norm(x, groups, gamma, beta, EPS)  # noqa: E731
    if relu:
        dy = away_from_the_kink(x, dy, gamma, beta, layer)
    expected = autograd(layer, x, dy, gamma, beta, relu)
    for backend in backends:
        with use_backend(backend), use_threads(threads):
            check(run_group_norm(x, dy, gamma, beta, groups, relu), expected)


def compare_batch_norm(shape, *, relu=False, training=True, running=True, backends=NATIVE, **data):
    x, dy, gamma, beta = case(shape, **data)
    start = (torch.randn(shape[0]), torch.rand(shape[0]) + 0.5) if running else (None, None)

    def layer(x, gamma, beta, after=None):
        after = [None if t is None else t.double() for t in start] if after is None else after
        return F.batch_norm(x, *after, gamma, beta, training, 0.1, EPS)

    if relu:
        dy = away_from_the_kink(x, dy, gamma, beta, layer)
    expected = autograd(layer, x, dy, gamma, beta, relu)
    after = [None if t is None else t.double() for t in start]
    layer(nchw(x), None, None, after)
    for backend in backends:
        kept = [None if t is None else t.clone() for t in start]
        with use_backend(backend):
            check(run_batch_norm(x, dy, gamma, beta, relu, kept, training), expected)
        if running:
            for found, wanted in zip(kept, after, strict=True):
                torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("batch", [1, 7, 8, 16, 20, 33, 64, 100, 300])
@pytest.mark.parametrize(("channels", "groups"), [(6, 3), (5, 1), (7, 7), (24, 8)])
def test_group_norm(channels, groups, batch, relu):
    compare_group_norm((channels, 4, 5, batch), groups, relu=relu)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("batch", [1, 7, 16, 33])
@pytest.mark.parametrize("size", [(1, 3), (4, 4), (9, 11)])
def test_batch_norm(size, batch, relu):
    compare_batch_norm((5, *size, batch), relu=relu)
    compare_batch_norm((5, *size, batch), relu=relu, training=False)


@pytest.mark.parametrize(("mean", "std"), [(100.0, 1.0), (-1000.0, 10.0), (3e-4, 1e-2), (5.0, 50.0)])
@pytest.mark.parametrize("relu", [False, True])
def test_data_with_a_large_mean(mean, std, relu):
    """mean is rounded to float32, as torch's is: 1e-5 is as much as that allows at mean / std = 100."""
    compare_group_norm((4, 16, 16, 9), 2, relu=relu, mean=mean, std=std)
    compare_batch_norm((4, 16, 16, 9), relu=relu, mean=mean, std=std)


def test_an_outlier_in_front_does_not_spoil_the_variance():
    x = 100 + torch.randn(2, 32, 32, 8)
    x[0, 0, 0] = -1e4
    expected = (nchw(x).reshape(8, -1).var(1, correction=0) + EPS).rsqrt()
    for backend in NATIVE:
        with use_backend(backend):
            rstd = norm.group_norm(x, 1, eps=EPS).rstd[0].double()
            assert ((rstd / expected - 1).abs() < 2e-6).all()


@pytest.mark.parametrize("size", [(1, 1), (1, 13), (1, 1009), (7, 7), (32, 32)])
@pytest.mark.parametrize("batch", [1, 3, 17])
def test_sizes_that_fold_into_rows_or_do_not(size, batch):
    compare_group_norm((6, *size, batch), 2)


def test_without_gamma_or_beta():
    compare_group_norm((6, 5, 5, 10), 3, affine=False)
    compare_group_norm((6, 5, 5, 10), 3, affine=False, relu=True)
    compare_batch_norm((6, 5, 5, 10), affine=False, running=False)
    x, dy, gamma, _ = case((6, 5, 5, 10))
    found = norm.group_norm(x, 3, gamma)
    assert torch.equal(found.y, norm.group_norm(x, 3, gamma, torch.zeros(6)).y)
    assert norm.group_norm_backward(dy, x, found.mean, found.rstd, gamma).dbeta is None


def test_reference_is_the_same_layer():
    compare_group_norm((6, 5, 4, 10), 3, relu=True, backends=["reference"])
    compare_batch_norm((6, 5, 4, 10), relu=True, backends=["reference"])
    compare_batch_norm((6, 5, 4, 10), training=False, backends=["reference"])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_shape(data):
    groups, each = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 5))
    size = data.draw(st.tuples(st.integers(1, 12), st.integers(1, 12)))
    batch = data.draw(st.integers(1, 70))
    how = {
        "relu": data.draw(st.booleans()),
        "affine": data.draw(st.booleans()),
        "seed": data.draw(st.integers(0, 9)),
    }
    # A group of few values may have nearly none to divide by: then no float32 can agree with float64.
    if each * size[0] * size[1] >= 8:
        compare_group_norm((groups * each, *size, batch), groups, threads=data.draw(st.integers(1, 3)), **how)
    if size[0] * size[1] * batch >= 8:
        compare_batch_norm((groups * each, *size, batch), training=data.draw(st.booleans()), **how)


@pytest.mark.parametrize(("groups", "batch"), [(8, 40), (1, 130), (12, 5)])
def test_threads_do_not_change_a_bit(groups, batch):
    x, dy, gamma, beta = case((24, 7, 6, batch))
    results = []
    for threads in (1, 2, 3):
        with use_threads(threads):
            found = run_group_norm(x, dy, gamma, beta, groups, True)
            found |= {f"batch {k}": t for k, t in run_batch_norm(x, dy, gamma, beta, True).items()}
            results.append(found)
    for name, first in results[0].items():
        assert all(torch.equal(first, other[name]) for other in results[1:]), name


def test_a_nan_stays_one():
    x, _, gamma, beta = case((4, 3, 3, 9))
    x[1, 1, 1, 2] = torch.nan
    for backend in NATIVE:
        with use_backend(backend):
            y = norm.group_norm(x, 2, gamma, beta, relu=True).y
            assert y[:2, :, :, 2].isnan().all() and not y[2:].isnan().any() and not y[..., 3:].isnan().any()


def test_an_empty_batch():
    x = torch.zeros(4, 3, 3, 0)
    y, mean, rstd = norm.group_norm(x, 2, torch.ones(4), torch.ones(4))
    assert y.shape == x.shape and mean.shape == (2, 0)
    gradients = norm.group_norm_backward(x, x, mean, rstd, torch.ones(4), torch.ones(4))
    assert not gradients.dgamma.any() and not gradients.dbeta.any()


def test_bad_input_is_refused():
    x, dy, gamma, beta = case((6, 4, 4, 8))
    _, mean, rstd = norm.group_norm(x, 3, gamma, beta)
    with pytest.raises(ValueError, match=r"expected x as \[channels, height, width, batch\]"):
        norm.group_norm(x[0], 3)
    with pytest.raises(ValueError, match="groups that divide 6 channels, got 4"):
        norm.group_norm(x, 4)
    with pytest.raises(ValueError, match="contiguous"):
        norm.group_norm(x.transpose(1, 2), 3)
    with pytest.raises(ValueError, match=r"gamma as contiguous \(6,\)"):
        norm.group_norm(x, 3, gamma[1:])
    with pytest.raises(ValueError, match="beta as contiguous .* torch.float32"):
        norm.batch_norm(x, gamma, beta.double())
    with pytest.raises(ValueError, match="dy as contiguous"):
        norm.group_norm_backward(dy.transpose(1, 2), x, mean, rstd, gamma, beta)
    with pytest.raises(ValueError, match=r"mean as \[groups, 8\]"):
        norm.group_norm_backward(dy, x, mean[0], rstd[0], gamma, beta)
    with pytest.raises(ValueError, match="rstd as contiguous"):
        norm.group_norm_backward(dy, x, mean, rstd[:, 1:], gamma, beta)
    with pytest.raises(ValueError, match=r"mean as contiguous \(6,\)"):
        norm.batch_norm_backward(dy, x, mean, rstd)
    with pytest.raises(ValueError, match="both or neither"):
        norm.batch_norm(x, gamma, beta, torch.zeros(6))
    with pytest.raises(ValueError, match="when not training, got None"):
        norm.batch_norm(x, training=False)
    with pytest.raises(ValueError, match="more than one value per channel"):
        norm.batch_norm(torch.ones(3, 1, 1, 1))
    with pytest.raises(ValueError, match="torch.float32 or torch.float64"):
        norm.group_norm(x.half(), 3)
