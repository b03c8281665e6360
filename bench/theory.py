"""Theorem 1 of the paper in numbers: what its constants are for a choice of M, T, E, mu and sigma.

    eta  <= 1 / (mu sqrt(12 M (M - 1) (2M - 1)))       as the lemma has it; the theorem prints it without M
    E*    = (3M + 2) / (2 (M + 1)) E                   local steps, as the schedule makes them count
    S1    = 2 eta^2 M (M - 1) (exp((3M + 2) E / (4 (M^2 - 1))) - 1)
    S2    = sigma_l^2 / (2M - 1) + 3 (2 sigma_g^2 + sigma_p^2)
    D     = eta - 6 S1 (mu - eta)
    S3    = 2 / D ((mu - eta) S1 S2 + 3 mu^2 eta^3 (3M + 2) E / (2 (M + 1) M) (sigma_l^2 + sigma_g^2))
    bound = 2 (f0 - f*) / (T D) + S3                   on the least squared norm of the gradient

The bound says something only where D > 0, which the condition on eta does not give: S1 grows with eta^2, so
D > 0 needs 12 M (M - 1) (exp(.) - 1) eta (mu - eta) < 1. `usable` is the largest eta that meets both.
"""

from dataclasses import dataclass
from math import exp, log, sqrt
from typing import Any

from fl.errors import ConfigError

Row = dict[str, Any]
NEIGHBOURS = (2, 5, 10, 20, 50)  # M of the table
GAP = log(10)  # cross-entropy of ten classes before anything is learned


@dataclass(frozen=True)
class Setting:
    """M neighbours, T rounds, E local steps; mu-smooth losses; variances; f0 - f*."""

    M: int = 10
    T: int = 500
    E: int = 5
    mu: float = 1.0
    sigma_l: float = 1.0
    sigma_g: float = 1.0
    sigma_p: float = 1.0
    gap: float = GAP

    def __post_init__(self) -> None:
        if self.M < 2 or min(self.T, self.E) < 1 or self.mu <= 0:
            raise ConfigError(f"expected M > 1, T and E from 1 on and mu above 0, got {self}")


def eta_bound(s: Setting) -> float:
    """The lemma's condition."""
    return eta_printed(s) / sqrt(s.M)


def eta_printed(s: Setting) -> float:
    """The theorem's, which lacks the M."""
    return 1 / (s.mu * sqrt(12 * (s.M - 1) * (2 * s.M - 1)))


def eta_usable(s: Setting) -> float:
    """No eta below it makes the bound negative or breaks the condition."""
    c = 6 * s1(s, 1.0)  # S1 / eta^2, six times:  c eta (mu - eta) < 1
    root = s.mu**2 - 4 / c
    return eta_bound(s) if root < 0 else min(eta_bound(s), (s.mu - sqrt(root)) / 2)


def local_steps(s: Setting) -> float:
    """E*"""
    return (3 * s.M + 2) / (2 * (s.M + 1)) * s.E


def s1(s: Setting, eta: float) -> float:
    return 2 * eta**2 * s.M * (s.M - 1) * (exp((3 * s.M + 2) * s.E / (4 * (s.M**2 - 1))) - 1)


def s2(s: Setting) -> float:
    return s.sigma_l**2 / (2 * s.M - 1) + 3 * (2 * s.sigma_g**2 + s.sigma_p**2)


def denominator(s: Setting, eta: float) -> float:
    """D"""
    return eta - 6 * s1(s, eta) * (s.mu - eta)


def s3(s: Setting, eta: float) -> float:
    drift = 3 * s.mu**2 * eta**3 * (3 * s.M + 2) * s.E / (2 * (s.M + 1) * s.M)
    inner = (s.mu - eta) * s1(s, eta) * s2(s) + drift * (s.sigma_l**2 + s.sigma_g**2)
    return 2 / denominator(s, eta) * inner


def bound(s: Setting, eta: float) -> float:
    return 2 * s.gap / (s.T * denominator(s, eta)) + s3(s, eta)


def row(s: Setting, eta: float | None = None) -> Row:
    """Every constant; by default at half the usable eta. No bound where D <= 0."""
    eta = eta_usable(s) / 2 if eta is None else eta
    says = denominator(s, eta) > 0
    return {
        "M": s.M,
        "eta_bound": eta_bound(s),
        "eta_printed": eta_printed(s),
        "eta_usable": eta_usable(s),
        "eta": eta,
        "E_star": local_steps(s),
        "S1": s1(s, eta),
        "S2": s2(s),
        "S3": s3(s, eta) if says else None,
        "bound": bound(s, eta) if says else None,
    }
