"""What clients send each other: models as messages (sparse_engine.wire), as if between machines.

    fp32                    neighbours get the model itself
    bf16, fp16, q16, q8     they get what is left of it; with `error_feedback`, what a message lost is added
                            to the client's next one

A client writes one message per round, and everybody who takes its model gets that one. Clients do not keep
the masks of others, so masks travel whole. There are two exceptions: a mask that all draw from the same seed
(GossipFL), and the answer to a server that has just sent its own (FedDST).
"""

from dataclasses import dataclass

import sparse_engine as se
from fl.config import Messages
from fl.errors import Diverged


@dataclass(frozen=True)
class Sent:
    """A model on its way: as it arrives, how many bytes it took, and what it lost."""

    model: se.Model
    nbytes: int
    lost: se.Model | None = None

    @classmethod
    def exact(cls, model: se.Model) -> "Sent":
        """`model` itself, as fp32."""
        return cls(model, len(se.wire.encode(model)))


def send(
    model: se.Model,
    k: int,
    t: int,
    cfg: Messages,
    before: Sent | None = None,
    known: se.Bitmap | None = None,
    nbytes: int | None = None,
) -> Sent:
    """The message of client k in round t, after the one `before`. `known`: a mask that everybody has.
    `nbytes`: of an exact message without it, where somebody has written that already."""
    exact = cfg.values == "fp32"
    if exact and known is None and nbytes is not None:
        return Sent(model, nbytes)
    residual = se.wire.Residual(before.lost if before else None)
    feedback = residual if cfg.error_feedback and not exact else None
    try:
        blob = se.wire.encode(model, sender=k, round=t, values=cfg.values, known=known, residual=feedback)
    except ValueError as wrong:
        raise Diverged(
            f"the model of client {k} in round {t} cannot be sent as {cfg.values}: {wrong}"
        ) from wrong
    arrived = model if exact else se.wire.decode(blob, like=model, known=known)
    return Sent(arrived, len(blob), residual.state if feedback else None)
