"""Linear with a sparse weight."""

from torch import Tensor, nn

from sparse_engine.model.tensor import SparseTensor
from sparse_engine.nn import functional
from sparse_engine.nn.layer import SparseLayer


class SparseLinear(SparseLayer):
    """x [..., in] -> [..., out]"""

    @classmethod
    def from_dense(cls, linear: nn.Linear, mask: Tensor) -> "SparseLinear":
        made = cls(SparseTensor.from_dense(linear.weight.detach(), mask), linear.bias)
        return made._in_place_of(linear)

    @property
    def in_features(self) -> int:
        return self.pattern.shape[1]

    @property
    def out_features(self) -> int:
        return self.pattern.shape[0]

    def to_dense(self) -> nn.Linear:
        out, into = self.pattern.shape
        return self._filled(nn.Linear(into, out, bias=self.bias is not None))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.conv, self.bias, self.watch)
