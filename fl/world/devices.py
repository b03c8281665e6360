"""The devices of clients: modelled, never measured (algorithms.md 7).

    T_comp = 5 slow_k FLOP / 80e12    E_comp = 450 W T_comp      5: real programs against the peak
    T_comm = 8 slow_k bytes / 1e9     E_comm =   1 W T_comm      of the bytes of all the models that k takes

    slow_k   homogeneous   1
             uniform       on [1 - spread, 1 + spread], drawn once a client: different hardware
             lognormal     exp(spread z - spread^2 / 2), z ~ N(0, 1), drawn each round: stragglers

The mean of slow_k is 1; training and link are slowed independently. How long a round takes on them says
fl/world/clock.py.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fl.rng import stream
from fl.world.schedule import Floats

KINDS = ("homogeneous", "uniform", "lognormal")


class Devices(NamedTuple):
    """The devices of one round: FLOP per second of training, and bits per second of the link."""

    flop_rate: Floats
    bandwidth: Floats

    def train_seconds(self, flop: ArrayLike) -> Floats:
        """Return T_comp, the seconds that `flop` take: one number, or one per client."""
        return np.asarray(flop, np.float64) / self.flop_rate

    def link_seconds(self, num_bytes: ArrayLike) -> Floats:
        """Return T_comm, the seconds that `num_bytes` take: one number, or one per client."""
        return np.asarray(num_bytes, np.float64) * 8 / self.bandwidth


@dataclass(frozen=True)
class DeviceModel:
    """Constants of the paper (an RTX 4090, 1 Gbit/s) and how clients differ from them."""

    kind: str = "homogeneous"
    spread: float = 0.5
    peak_flops: float = 80e12
    over_peak: float = 5.0
    bandwidth: float = 1e9
    compute_watts: float = 450.0
    radio_watts: float = 1.0
    idle_watts: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"expected a device model out of {list(KINDS)}, got {self.kind!r}")
        if not 0 <= self.spread < (1 if self.kind == "uniform" else np.inf):
            bound = "from 0 to below 1" if self.kind == "uniform" else ">= 0"
            raise ValueError(f"expected a spread {bound} of {self.kind} devices, got {self.spread}")
        for name in ("peak_flops", "over_peak", "bandwidth"):
            if not 0 < getattr(self, name) < np.inf:
                raise ValueError(f"expected {name} > 0, got {getattr(self, name)}")
        for name in ("compute_watts", "radio_watts", "idle_watts"):
            if not 0 <= getattr(self, name) < np.inf:
                raise ValueError(f"expected {name} >= 0, got {getattr(self, name)}")

    def devices(self, num_clients: int, seed: int = 0, t: int = 0) -> Devices:
        """Return the devices of all clients in round t."""
        training, link = (self._slow(num_clients, seed, what, t) for what in ("training", "link"))
        return Devices(self.peak_flops / self.over_peak / training, self.bandwidth / link)

    def _slow(self, num_clients: int, seed: int, what: str, t: int) -> Floats:
        if self.kind == "uniform":
            return stream(seed, f"device {what}").uniform(1 - self.spread, 1 + self.spread, num_clients)
        if self.kind == "lognormal":
            return stream(seed, f"device {what}", t).lognormal(
                -(self.spread**2) / 2, self.spread, num_clients
            )
        return np.ones(num_clients)
