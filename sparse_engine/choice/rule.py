"""The built-in rule: which kernel runs a layer's direction where nothing was measured.

With constants of the processor (sparse_engine/choice/cost.py), the cheapest by them; without, by density and
size alone (kernels.sparse_conv.suggest). Constants come from this machine's file (sparsefl tune) or, for
processors that we have measured, with the package.
"""

import json
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from math import isfinite
from typing import Any

from sparse_engine.choice import cost
from sparse_engine.choice.clock import Image
from sparse_engine.choice.cost import Case, Costs
from sparse_engine.hardware import cpu_family
from sparsefl.kernels import native, sparse_conv
from sparsefl.kernels.sparse_conv import Conv, Geometry

# Processors that the constants of a file in this folder hold for, by vendor and family. Measured on Zen 4
# (25) and no other; Zen 2 (23) and Zen 3 (25) have its AVX2 units.
BUILT_IN: dict[tuple[str, int] | None, str] = {
    ("AuthenticAMD", 23): "zen",
    ("AuthenticAMD", 25): "zen",
}


TUNED = "tuned"  # by this machine's file, with constants of its own


@dataclass(eq=False)
class Rule:
    """`costs` by kernel; empty: thresholds of density and size. `name`: what results are marked with."""

    name: str = "thresholds"
    costs: Costs = field(default_factory=dict)
    _found: dict[tuple[Any, ...], str] = field(default_factory=dict, repr=False)

    @property
    def is_tuned(self) -> bool:
        return self.name == TUNED

    def kernel(
        self,
        conv: Conv | Geometry,
        direction: str,
        image: Image,
        bf16: bool = False,
        native_only: bool = False,
    ) -> str:
        """Return the kernel for an input `image` (height, width, batch)."""
        if bf16 or not self.costs:
            return sparse_conv.suggest(conv, direction, *image, bf16, native=native_only)
        sizes = conv.out_channels, conv.in_channels, conv.kernel, conv.stride, conv.padding, conv.dilation
        key = (sizes, share(conv.density), direction, image, native_only, native.isa())
        if key not in self._found:
            self._found[key] = self._cheapest(Case(Geometry(*sizes, key[1]), direction, image), native_only)
        return self._found[key]

    def seconds(self, case: Case, native_only: bool = False) -> dict[str, float]:
        """Return what every candidate is expected to take; those without constants are left out."""
        kernels = sparse_conv.candidates(case.conv, native=native_only)
        found = {kernel: cost.seconds(self.costs, case, kernel) for kernel in kernels}
        return {kernel: time for kernel, time in found.items() if time is not None}

    def _cheapest(self, case: Case, native_only: bool) -> str:
        if min(case.image) < 1:  # nothing to do
            return "sparse"
        expected = self.seconds(case, native_only)
        if not expected:  # an instruction set that was not measured
            return sparse_conv.suggest(case.conv, case.direction, *case.image, native=native_only)
        return min(expected, key=lambda kernel: expected[kernel])


def share(density: float) -> float:
    """A density as the choice knows it: in steps of 1/20, and of 1/100 below; what is nearly full is full.
    Clients whose masks differ by a few entries then run on the same kernels."""
    return round(density * 20) / 20 if density >= 0.075 else max(0.01, round(density * 100) / 100)


def check(name: str, constants: Any) -> None:
    """Raise a ValueError if these are no constants of a kernel."""
    kernel = name.split(" ")[0]
    wanted = cost.NUMBER.get(kernel)
    right = isinstance(constants, list) and len(constants) == wanted
    if not (right and all(type(x) in (int, float) and isfinite(x) and x >= 0 for x in constants)):
        raise ValueError(
            f"expected {wanted or 'no'} finite constants from 0 on for {name!r}, got {constants!r}"
        )


@cache
def built_in() -> Rule:
    """Return the rule of this processor, as the package has it."""
    name = BUILT_IN.get(cpu_family())
    if name is None or not native.isas():
        return Rule()
    return named(name)


@cache
def named(name: str) -> Rule:
    """Return the rule with the constants of a processor; "thresholds": without."""
    if name == Rule.name:
        return Rule()
    if name not in BUILT_IN.values():
        raise ValueError(f"expected a rule of this version, got {name!r}")
    text = files("sparse_engine.choice").joinpath(f"{name}.json").read_text()
    return Rule(name, {key: tuple(constants) for key, constants in json.loads(text).items()})
