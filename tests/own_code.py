"""Code of a user's own, as text: what tests of `FILE.py:NAME` write into files."""

import re
from pathlib import Path

NETS = '''"""Networks."""
from torch import nn


class TinyNet(nn.Module):
    def __init__(self, num_classes, in_channels, size, hidden=8, depth=1):
        super().__init__()
        self.first = nn.Conv2d(in_channels, hidden, 3, padding=1)
        self.norm = nn.GroupNorm(2, hidden)
        self.last = nn.Linear(hidden * size * size, num_classes)

    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu().flatten(1))


def wrong(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes + 1))


def broken(num_classes):
    raise KeyError("nothing here")


def strange(num_classes):
    return 7


def narrow(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3, num_classes))


NUMBER = 3


def Lazy(num_classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))


class Late(TinyNet):
    def forward(self, x):
        if self.training:
            raise RuntimeError("not in training")
        return super().forward(x)


class Two(TinyNet):
    def forward(self, x):
        out = super().forward(x)
        return (out, out) if self.training else out


class Depthwise(nn.Sequential):
    def __init__(self, num_classes, in_channels):
        filters = nn.Conv2d(8, 8, 3, groups=8)
        super().__init__(nn.Conv2d(in_channels, 8, 1), filters, nn.Flatten(), nn.Linear(288, num_classes))


class Whole(TinyNet):
    """Fails on batches as large as those of a run."""

    def forward(self, x):
        if len(x) > 2:
            raise KeyError("too many")
        return super().forward(x)


def products(num_classes):
    return nn.Sequential(nn.ConvTranspose2d(1, num_classes, 8, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def leave(num_classes):
    raise SystemExit(3)


def quit():
    raise SystemExit(3)
'''

LOADER = """import numpy as np


def load():
    rng = np.random.default_rng(0)
    y = np.arange(400) % 4
    x = rng.integers(0, 60, (400, 6, 6)) + 60 * (y % 2)[:, None, None]
    x[:, :3] += 60 * (y // 2)[:, None, None]
    return x.astype(np.uint8), y


def torn():
    return 1, 2, 3
"""

_GUIDE = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
ALGORITHM = re.findall(r"```python\n(.*?)```", _GUIDE, re.DOTALL)[0]
