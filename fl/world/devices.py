"""How long a round takes on clients' devices, and its cost: modelled, never measured (algorithms.md 7).

    T_comp = 5 slow_k FLOP / 80e12    E_comp = 450 W T_comp      5: real programs against the peak
    T_comm = 8 slow_k bytes / 1e9     E_comm =   1 W T_comm      of the bytes of all the models that k takes
    C(theta) = (1 - theta) time + theta energy,  in $ at 1 $/s and 1 $/J

    slow_k   homogeneous   1
             uniform       on [1 - spread, 1 + spread], drawn once a client: different hardware
             lognormal     exp(spread z - spread^2 / 2), z ~ N(0, 1), drawn each round: stragglers

The mean of slow_k is 1; training and link are slowed independently. Messages "after": the round's training,
then T_comm of the slowest link (the paper: depth + 1 trainings and one T_comm). Messages "during": a client
starts when its link has carried the models too (`transfer` of fl.schedule).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl.rng import stream
from fl.world.schedule import Floats, Schedule, plan
from fl.world.topology import Neighbours

KINDS = ("homogeneous", "uniform", "lognormal")
MESSAGES = ("after", "during")


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


def dollars(theta: float, time_s: float, energy_j: float) -> float:
    """C(theta)."""
    return (1 - theta) * time_s + theta * energy_j


class RoundCost(NamedTuple):
    """A round: its length, and joules of all clients (and a server) together."""

    time_s: float
    compute_j: float
    radio_j: float
    idle_j: float

    @property
    def energy_j(self) -> float:
        return self.compute_j + self.radio_j + self.idle_j

    def dollars(self, theta: float) -> float:
        return dollars(theta, self.time_s, self.energy_j)


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

    def cost(self, schedule: Schedule, train_s: Floats, link_s: Floats, messages: str = "after") -> RoundCost:
        """Return length and energy of a planned round. `train_s` and `link_s`: the seconds that every client
        trains and that its link is busy. A server's link comes last."""
        _known_messages(messages)
        time_s = float(schedule.finish.max() + (link_s.max() if messages == "after" else 0.0))
        busy = float(train_s.sum() + link_s.sum())
        return RoundCost(
            time_s=time_s,
            compute_j=self.compute_watts * float(train_s.sum()),
            radio_j=self.radio_watts * float(link_s.sum()),
            idle_j=self.idle_watts * max(0.0, len(link_s) * time_s - busy),
        )

    def _slow(self, num_clients: int, seed: int, what: str, t: int) -> Floats:
        if self.kind == "uniform":
            return stream(seed, f"device {what}").uniform(1 - self.spread, 1 + self.spread, num_clients)
        if self.kind == "lognormal":
            return stream(seed, f"device {what}", t).lognormal(
                -(self.spread**2) / 2, self.spread, num_clients
            )
        return np.ones(num_clients)


def plan_round(
    neighbours: Neighbours,
    reuse: NDArray[Any],
    max_wait: int,
    *,
    model: DeviceModel,
    devices: Devices,
    flop: ArrayLike,
    message_bytes: ArrayLike,
    wait_rule: str = "fastest",
    messages: str = "after",
) -> tuple[Schedule, RoundCost]:
    """Return the schedule on these devices and what it costs. `flop` of a client's training and
    `message_bytes` of its model are one number, or one per client."""
    _known_messages(messages)
    train_s = np.broadcast_to(devices.train_seconds(flop), (neighbours.num_clients,))
    link_s = devices.link_seconds(received(neighbours, message_bytes))
    schedule = plan(
        neighbours,
        reuse,
        max_wait,
        wait_rule=wait_rule,
        duration=train_s,
        transfer=link_s / np.maximum(neighbours.degrees, 1) if messages == "during" else None,
    )
    return schedule, model.cost(schedule, train_s, link_s, messages)


def received(neighbours: Neighbours, message_bytes: ArrayLike) -> Floats:
    """Return the bytes that every client receives in a round: the messages of all its neighbours."""
    sent = np.broadcast_to(np.asarray(message_bytes, np.float64), (neighbours.num_clients,))
    total = np.bincount(neighbours.takers(), sent[neighbours.indices], minlength=neighbours.num_clients)
    return total.astype(np.float64)


def _known_messages(messages: str) -> None:
    if messages not in MESSAGES:
        raise ValueError(f"expected messages out of {list(MESSAGES)}, got {messages!r}")
