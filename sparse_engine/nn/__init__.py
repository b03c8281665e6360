"""Sparse layers. Whole networks are converted by `sparse_engine.nn.convert`, exported as `se.sparsify`."""

from sparse_engine.nn.conv import SparseConv2d
from sparse_engine.nn.layer import SparseLayer
from sparse_engine.nn.linear import SparseLinear

__all__ = ["SparseConv2d", "SparseLayer", "SparseLinear"]
