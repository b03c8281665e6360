"""Networks that are not ours, as users bring them: for `sparsefl bench models --model mixer,...`.

mobilenet   depthwise and 1x1 convolutions with BatchNorm (Howard et al. 2017), for 32x32 images
resnet20    residual blocks of 16, 32 and 64 channels with BatchNorm (He et al. 2016)
mixer       an MLP-Mixer: linear layers over patches and over channels (Tolstikhin et al. 2021)
vit         a vision transformer with attention of its own
encoder     a vision transformer out of nn.TransformerEncoderLayer
"""

import torch.nn.functional as F
from torch import Tensor, nn

import sparse_engine as se


def mobilenet(num_classes: int = 10, width: int = 64) -> nn.Module:
    """Return a small MobileNet."""
    layers: list[nn.Module] = _conv_norm(3, width // 2, 3)
    sizes = [
        (width // 2, width, 1),
        (width, 2 * width, 2),
        (2 * width, 2 * width, 1),
        (2 * width, 4 * width, 2),
    ]
    for into, out, stride in [*sizes, (4 * width, 4 * width, 1), (4 * width, 8 * width, 2)]:
        layers += _conv_norm(into, into, 3, stride=stride, groups=into) + _conv_norm(into, out, 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, num_classes))


def _conv_norm(into: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(into, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(out), nn.ReLU()]


class _Block(nn.Module):
    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.norm2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.shortcut = nn.Sequential()
        if stride > 1 or into != out:
            self.shortcut = nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


def resnet20(num_classes: int = 10) -> nn.Module:
    """Return ResNet20 for CIFAR."""
    blocks = [
        _Block(16 * (1 << max(0, s - (i == 0))), 16 << s, 1 + (s > 0 and i == 0))
        for s in range(3)
        for i in range(3)
    ]
    return nn.Sequential(
        *_conv_norm(3, 16, 3), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, num_classes)
    )


class _Patches(nn.Module):
    """Images [N, 3, 32, 32] to tokens [N, 64, width]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.embed(x).flatten(2).transpose(1, 2)


class _Mix(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class _Mean(nn.Module):
    """Tokens [N, T, width] to classes."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x).mean(1))


def mixer(num_classes: int = 10, width: int = 128, depth: int = 4) -> nn.Module:
    """Return an MLP-Mixer on 4x4 patches."""
    return nn.Sequential(_Patches(width), *[_Mix(64, width) for _ in range(depth)], _Mean(width, num_classes))


class _Attend(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, c)
        x = x + self.out(y)
        return x + self.mlp(self.norm2(x))


def vit(num_classes: int = 10, width: int = 128, depth: int = 4) -> nn.Module:
    """Return a vision transformer with attention of its own."""
    return nn.Sequential(
        _Patches(width), *[_Attend(width, 4) for _ in range(depth)], _Mean(width, num_classes)
    )


def encoder(num_classes: int = 10, width: int = 128, depth: int = 4) -> nn.Module:
    """Return a vision transformer out of torch's own layers."""
    layers = [nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True) for _ in range(depth)]
    return nn.Sequential(_Patches(width), *layers, _Mean(width, num_classes))


def build(name: str, num_classes: int) -> nn.Module:
    """Return one of these, or one of se.models."""
    if name in NETWORKS:
        return NETWORKS[name](num_classes)
    return se.models.by_name(name, num_classes=num_classes)


NETWORKS = {"mobilenet": mobilenet, "resnet20": resnet20, "mixer": mixer, "vit": vit, "encoder": encoder}
