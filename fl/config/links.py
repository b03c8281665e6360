"""Which topologies can be: one rule for configurations and for graphs (fl/world/topology.py)."""

from typing import Any, Literal, get_args

Kind = Literal["random", "regular", "ring", "line", "star", "grid", "full", "edges"]
KINDS: tuple[str, ...] = get_args(Kind)


def check(kind: str, num_clients: int, degree: int, redraw: bool | None, edges: Any) -> None:
    """ValueError where there is no such graph of so many clients. Files of edges are not opened."""
    if kind not in KINDS:
        raise ValueError(f"expected a topology out of {list(KINDS)}, got {kind!r}")
    if not 2 <= num_clients < 2**31:
        raise ValueError(f"expected from 2 to 2^31 - 1 clients, got {num_clients}")
    if kind in ("random", "regular") and not 1 <= degree < num_clients:
        raise ValueError(f"expected a degree from 1 to {num_clients - 1} (all others), got {degree}")
    if kind == "regular" and num_clients * degree % 2:
        raise ValueError(f"expected clients x degree even in a regular graph, got {num_clients} x {degree}")
    if (kind == "edges") != (edges is not None):
        raise ValueError(f"expected edges with the topology 'edges' and no other, got {kind!r} and {edges!r}")
    if kind == "edges" and redraw:
        raise ValueError("expected redraw=False with edges: they name clients")
