"""Dropout with a generator of its own: torch's draws from one that all threads share."""

import torch
from torch import Tensor, nn


class Dropout(nn.Module):
    """torch's, with numbers out of `generator`."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p, self.generator = p, torch.Generator()

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        kept = torch.rand(x.shape, generator=self.generator) >= self.p
        return x * kept / (1 - self.p)


def seeded(net: nn.Module) -> list[Dropout]:
    """Replaces the network's dropouts by ours, and returns them."""
    found = [(path, module) for path, module in net.named_modules() if isinstance(module, nn.Dropout)]
    for path, module in found:
        parent, _, name = path.rpartition(".")
        setattr(net.get_submodule(parent), name, Dropout(module.p))
    return [module for module in net.modules() if isinstance(module, Dropout)]
