"""A small convolutional network: three 3x3 convolutions with bias and ReLU, one linear layer.

width, pool, 2 width, pool, 4 width, average to 2x2, linear
"""

import torch.nn.functional as F
from torch import Tensor, nn


class SmallCNN(nn.Module):
    def __init__(self, num_classes: int, in_channels: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.conv3 = nn.Conv2d(2 * width, 4 * width, 3, padding=1)
        self.pool = nn.AdaptiveAvgPool2d(2)  # the identity on 8x8 images
        self.linear = nn.Linear(4 * width * 2 * 2, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.conv3(x))
        return self.linear(self.pool(x).flatten(1))


def small_cnn(num_classes: int = 10, in_channels: int = 3, width: int = 32) -> nn.Module:
    """Return a small CNN for images [in_channels, 32, 32]; any size works that is 8x8 (digits) or larger.

    >>> import torch, sparse_engine as se
    >>> se.models.small_cnn()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    return SmallCNN(num_classes, in_channels, width)
