"""Networks as ordinary torch modules, torch's own initialisation: `torch.manual_seed` decides the weights.

resnet18, vgg11     32x32 images; GroupNorm (32 groups) or BatchNorm
alexnet             64x64 images
lenet5              28x28 or 32x32 images
small_cnn           8x8 images and larger
mlp                 vectors, or images made flat
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from sparse_engine.models.alexnet import alexnet
from sparse_engine.models.cnn import small_cnn
from sparse_engine.models.lenet import lenet5
from sparse_engine.models.mlp import mlp
from sparse_engine.models.resnet import resnet18
from sparse_engine.models.vgg import vgg11

__all__ = ["alexnet", "by_name", "lenet5", "mlp", "resnet18", "small_cnn", "vgg11"]

_NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "alexnet": alexnet,
    "lenet5": lenet5,
    "mlp": mlp,
    "resnet18": resnet18,
    "small_cnn": small_cnn,
    "vgg11": vgg11,
}


def by_name(name: str, **kwargs: Any) -> nn.Module:
    """Return the network of that name; `kwargs` are the arguments of its function.

    >>> import torch, sparse_engine as se
    >>> se.models.by_name("mlp", in_features=20, num_classes=5)(torch.zeros(2, 20)).shape
    torch.Size([2, 5])
    """
    if name not in _NETWORKS:
        raise ValueError(f"expected a network out of {list(_NETWORKS)}, got {name!r}")
    return _NETWORKS[name](**kwargs)
