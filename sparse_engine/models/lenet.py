"""LeNet5 with ReLU and max pooling: two 5x5 convolutions, three linear layers, 61,706 parameters by default.

The first convolution pads by 2, so that 28x28 images arrive at the linear layers as 5x5, which is what
LeNet's own 32x32 field gives without padding. Larger images are brought to 5x5 by averaging.
"""

import torch.nn.functional as F
from torch import Tensor, nn


class LeNet5(nn.Module):
    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.pool = nn.AdaptiveAvgPool2d(5)  # the identity on 28x28 images
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(self.pool(x).flatten(1)))
        return self.fc3(F.relu(self.fc2(x)))


def lenet5(num_classes: int = 10, in_channels: int = 1) -> nn.Module:
    """Return LeNet5 for images [in_channels, 28, 28]; 32x32 works as well.

    >>> import torch, sparse_engine as se
    >>> se.models.lenet5()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    return LeNet5(num_classes, in_channels)
