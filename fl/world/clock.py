"""The clock of a round: when clients start and finish on their devices, and its cost (algorithms.md 7).

One clock plans a round before it and reports it afterwards:

    plan     by what is known then: the operations that clients will do on the masks they hold, and the bytes
             of the models they sent last. Who finishes first decides who waits for whom
    timed    the same waiting sets, by the operations and bytes that the round really had

Both use the same devices and walk the same formula (fl/world/schedule.py): with the same operations and bytes
they give the same seconds, bit for bit.

    messages "after"     the trainings, then T_comm of the slowest link (the paper: depth + 1 trainings and
                         one T_comm). So bytes count for the length of the round, not for who is first
    messages "during"    a client starts when its link has carried the models too (`transfer` of a schedule)

    C(theta) = (1 - theta) time + theta energy,  in $ at 1 $/s and 1 $/J
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl import config
from fl.world import schedule
from fl.world.devices import Devices, draw
from fl.world.schedule import Floats, Schedule
from fl.world.topology import Neighbours

MESSAGES = ("after", "during")


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


@dataclass(frozen=True, eq=False)
class Clock:
    """The clock of one round: `devices` are those of its clients in that round.

    `flop` of clients' trainings: one number, or one per client. `received`: the bytes that every client
    takes; where there is a server, it comes last, on the usual link.
    """

    model: config.Devices
    devices: Devices
    messages: str = "after"
    absent: int = 0  # clients that are not there: they do not wait, so they take no power

    @classmethod
    def of(
        cls, model: config.Devices, num_clients: int, seed: int, t: int, messages: str = "after"
    ) -> "Clock":
        """The clock of round t of a run: the one place that draws the devices of a round."""
        return cls(model, draw(model, num_clients, seed, t), messages)

    def __post_init__(self) -> None:
        if self.messages not in MESSAGES:
            raise ValueError(f"expected messages out of {list(MESSAGES)}, got {self.messages!r}")

    def plan(
        self,
        neighbours: Neighbours,
        reuse: NDArray[Any],
        max_wait: int,
        *,
        flop: ArrayLike,
        message_bytes: ArrayLike,
        wait_rule: str = "fastest",
    ) -> Schedule:
        """Return the round as it is planned, in seconds. `message_bytes` of clients' models: one number, or
        one per client."""
        return schedule.plan(
            neighbours,
            reuse,
            max_wait,
            wait_rule=wait_rule,
            duration=self.devices.train_seconds(flop),
            transfer=self._transfer(neighbours, received(neighbours, message_bytes)),
        )

    def timed(self, planned: Schedule, *, flop: ArrayLike, received: ArrayLike) -> Schedule:
        """Return a planned round as it went, in seconds: who waits for whom stays."""
        transfer = self._transfer(planned.neighbours, received)
        return planned.timed(self.devices.train_seconds(flop), transfer)

    def cost(self, timed: Schedule, *, flop: ArrayLike, received: ArrayLike) -> RoundCost:
        """Return length and energy of a round that this clock planned or timed with the same `flop` and
        `received`."""
        train_s = self.devices.train_seconds(flop)
        link_s = self._link_seconds(received)
        time_s = float(timed.finish.max() + (link_s.max() if self.messages == "after" else 0.0))
        busy = float(train_s.sum() + link_s.sum())
        return RoundCost(
            time_s=time_s,
            compute_j=self.model.compute_watts * float(train_s.sum()),
            radio_j=self.model.radio_watts * float(link_s.sum()),
            idle_j=self.model.idle_watts * max(0.0, (len(link_s) - self.absent) * time_s - busy),
        )

    def _link_seconds(self, received: ArrayLike) -> Floats:
        count = np.size(received)
        bandwidth = np.append(self.devices.bandwidth, self.model.bandwidth)[:count]
        return self.devices._replace(bandwidth=bandwidth).link_seconds(received)

    def _transfer(self, neighbours: Neighbours, received: ArrayLike) -> Floats | None:
        """The seconds that one model takes to every client."""
        if self.messages == "after":
            return None
        link_s = self._link_seconds(received)[: neighbours.num_clients]
        return link_s / np.maximum(neighbours.degrees, 1)


def received(neighbours: Neighbours, message_bytes: ArrayLike) -> Floats:
    """Return the bytes that every client receives in a round: the messages of all its neighbours."""
    sent = np.broadcast_to(np.asarray(message_bytes, np.float64), (neighbours.num_clients,))
    total = np.bincount(neighbours.takers(), sent[neighbours.indices], minlength=neighbours.num_clients)
    return total.astype(np.float64)
