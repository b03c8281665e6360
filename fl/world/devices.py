"""The devices of clients: modelled, never measured (algorithms.md 7).

    T_comp = 5 slow_k FLOP / 80e12    E_comp = 450 W T_comp      5: real programs against the peak
    T_comm = 8 slow_k bytes / 1e9     E_comm =   1 W T_comm      of the bytes of all the models that k takes

    slow_k   homogeneous   1
             uniform       on [1 - spread, 1 + spread], drawn once a client: different hardware
             lognormal     exp(spread z - spread^2 / 2), z ~ N(0, 1), drawn each round: stragglers
             trace         1 / speed of training, by a file (fl/world/trace.py); links as the file has them

Constants and kind are those of the section `devices` (config.Devices). The mean of slow_k is 1; training and
link are slowed independently (a trace: as it says). How long a round takes on them says fl/world/clock.py.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fl import config
from fl.errors import ConfigError
from fl.rng import stream
from fl.world import trace
from fl.world.schedule import Floats


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


def draw(model: config.Devices, num_clients: int, seed: int = 0, t: int = 0) -> Devices:
    """Return the devices of all clients in round t. ConfigError: a trace that cannot be used."""
    if model.kind == "trace":
        return _traced(model, num_clients)
    training, link = (_slow(model, num_clients, seed, what, t) for what in ("training", "link"))
    return Devices(model.peak_flops / model.over_peak / training, model.bandwidth / link)


def _traced(model: config.Devices, num_clients: int) -> Devices:
    assert model.trace is not None  # the configuration saw to it
    found = trace.read(model.trace, num_clients)
    if found.speed is None and found.bandwidth is None:
        raise ConfigError(f"devices.trace: expected a column speed or bandwidth in {model.trace}, got none")
    usual = np.ones(num_clients)
    rate = model.peak_flops / model.over_peak * (usual if found.speed is None else found.speed)
    return Devices(rate, model.bandwidth * usual if found.bandwidth is None else found.bandwidth)


def _slow(model: config.Devices, num_clients: int, seed: int, what: str, t: int) -> Floats:
    spread = model.spread
    if model.kind == "uniform":
        return stream(seed, f"device {what}").uniform(1 - spread, 1 + spread, num_clients)
    if model.kind == "lognormal":
        return stream(seed, f"device {what}", t).lognormal(-(spread**2) / 2, spread, num_clients)
    return np.ones(num_clients)
