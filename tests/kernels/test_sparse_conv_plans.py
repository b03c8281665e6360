"""sparsefl.kernels.sparse_conv.plans: plans are made once, and bounded in number."""

import gc
from concurrent.futures import ThreadPoolExecutor

import torch
from helpers import random_bitmap

from sparsefl.kernels import sparse_conv as sc
from sparsefl.kernels import use_backend
from sparsefl.kernels.sparse_conv import plans
from sparsefl.kernels.sparse_conv.plans import Plans


class Made:
    """Something that can be referred to weakly."""


def test_a_plan_is_made_once():
    kept = Plans()
    assert kept.plan("a", Made) is kept.plan("a", Made)
    assert kept.plan("b", Made) is not kept.plan("a", Made)
    assert len(kept) == 2


def test_the_least_recently_used_plan_is_dropped():
    kept = Plans(most=2)
    a, b = kept.plan("a", Made), kept.plan("b", Made)
    kept.plan("a", Made)
    kept.plan("c", Made)
    assert len(kept) == 2
    assert kept.plan("a", Made) is a
    assert kept.plan("b", Made) is not b


def test_a_part_lives_as_long_as_a_plan_that_holds_it():
    kept = Plans(most=1)
    first, second = [kept.plan(size, lambda: [kept.part("sweep", Made)])[0] for size in (1, 2)]
    assert first is second and kept.parts() == [first]
    del first, second
    kept.plan("other", Made)
    gc.collect()
    assert not kept.parts()


def test_threads_make_a_plan_once():
    kept, made = Plans(), []
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: kept.plan(i % 4, lambda: made.append(i) or Made()), range(400)))
    assert len(made) == 4


def test_a_convolution_keeps_a_bounded_number_of_plans_and_sweeps():
    conv = sc.Conv(random_bitmap([4 * 3 * 9], 0.5, seed=0), 4, 3, (3, 3), 2, (1, 1))
    values = torch.ones(conv.bitmap.nnz)
    with use_backend("cpu"):
        for size in range(3, 3 + 2 * plans.MOST):
            x = torch.ones(3, size, size, 1)
            y = sc.forward(conv, values, x, kernel="sparse")
            sc.input_gradient(conv, values, y, (size, size), kernel="sparse")
        assert len(conv.plans) == plans.MOST
        gc.collect()
        assert 0 < len(conv.plans.parts()) <= plans.MOST // 2 * (1 + 4)  # a gradient of stride 2 has four
