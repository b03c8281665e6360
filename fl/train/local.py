"""What a local training is, as data: whoever trains (sparse layers, dense torch) reads the same.

w <- w - lr (g + weight_decay w)                             on the mask, momentum and clipping aside
pull:   w <- w - lr (g + weight_decay w + kappa (w - w'))    (Ditto)
rho:    g is taken at w + rho g / |g|                        (SAM)
"""

from dataclasses import dataclass
from typing import Any

import sparse_engine as se
from fl import config


@dataclass(frozen=True)
class Pull:
    """Training is drawn towards a model: the gradient of strength / 2 |w - model|^2 is added."""

    model: se.Model
    strength: float


@dataclass(frozen=True, kw_only=True)
class Local:
    """One local training of one client in one round."""

    epochs: int
    batch_size: int
    lr: float  # of this round
    momentum: float = 0.0
    weight_decay: float = 0.0
    max_norm: float | None = None  # clip the norm of the gradient
    pull: Pull | None = None
    rho: float = 0.0
    stream: str = ""  # ends the names of its random draws: a client that trains twice in a round has two

    @property
    def passes(self) -> int:
        """Forward and backward passes per step."""
        return 2 if self.rho else 1

    @classmethod
    def of(cls, training: config.Training, t: int, **changes: Any) -> "Local":
        """The training that the section `training` describes, in round t.

        `changes`: to keys of the section (`lr` is that of round 0, and falls as the section says), or to
        `pull`, `rho`, `stream`.

            >>> from fl.config import Training
            >>> Local.of(Training(lr=0.1, lr_decay=0.5), 2, epochs=3).lr
            0.025
        """
        unknown = sorted(changes.keys() - cls.__dataclass_fields__.keys())
        if unknown:
            raise ValueError(f"expected keys of training, got {unknown}")
        given = {name: getattr(training, name) for name in _KEYS} | changes
        return cls(**given | {"lr": given["lr"] * training.lr_decay**t})


_KEYS = ("epochs", "batch_size", "lr", "momentum", "weight_decay", "max_norm")
