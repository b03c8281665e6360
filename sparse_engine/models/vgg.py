"""VGG11 for 32x32 images: eight 3x3 convolutions with bias, each with norm and ReLU, and one linear layer.

64, pool, 128, pool, 256, 256, pool, 512, 512, pool, 512, 512, pool
"""

from torch import Tensor, nn

from sparse_engine.models.norm import Norm, norm_layer

POOL = 0
LAYERS = (64, POOL, 128, POOL, 256, 256, POOL, 512, 512, POOL, 512, 512, POOL)


class VGG11(nn.Module):
    def __init__(self, num_classes: int, norm: Norm | None, in_channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = in_channels
        for width in LAYERS:
            if width == POOL:
                layers.append(nn.MaxPool2d(2))
                continue
            layers.append(nn.Conv2d(channels, width, 3, padding=1))
            if norm is not None:
                layers.append(norm_layer(norm, width))
            layers.append(nn.ReLU())
            channels = width
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


def vgg11(num_classes: int = 100, norm: Norm | None = "group", in_channels: int = 3) -> nn.Module:
    """Return VGG11 for images [in_channels, 32, 32]. `norm=None`: without norm layers.

    >>> import torch, sparse_engine as se
    >>> se.models.vgg11(num_classes=10)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    return VGG11(num_classes, norm, in_channels)
