"""Conv2d with a sparse weight."""

from torch import Tensor, nn

from sparse_engine.model.tensor import SparseTensor
from sparse_engine.nn import functional
from sparse_engine.nn.layer import SparseLayer


class SparseConv2d(SparseLayer):
    """Images [N, C, H, W] in, images out, in batch-last memory."""

    @staticmethod
    def obstacle(conv: nn.Conv2d) -> str | None:
        """Return why this layer cannot run on the sparse kernels; None if it can."""
        if conv.groups != 1:
            return f"grouped convolution ({conv.groups} groups)"
        if conv.stride[0] != conv.stride[1]:
            return f"stride differs by axis {conv.stride}"
        if isinstance(conv.padding, str):
            return f"padding {conv.padding!r}"
        if conv.padding_mode != "zeros":
            return f"padding mode {conv.padding_mode!r}"
        return None

    @classmethod
    def from_dense(cls, conv: nn.Conv2d, mask: Tensor) -> "SparseConv2d":
        assert cls.obstacle(conv) is None
        tensor = SparseTensor.from_dense(conv.weight.detach(), mask)
        how = {"stride": conv.stride[0], "padding": tuple(conv.padding), "dilation": tuple(conv.dilation)}
        return cls(tensor, conv.bias, **how)._in_place_of(conv)

    groups = 1
    padding_mode = "zeros"

    @property
    def in_channels(self) -> int:
        return self.pattern.shape[1]

    @property
    def out_channels(self) -> int:
        return self.pattern.shape[0]

    @property
    def kernel_size(self) -> tuple[int, int]:
        return self.conv.kernel

    @property
    def stride(self) -> tuple[int, int]:
        return self.conv.stride, self.conv.stride

    @property
    def padding(self) -> tuple[int, int]:
        return self.conv.padding

    @property
    def dilation(self) -> tuple[int, int]:
        return self.conv.dilation

    def to_dense(self) -> nn.Conv2d:
        out, into, height, width = self.pattern.shape
        conv = nn.Conv2d(into, out, (height, width), bias=self.bias is not None, **self.geometry)
        return self._filled(conv)

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv2d(x, self.weight, self.conv, self.bias, self.watch)
