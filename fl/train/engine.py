"""A network into which models are loaded, one after the other, and what training does with it.

Everything about the network is in here: a turn asks for steps, gradients and predictions. How models are
loaded, how gradients are masked and how a step is taken is in fl/train/layers.py and fl/train/dense.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sparse_engine as se
from fl.train import dropout
from fl.train.local import Local

Step = Callable[[], object]
Use = Callable[[str, Tensor], None]


class Engine(ABC):
    """One network, whose parameters `load` overwrites. Not for two threads at once.

    `batch_last`: whether it reads images whose memory is [C, H, W, n] without a copy.
    """

    batch_last = False

    def __init__(self, net: nn.Module, exempt: tuple[str, ...]) -> None:
        self._net, self._exempt = net, exempt
        self._dropouts = dropout.seeded(net)

    @abstractmethod
    def load(self, model: se.Model) -> None:
        """Writes `model` into the network."""

    @abstractmethod
    def model(self) -> se.Model:
        """What the network holds, in memory of its own."""

    @abstractmethod
    def optimizer(self, local: Local) -> Step:
        """A function that takes one step along the gradients that are there, without pull."""

    @abstractmethod
    def backward(self, x: Tensor, y: Tensor, use: Use | None = None) -> Tensor:
        """Gradients of the mean cross-entropy in every parameter, on the mask; returns the loss.

        `use(name, gradient)` is called for every prunable weight, with its gradient also outside the mask.
        """

    @abstractmethod
    def dense_gradients(self, x: Tensor, y: Tensor, use: Use) -> None:
        """`use(name, gradient)` of every prunable weight, also outside the mask."""

    def start_training(self, seed: Callable[[int], int]) -> None:
        """Training mode; dropout number i starts with `seed(i)`."""
        self._net.train()
        for i, module in enumerate(self._dropouts):
            module.start(seed(i))

    def predict(self, x: Tensor) -> Tensor:
        """The class of every sample, in evaluation mode."""
        with torch.no_grad():
            return self._net.eval()(x).argmax(1)

    def parameters_of(self, model: se.Model) -> list[Tensor]:
        """Return the parameters of `model`, as the network has them. It holds `model` afterwards."""
        self.load(model)
        return [p.detach().clone() for p in self._trained()]

    def trainer(self, local: Local, towards: list[Tensor]) -> Callable[[Tensor, Tensor, Use | None], Tensor]:
        """A function that trains on one batch, and returns the loss before its step; its `use` as `backward`
        takes it.

        `towards`: `parameters_of` the model that `local.pull` names; unread without a pull.
        """
        step = self.optimizer(local)
        if local.pull:
            step = self._pulled(step, towards, local.lr * local.pull.strength)

        def train(x: Tensor, y: Tensor, use: Use | None = None) -> Tensor:
            loss = self.backward(x, y, use)
            if local.rho:
                self._backward_uphill(x, y, local.rho, use)
            step()
            return loss

        return train

    def zeros(self) -> list[Tensor]:
        """One per trained parameter."""
        return [torch.zeros_like(p) for p in self._trained()]

    def add_gradients(self, sums: list[Tensor], weight: float) -> None:
        """Adds `weight` times the gradients that are there to `sums`, in place."""
        for total, p in zip(sums, self._trained(), strict=True):
            assert p.grad is not None
            total.add_(p.grad, alpha=weight)

    def model_of(self, tensors: list[Tensor]) -> se.Model:
        """`tensors`, one per trained parameter, in the form of a model with buffers of 0. The network holds
        them afterwards."""
        for p, x in zip(self._trained(), tensors, strict=True):
            p.data.copy_(x)
        model, names = self.model(), {name for name, _ in self._net.named_parameters()}
        for name, x in model.rest_tensors().items():
            if name not in names:
                x.zero_()
        return model

    def _trained(self) -> list[nn.Parameter]:
        return [p for p in self._net.parameters() if p.requires_grad]

    def _pulled(self, step: Step, towards: list[Tensor], rate: float) -> Step:
        """Runs `step`, then moves every weight towards `towards` by `rate` times its distance before it."""
        trained = self._trained()

        def both() -> None:
            offsets = [p.detach() - w for p, w in zip(trained, towards, strict=True)]
            step()
            for p, offset in zip(trained, offsets, strict=True):
                p.data.sub_(offset, alpha=rate)

        return both

    def _backward_uphill(self, x: Tensor, y: Tensor, rho: float, use: Use | None) -> None:
        """Gradients at w + rho g / |g| in place of those at w."""
        here = [(p, p.detach().clone(), p.grad) for p in self._trained() if p.grad is not None]
        norm = float(torch.stack([g.norm() for _, _, g in here]).norm())
        for p, _, g in here:
            p.data.add_(g, alpha=rho / (norm + 1e-12))
        self.backward(x, y, use)
        for p, w, _ in here:
            p.data.copy_(w)

    def _backward(self, x: Tensor, y: Tensor) -> Tensor:
        self._net.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self._net(x), y)
        loss.backward()
        return loss.detach()
