"""Sparse training, layer by layer: only stored weights are touched."""

from torch import Tensor, nn

import sparse_engine as se
from fl.train.engine import Engine, Step, Use
from fl.train.local import Local


class Layers(Engine):
    """Our sparse layers in place of the network's own."""

    batch_last = True

    def __init__(self, network: nn.Module, exempt: tuple[str, ...], precision: str = "fp32") -> None:
        super().__init__(se.sparsify(network, masks={}, exempt=exempt, precision=precision), exempt)

    def load(self, model: se.Model) -> None:
        se.load(self._net, model)

    def model(self) -> se.Model:
        return se.compress(self._net, exempt=self._exempt)

    def optimizer(self, local: Local) -> Step:
        sgd = se.SparseSGD(self._net, local.lr, local.momentum, local.weight_decay, max_norm=local.max_norm)
        return sgd.step

    def backward(self, x: Tensor, y: Tensor, use: Use | None = None) -> Tensor:
        if use is None:
            return self._backward(x, y)
        with se.dense_gradients(self._net, use):
            return self._backward(x, y)

    def dense_gradients(self, x: Tensor, y: Tensor, use: Use) -> None:
        """One layer's gradient is in memory at a time."""
        with se.dense_gradients(self._net, use):
            self._backward(x, y)
