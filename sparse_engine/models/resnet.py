"""ResNet18 for 32x32 images: a 3x3 stem of stride 1 and no first pooling.

    conv1, layer1..4 of two basic blocks (64, 128, 256, 512 channels), mean over positions, linear

Where channels or stride change, `shortcut` is a 1x1 convolution and a norm; its name keeps it from being
pruned (`sparse_engine.nn.bridge.EXEMPT`). Norms are called bn1, bn2 whatever they are.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from sparse_engine.models.norm import Norm, norm_layer


class BasicBlock(nn.Module):
    """relu(bn2(conv2(relu(bn1(conv1(x))))) + shortcut(x))"""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = norm_layer(norm, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = norm_layer(norm, outputs)
        self.shortcut = nn.Sequential()  # the identity
        if stride != 1 or inputs != outputs:
            self.shortcut.append(nn.Conv2d(inputs, outputs, 1, stride, bias=False))
            self.shortcut.append(norm_layer(norm, outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    def __init__(self, num_classes: int, norm: Norm, in_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)
        self.bn1 = norm_layer(norm, 64)
        self.layer1 = _layer(64, 64, 1, norm)
        self.layer2 = _layer(64, 128, 2, norm)
        self.layer3 = _layer(128, 256, 2, norm)
        self.layer4 = _layer(256, 512, 2, norm)
        self.pool = nn.AdaptiveAvgPool2d(1)  # 4x4 to 1x1 on 32x32 images
        self.linear = nn.Linear(512, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.linear(self.pool(x).flatten(1))


def _layer(inputs: int, outputs: int, stride: int, norm: Norm) -> nn.Sequential:
    return nn.Sequential(BasicBlock(inputs, outputs, stride, norm), BasicBlock(outputs, outputs, 1, norm))


def resnet18(num_classes: int = 10, norm: Norm = "group", in_channels: int = 3) -> nn.Module:
    """Return ResNet18 for images [in_channels, 32, 32]; any size from 8x8 on works.

    >>> import torch, sparse_engine as se
    >>> se.models.resnet18()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    return ResNet18(num_classes, norm, in_channels)
