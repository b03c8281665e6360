"""A multilayer perceptron: linear layers with ReLU between them."""

from collections.abc import Sequence

from torch import Tensor, nn


class MLP(nn.Module):
    def __init__(self, in_features: int, hidden: Sequence[int], num_classes: int) -> None:
        super().__init__()
        sizes = [in_features, *hidden]
        self.layers = nn.Sequential()
        for inputs, outputs in zip(sizes, sizes[1:], strict=False):
            self.layers.append(nn.Linear(inputs, outputs)).append(nn.ReLU())
        self.linear = nn.Linear(sizes[-1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.layers(x.flatten(1)))


def mlp(in_features: int = 64, hidden: int | Sequence[int] = 128, num_classes: int = 10) -> nn.Module:
    """Return an MLP for [in_features], or images of that many values.

    `hidden` is a width or several; () for no hidden layer.

    >>> import torch, sparse_engine as se
    >>> se.models.mlp()(torch.zeros(2, 64)).shape
    torch.Size([2, 10])
    """
    return MLP(in_features, [hidden] if isinstance(hidden, int) else hidden, num_classes)
