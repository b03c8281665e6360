"""AlexNet for 64x64 images: 3x3 convolutions, the first of stride 2, and three linear layers."""

from torch import Tensor, nn


class AlexNet(nn.Module):
    def __init__(self, num_classes: int, in_channels: int, dropout: float) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 192, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.classifier = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(256 * 2 * 2, 4096),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(4096, 4096),
            nn.ReLU(),
            nn.Linear(4096, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.pool(self.features(x)).flatten(1))


def alexnet(num_classes: int = 7, in_channels: int = 3, dropout: float = 0.5) -> nn.Module:
    """Return AlexNet for images [in_channels, 64, 64]; any size from 16x16 on works.

    >>> import torch, sparse_engine as se
    >>> se.models.alexnet(num_classes=10)(torch.zeros(2, 3, 64, 64)).shape
    torch.Size([2, 10])
    """
    return AlexNet(num_classes, in_channels, dropout)
