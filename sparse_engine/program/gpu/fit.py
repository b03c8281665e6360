"""How many clients a group may have: as many as fit into the card's cache, from 16 on, if memory lasts.

What a step touches of a client is read and written several times: where the group's share of it stays in the
second-level cache, that costs no memory traffic. Too small a group leaves the card idle.
"""

from math import prod
from typing import NamedTuple

from sparse_engine.program.gpu import cards
from sparse_engine.program.gpu.cards import NoCard
from sparse_engine.program.gpu.plan import Plan
from sparse_engine.program.gpu.session import GroupSession
from sparsefl.kernels.group import lanes_for

FEWEST, MOST = 16, 256
CACHE_SHARE, MEMORY_SHARE = 0.75, 0.8


class Need(NamedTuple):
    """Bytes of a client: what a step touches, and all that is held at a time."""

    step: int
    all: int


def need(plan: Plan, stored: int, batch: int) -> Need:
    """Of a client that stores so many entries. An entry of the index has 16 bytes, twice; growth holds a
    dense gradient, its candidates and their keys."""
    lanes, network = lanes_for(batch), plan.network
    gates = sum(prod(layer.y_shape) for layer in network.layers if layer.gated)
    numbers = stored + network.num_rest
    step = lanes * (4 * plan.numbers + gates) + numbers * (12 + 32)
    return Need(step, step + 24 * numbers + 16 * sum(network.sizes))


def clients_at_once(session: GroupSession, stored: int, batch: int) -> int:
    """Return the size of groups of clients that store so many entries; NoCard: there is no room for one."""
    device = str(session.device)
    if session.device.type != "cuda":
        return MOST
    wanted = need(session.plan, stored, batch)
    free = cards.free_memory(device)
    fits = int(MEMORY_SHARE * free) // wanted.all
    if fits < 1:
        raise NoCard(
            f"expected {wanted.all / MEMORY_SHARE / 2**20:,.0f} MB free on {device} for one client, "
            f"got {free / 2**20:,.0f} MB: lower training.batch_size, or take a smaller network"
        )
    cached = int(CACHE_SHARE * cards.usable(device).cache) // wanted.step
    return min(fits, max(FEWEST, min(MOST, cached)))
