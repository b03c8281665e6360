"""Dense training in plain torch: zeros outside the mask, gradients multiplied by it."""

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

import sparse_engine as se
from fl.train.engine import Engine, Step, Use
from fl.train.local import Local


class Dense(Engine):
    """A copy of the network, and the masks of the model that it holds."""

    def __init__(self, network: nn.Module, exempt: tuple[str, ...]) -> None:
        super().__init__(copy.deepcopy(network), exempt)
        self._masks: dict[str, Tensor] = {}

    def load(self, model: se.Model) -> None:
        se.load(self._net, model)
        self._masks = se.masks(model)

    def model(self) -> se.Model:
        return se.compress(self._net, self._masks, exempt=self._exempt)

    def optimizer(self, local: Local) -> Step:
        parameters = [*self._net.parameters()]
        sgd = torch.optim.SGD(parameters, local.lr, momentum=local.momentum, weight_decay=local.weight_decay)

        def step() -> None:
            if local.max_norm is not None:
                nn.utils.clip_grad_norm_(parameters, local.max_norm)
            sgd.step()

        return step

    def backward(self, x: Tensor, y: Tensor, use: Use | None = None) -> Tensor:
        loss = self._backward(x, y)
        for name, weight in self._weights():
            assert weight.grad is not None
            if use is not None:
                use(name, weight.grad)
            weight.grad.mul_(self._masks[name])
        return loss

    def dense_gradients(self, x: Tensor, y: Tensor, use: Use) -> None:
        self._backward(x, y)
        for name, weight in self._weights():
            assert weight.grad is not None
            use(name, weight.grad)
            weight.grad = None

    def _weights(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, w) for name, w in self._net.named_parameters() if name in self._masks)
