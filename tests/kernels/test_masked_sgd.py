"""sparsefl.kernels.masked_sgd against float64 and against torch.optim.SGD."""

import pytest
import torch
from helpers import assert_close, host, on, randn, random_bitmap, variants

from sparsefl.kernels import bitmap, use_backend, use_threads
from sparsefl.kernels.masked_sgd import masked_sgd_

SETTINGS = {
    "plain": {"lr": 0.1},
    "decay": {"lr": 0.1, "weight_decay": 0.05, "scale": 0.3},
    "momentum": {"lr": 0.1, "weight_decay": 0.05, "momentum": 0.9},
    "nesterov": {"lr": 0.1, "weight_decay": 0.05, "momentum": 0.9, "nesterov": True, "scale": 0.5},
}


def step(variant, n, settings, dtype, through=None):
    w, g = randn(n, 1).to(dtype), randn(n if through is None else through.segments.numel, 2).to(dtype)
    u = randn(n, 3).to(dtype) if "momentum" in settings else None
    if through is not None:
        g[~bitmap.to_mask(through)] = torch.nan  # a hole that is used shows up in w
    with on(variant) as put:
        w, g, u, through = put((w, g, u, through))
        masked_sgd_(w, g, u, through=through, **settings)
        return host((w, u))


@pytest.mark.parametrize("variant", variants("masked_sgd"))
@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 1023, 1024, 1025])
@pytest.mark.parametrize("settings", SETTINGS)
def test_matches_float64(variant, n, settings):
    w, u = step(variant, n, SETTINGS[settings], torch.float32)
    w64, u64 = step("reference", n, SETTINGS[settings], torch.float64)
    assert_close(w, w64, terms=2)
    if u is not None:
        assert_close(u, u64, terms=2)


@pytest.mark.parametrize("variant", variants("masked_sgd"))
@pytest.mark.parametrize("sizes", [(1,), (64, 0, 65), (1000, 1, 2000)])
@pytest.mark.parametrize("density", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("settings", ["decay", "nesterov"])
def test_dense_gradient_is_read_through_the_bitmap(variant, sizes, density, settings):
    through = random_bitmap(sizes, density)
    w, u = step(variant, through.nnz, SETTINGS[settings], torch.float32, through)
    w64, u64 = step("reference", through.nnz, SETTINGS[settings], torch.float64, through)
    assert_close(w, w64, terms=2)
    if u is not None:
        assert_close(u, u64, terms=2)


@pytest.mark.parametrize("variant", variants("masked_sgd"))
@pytest.mark.parametrize("nesterov", [False, True])
def test_three_steps_are_torchs(variant, nesterov):
    theirs = torch.nn.Parameter(randn(50))
    rival = torch.optim.SGD([theirs], lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=nesterov)
    for t in range(3):
        theirs.grad = randn(50, 10 + t)
        rival.step()
    how = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": nesterov}
    with on(variant) as put:
        ours, u = put(randn(50)), put(torch.zeros(50))
        for t in range(3):
            masked_sgd_(ours, put(randn(50, 10 + t)), u, **how)
        ours = ours.cpu()
    assert_close(ours, theirs.detach(), terms=4)


def test_threads_do_not_change_the_result():
    results = []
    for threads in (1, 2, 3):
        w = randn(200_001)
        with use_threads(threads):
            masked_sgd_(w, randn(200_001, 1), lr=0.1, weight_decay=0.01)
        results.append(w)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"g": torch.zeros(4)}, "expected one shape"),
        ({"g": torch.zeros(5, dtype=torch.float64)}, "expected one dtype"),
        ({"g": torch.zeros(5, dtype=torch.int32)}, "expected dtype"),
        ({"g": torch.zeros(10)[::2]}, "contiguous"),
        ({"g": torch.zeros(5, 1)}, "1-D"),
        ({"momentum": 0.9}, "expected u exactly when"),
        ({"u": torch.zeros(5)}, "expected u exactly when"),
        ({"nesterov": True}, "momentum with nesterov"),
        ({"through": random_bitmap([9], 1.0)}, "expected 9 packed values"),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(change, message):
    w = torch.ones(5)
    with pytest.raises(ValueError, match=message):
        masked_sgd_(**({"w": w, "g": torch.ones(5), "lr": 0.1} | change))
    assert torch.equal(w, torch.ones(5))


def test_native_kernels_refuse_float64():
    with use_backend("cpu"), pytest.raises(ValueError, match="use_backend\\('reference'\\)"):
        masked_sgd_(torch.ones(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64), lr=0.1)
