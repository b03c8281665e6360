"""Layers that are not pruned, on batch-last images: the same calls, our kernels.

Inside a sparsified network's forward this mode sees every torch function. Where the first argument is an
image in batch-last memory and we have a kernel for the call, the kernel runs; everything else goes to torch
as it was.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from kernels import bitmap
from kernels.sparse_conv import Conv
from sparse_engine import functional
from sparse_engine.batch_last import is_batch_last


class BatchLast(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kernel = _KERNELS.get(func)
        if kernel is not None and args and _ours(args[0]):
            result = kernel(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        return func(*args, **(kwargs or {}))


def _ours(x: object) -> bool:
    return isinstance(x, Tensor) and x.dtype == torch.float32 and x.device.type == "cpu" and is_batch_last(x)


def _conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """A dense convolution: every entry of the weight is stored."""
    stride, dilation = _pair(stride), _pair(dilation)
    if groups != 1 or stride[0] != stride[1] or isinstance(padding, str) or weight.dtype != torch.float32:
        return NotImplemented
    key = (tuple(weight.shape), stride, _pair(padding), dilation)
    if key not in _dense_convs:
        full = bitmap.full((weight.numel(),))
        out, into, kernel = weight.shape[0], weight.shape[1], _pair(weight.shape[2:])
        _dense_convs[key] = Conv(full, out, into, kernel, stride[0], key[2], dilation)
    return functional.conv2d(x, weight.reshape(-1), _dense_convs[key], bias)


def _pair(x: Any) -> tuple[int, int]:
    return (x, x) if isinstance(x, int) else (int(x[0]), int(x[-1]))


_dense_convs: dict[tuple, Conv] = {}
_KERNELS: dict[Callable, Callable[..., Any]] = {F.conv2d: _conv2d, torch.conv2d: _conv2d}
