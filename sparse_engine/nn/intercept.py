"""Layers that are not pruned, on batch-last images: the calls stay torch's, the kernels are ours.

Inside a sparsified network's forward this mode sees every torch function. Where the first argument is an
image in batch-last memory and we have a kernel for the call, the kernel runs; everything else goes to torch
as it was.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from sparse_engine.nn import functional, norms_and_pools
from sparse_engine.nn.batch_last import is_batch_last
from sparse_engine.nn.layer import SparseLayer
from sparsefl.kernels.pool import Window


class BatchLast(TorchFunctionMode):
    """`net`: the network whose forward runs, to name its layers when one of them is used wrongly."""

    def __init__(self, net: nn.Module | None = None) -> None:
        super().__init__()
        self.net = net

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kernel = _KERNELS.get(func)
        if kernel is not None and args and _ours(args[0]):
            result = kernel(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        if func in _PRODUCTS:
            self._refuse_packed(func, args[:2])
        try:
            return func(*args, **(kwargs or {}))
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            self._refuse_packed(func, [*args, *(kwargs or {}).values()], error)
            raise

    def _refuse_packed(self, func: Callable, args: Iterable[Any], cause: Exception | None = None) -> None:
        """Raise an error that names the layer if one of `args` is a packed weight, or a view of one."""
        flat = [x for x in args if isinstance(x, Tensor) and x.dim() == 1]
        if not flat or self.net is None:
            return
        memory = {x.untyped_storage().data_ptr() for x in flat if x.device.type != "meta"}
        for path, layer in self.net.named_modules():
            if isinstance(layer, SparseLayer) and layer.weight.untyped_storage().data_ptr() in memory:
                name = f"{path}.weight" if path else "weight"
                raise ValueError(
                    f"expected {name} to be used by its layer alone, got {func.__name__}() on it: it is "
                    f"sparse, a list of stored values; keep it dense with se.sparsify(..., exempt=[{name!r}])"
                ) from cause


_DTYPES = (torch.float32, torch.bfloat16)


def _ours(x: object) -> bool:
    return isinstance(x, Tensor) and x.dtype in _DTYPES and x.device.type == "cpu" and is_batch_last(x)


def _conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """A dense convolution: every entry of the weight is stored. Groups are blocks of a larger weight."""
    stride, dilation = _pair(stride), _pair(dilation)
    if stride[0] != stride[1] or isinstance(padding, str) or weight.dtype != torch.float32:
        return NotImplemented
    shape = tuple(weight.shape)
    full = functional.full_conv(shape, stride[0], _pair(padding), dilation, weight.device, groups)
    return functional.conv2d(x, weight.reshape(-1), full, bias)


def _group_norm(
    x: Tensor, groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Any:
    return (
        norms_and_pools.group_norm(x, groups, weight, bias, eps) if _plain(weight, bias) else NotImplemented
    )


def _batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    if not _plain(running_mean, running_var, weight, bias):
        return NotImplemented
    return norms_and_pools.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)


def _max_pool(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    if _pair(dilation) != (1, 1) or ceil_mode or return_indices:
        return NotImplemented
    return norms_and_pools.max_pool(x, _window(kernel_size, stride, padding))


def _average_pool(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    if ceil_mode or divisor_override is not None or (_pair(padding) != (0, 0) and not count_include_pad):
        return NotImplemented
    return norms_and_pools.average_pool(x, _window(kernel_size, stride, padding))


def _adaptive_average_pool(x: Tensor, output_size: Any) -> Any:
    size = (output_size, output_size) if isinstance(output_size, int) else tuple(output_size)
    if None in size:
        return NotImplemented
    return norms_and_pools.average_pool(x, _pair(size))


def _relu(x: Tensor, inplace: bool = False) -> Any:
    return NotImplemented if inplace else norms_and_pools.relu(x)


def _add(x: Tensor, other: Any, *, alpha: Any = 1, out: Any = None) -> Any:
    """A residual sum of two images; everything else that is added goes to torch."""
    if (
        not (isinstance(other, Tensor) and _ours(other) and (other.shape, other.dtype) == (x.shape, x.dtype))
        or alpha != 1
        or out is not None
    ):
        return NotImplemented
    return norms_and_pools.add(x, other)


def _window(kernel: Any, stride: Any, padding: Any) -> Window:
    return Window(_pair(kernel), _pair(kernel if stride is None or stride == [] else stride), _pair(padding))


def _plain(*tensors: Tensor | None) -> bool:
    return all(t is None or (t.dtype == torch.float32 and t.is_contiguous()) for t in tensors)


def _pair(x: Any) -> tuple[int, int]:
    return (x, x) if isinstance(x, int) else (int(x[0]), int(x[-1]))


_KERNELS: dict[Callable, Callable[..., Any]] = {
    F.conv2d: _conv2d,
    F.group_norm: _group_norm,
    F.batch_norm: _batch_norm,
    getattr(F, "_max_pool2d"): _max_pool,  # what F.max_pool2d dispatches to  # noqa: B009
    F.max_pool2d: _max_pool,
    F.avg_pool2d: _average_pool,
    F.adaptive_avg_pool2d: _adaptive_average_pool,
    F.relu: _relu,
    torch.relu: _relu,
    Tensor.relu: _relu,
    torch.add: _add,
    Tensor.add: _add,
    Tensor.__add__: _add,
}
# These functions mean something else on a vector than on a matrix, often without an error.
_PRODUCTS = {
    F.linear,
    torch.matmul,
    Tensor.matmul,
    Tensor.__matmul__,
    Tensor.__rmatmul__,
    torch.mv,
    torch.dot,
}
