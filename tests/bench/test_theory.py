"""Theorem 1's constants against values worked out by hand."""

import math

import pytest

from sparsefl.bench import theory
from sparsefl.bench.theory import Setting


def test_step_sizes():
    assert theory.eta_bound(Setting(M=2)) == pytest.approx(1 / math.sqrt(72))  # 12 * 2 * 1 * 3
    assert theory.eta_printed(Setting(M=2)) == pytest.approx(1 / 6)
    assert theory.eta_bound(Setting(M=10, mu=3.0)) == pytest.approx(1 / (3 * math.sqrt(20520)))
    assert theory.eta_bound(Setting(M=10)) == pytest.approx(0.0069809, rel=1e-5)


@pytest.mark.parametrize(("M", "ratio"), [(2, 4 / 3), (10, 32 / 22), (1000, 3002 / 2002)])
def test_local_steps(M, ratio):
    assert theory.local_steps(Setting(M=M, E=5)) == pytest.approx(5 * ratio)


def test_constants_by_hand():
    """M = 2, E = 1: exp(8 / 12) - 1 = 0.94773404; eta = 0.01, mu = 1, sigma = 1, 2, 3."""
    s = Setting(M=2, T=100, E=1, mu=1.0, sigma_l=1.0, sigma_g=2.0, sigma_p=3.0, gap=2.0)
    S1 = 0.0004 * 0.94773404
    S2 = 1 / 3 + 3 * (2 * 4 + 9)
    D = 0.01 - 6 * S1 * 0.99
    assert theory.s1(s, 0.01) == pytest.approx(S1, rel=1e-7)
    assert theory.s2(s) == pytest.approx(S2) == pytest.approx(51.333333333)
    assert theory.denominator(s, 0.01) == pytest.approx(D, rel=1e-6) == pytest.approx(0.00774818, rel=1e-5)
    inner = 0.99 * S1 * S2 + 3e-6 * 8 / 12 * (1 + 4)  # 0.01927567
    assert theory.s3(s, 0.01) == pytest.approx(2 * inner / D, rel=1e-6) == pytest.approx(4.97554, rel=1e-4)
    assert theory.bound(s, 0.01) == pytest.approx(4.0 / (100 * D) + 2 * inner / D, rel=1e-6)


@pytest.mark.parametrize("M", [2, 5, 10, 50])
@pytest.mark.parametrize("E", [1, 5])
@pytest.mark.parametrize("mu", [0.01, 1.0, 30.0])
def test_usable_steps(M, E, mu):
    s = Setting(M=M, E=E, mu=mu)
    most = theory.eta_usable(s)
    assert 0 < most <= theory.eta_bound(s)
    assert all(theory.denominator(s, most * share) > 0 for share in (0.01, 0.5, 0.999))
    assert most == theory.eta_bound(s) or theory.denominator(s, most) == pytest.approx(0, abs=1e-12)


def test_the_condition_on_eta_is_not_enough():
    """At the paper's M = 10, E = 5 the largest eta that Theorem 1 allows leaves nothing to divide by."""
    s = Setting()
    assert theory.denominator(s, theory.eta_bound(s)) < 0
    row = theory.row(s, theory.eta_bound(s))
    assert row["S3"] is None and row["bound"] is None
    usual = theory.row(s)
    assert usual["eta"] == usual["eta_usable"] / 2 and usual["bound"] > usual["S3"] > 0


def test_more_rounds_lower_the_bound():
    bounds = [theory.row(Setting(T=T))["bound"] for T in (100, 500, 10**9)]
    assert bounds[0] > bounds[1] > bounds[2] == pytest.approx(theory.row(Setting())["S3"], rel=1e-5)


@pytest.mark.parametrize("wrong", [{"M": 1}, {"T": 0}, {"E": 0}, {"mu": 0.0}])
def test_refusals(wrong):
    with pytest.raises(ValueError, match="expected M > 1"):
        Setting(**wrong)
