"""Dropout by numbers of its own: torch's draws from a generator that all threads share."""

from torch import Tensor, nn

from sparse_engine.nn.dropout import dropout


class Dropout(nn.Module):
    """torch's, by `seed` and the number of the forward pass since `start`."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.start(0)

    def start(self, seed: int) -> None:
        """From here on, passes are those of `seed`, from the first."""
        self._seed, self._step = seed, 0

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        step, self._step = self._step, self._step + 1
        return dropout(x, self.p, seed=self._seed, step=step)


def seeded(net: nn.Module) -> list[Dropout]:
    """Replaces the network's dropouts by ours, and returns them."""
    found = [(path, module) for path, module in net.named_modules() if isinstance(module, nn.Dropout)]
    for path, module in found:
        parent, _, name = path.rpartition(".")
        setattr(net.get_submodule(parent), name, Dropout(module.p))
    return [module for module in net.modules() if isinstance(module, Dropout)]
