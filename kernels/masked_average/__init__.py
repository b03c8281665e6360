"""Mask-weighted average:   v_i <- (sum_j w_j,i) / (number of j whose support has i),   on entries i of a mask
Plain mean:              v <- (sum_j x_j) / (number of j)

Every model j is (support, packed values); supports differ. Where no model has the entry the result is 0. A
model counts where its support has the entry, also if the value there is 0. The result is packed on the mask.
"""

from collections.abc import Sequence
from typing import NoReturn

from torch import Tensor

from sparsefl.kernels import checks, memory, registry
from sparsefl.kernels.layout import Bitmap, Packed

_call = registry.bind(__name__)
MOST = 4095  # models in one call


def masked_average(mask: Bitmap, models: Sequence[Packed], out: Tensor | None = None) -> Tensor:
    """The mean of `models` on `mask`, summed in the order given. One model: its values carried to `mask`."""
    if not 1 <= len(models) <= MOST:
        raise ValueError(f"expected 1 to {MOST} models, got {len(models)}")
    segments, values = mask.segments, models[0].values
    dtype, device = values.dtype, mask.words.device
    fits = dtype in checks.FLOATS and all(  # written out: this runs for every neighbour of every client
        (support.segments is segments or support.segments.sizes == segments.sizes)
        and x.dim() == 1
        and x.numel() == support.nnz
        and x.dtype == dtype
        and x.is_contiguous()
        and device == support.words.device == x.device
        for support, x in models
    )
    if not fits:
        _refuse(mask, models)
    if out is None:
        out = memory.plain(mask.nnz, values.dtype, values.device)
    else:
        checks.flat(out=out)
        checks.same_dtype(out=out, values=values)
        checks.length(mask.nnz, "entries in the mask", out=out)
        inside = [j for j, model in enumerate(models) if _overlap(out, model.values)]
        if inside:
            raise ValueError(f"expected an out of its own, got memory that models {inside} use")
    if mask.nnz:
        _call("masked_average", out.device, mask, list(models), out)
    return out


def mean(tensors: Sequence[Tensor]) -> Tensor:
    """The mean of flat float tensors of one length, summed in the order given."""
    if not tensors:
        raise ValueError("expected at least one tensor, got none")
    first = tensors[0]
    for x in tensors:
        if (
            x.shape != first.shape
            or x.dtype != first.dtype
            or not x.is_contiguous()
            or x.device != first.device
        ):
            named = {f"tensors[{j}]": each for j, each in enumerate(tensors)}
            checks.flat(**named)
            checks.same_shape(**named)
            checks.same_dtype(**named)
    checks.flat(first=first)
    out = memory.plain(first.numel(), first.dtype, first.device)
    if first.numel():
        _call("mean", first.device, tensors, out)
    return out


def _refuse(mask: Bitmap, models: Sequence[Packed]) -> NoReturn:
    """Say which of the checks failed, and where."""
    named = {f"models[{j}]": model.values for j, model in enumerate(models)}
    checks.flat(**named)
    checks.same_dtype(**named)
    sizes = mask.segments.sizes
    for j, (support, values) in enumerate(models):
        if support.segments.sizes != sizes:
            shapes = f"mask {sizes} and models[{j}] {support.segments.sizes}"
            raise ValueError(f"expected models of one shape, got {shapes}")
        if values.numel() != support.nnz:
            raise ValueError(f"expected {support.nnz} values of models[{j}], got {values.numel()}")
        checks.same_device(mask=mask.words, support=support.words, values=values)
    raise AssertionError("a check that fails in one loop fails in the other")


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Do two contiguous tensors share memory?"""
    bytes_of = lambda x: (x.data_ptr(), x.data_ptr() + x.numel() * x.element_size())  # noqa: E731
    (a0, a1), (b0, b1) = bytes_of(a), bytes_of(b)
    return a0 < b1 and b0 < a1
