"""The rule: the cheapest by constants, thresholds without; what the package brings fits."""

import json
from importlib.resources import files

import pytest

import sparse_engine as se
from sparse_engine.choice import cost, rule
from sparse_engine.choice.cost import Case
from sparse_engine.choice.rule import BUILT_IN, Rule
from sparsefl.kernels import native
from sparsefl.kernels import sparse_conv as sc
from sparsefl.kernels.sparse_conv import Geometry

LAYER = Geometry(64, 64, (3, 3), 1, (1, 1), density=0.5)
IMAGE = (16, 16, 32)


@pytest.mark.parametrize("name", sorted(set(BUILT_IN.values())))
def test_constants_of_the_package_fit_its_kernels(name):
    told = json.loads(files("sparse_engine.choice").joinpath(f"{name}.json").read_text())
    for key, constants in told.items():
        rule.check(key, constants)
    for direction in sc.DIRECTIONS:
        for kind in ("conv", "linear"):
            for kernel in ("sparse avx2", "dense avx2", "sparse avx512", "dense avx512", "torch"):
                assert f"{kernel} {direction} {kind}" in told


def test_the_cheapest_is_taken():
    case = Case(LAYER, "forward", IMAGE)
    every = {
        cost.name(case, k): (1.0, *[0.0] * (cost.NUMBER[sc.split(k)[0]] - 1)) for k in sc.candidates(LAYER)
    }
    for kernel in sc.candidates(LAYER):
        cheap = every | {cost.name(case, kernel): (0.5, *every[cost.name(case, kernel)][1:])}
        assert Rule("x", cheap).kernel(LAYER, "forward", IMAGE) == kernel


def test_programs_get_no_kernel_of_torch():
    key = cost.name(Case(LAYER, "forward", IMAGE), "torch")
    sparse = cost.name(Case(LAYER, "forward", IMAGE), "sparse")
    found = Rule("x", {key: (0.0,) * 10, sparse: (1.0, *[0.0] * 10)})
    assert found.kernel(LAYER, "forward", IMAGE) == "torch"
    assert found.kernel(LAYER, "forward", IMAGE, native_only=True) == "sparse"


def test_without_constants_for_an_instruction_set_thresholds_decide():
    with se.use_isa("baseline"):
        assert rule.named("zen").kernel(LAYER, "forward", IMAGE, native_only=True) in sc.NATIVE
    assert Rule().kernel(LAYER, "forward", IMAGE) == sc.suggest(LAYER, "forward", *IMAGE)


def test_masks_that_differ_by_little_share_a_choice():
    assert rule.share(0.5004) == rule.share(0.497) == 0.5
    assert rule.share(0.052) == rule.share(0.048) == 0.05
    assert rule.share(0.0) == 0.01 and rule.share(0.99) == 1.0


@pytest.mark.skipif("avx512" not in native.isas(), reason="needs AVX-512")
def test_of_both_instruction_sets_each_wins_somewhere():
    """The built-in constants of Zen: a choice that is always the same would be none."""
    zen = rule.named("zen")
    with se.use_isa("avx512"):
        found = {
            sc.split(zen.kernel(Geometry(c, c, (3, 3), 1, (1, 1), density=d), "forward", (s, s, n)))[1]
            for c, s in ((16, 32), (64, 32), (128, 16), (256, 8), (512, 4))
            for d in (0.05, 0.2, 0.5, 1.0)
            for n in (8, 32, 128)
        }
    assert found == {"", "avx2"}
