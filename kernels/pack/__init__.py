"""Dense <-> packed:   pack keeps the entries that a bitmap stores, in order;   unpack puts 0 elsewhere"""

from torch import Tensor

from sparsefl.kernels import checks, memory, registry
from sparsefl.kernels.layout import Bitmap

_call = registry.bind(__name__)


def pack(dense: Tensor, bitmap: Bitmap, out: Tensor | None = None) -> Tensor:
    """The stored entries of `dense` (segments concatenated). What lies outside the bitmap is never used."""
    checks.flat(dense=dense)
    checks.same_device(dense=dense, bitmap=bitmap.words)
    checks.length(bitmap.segments.numel, "dense entries under the bitmap", dense=dense)
    return _into("pack", dense, bitmap, out, bitmap.nnz)


def unpack(values: Tensor, bitmap: Bitmap, out: Tensor | None = None) -> Tensor:
    """The dense form (segments concatenated): values where the bitmap has a bit, 0 elsewhere."""
    checks.flat(values=values)
    checks.same_device(values=values, bitmap=bitmap.words)
    checks.length(bitmap.nnz, "packed values in the bitmap", values=values)
    return _into("unpack", values, bitmap, out, bitmap.segments.numel)


def _into(op: str, source: Tensor, bitmap: Bitmap, out: Tensor | None, size: int) -> Tensor:
    if out is None:
        out = memory.plain(size, source.dtype, source.device)
    else:
        checks.flat(source=source, out=out)
        checks.same_dtype(source=source, out=out)
        checks.length(size, "entries", out=out)
    if size:
        _call(op, source.device, source, bitmap, out)
    return out
