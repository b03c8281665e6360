"""The norm layers that the networks choose from by name."""

from typing import Literal

from torch import nn

Norm = Literal["group", "batch"]
GROUPS = 32


def norm_layer(norm: Norm, channels: int) -> nn.Module:
    """GroupNorm with 32 groups, as the paper's authors have it, or BatchNorm."""
    if norm == "group":
        return nn.GroupNorm(GROUPS, channels)
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    raise ValueError(f"expected norm 'group' or 'batch', got {norm!r}")
