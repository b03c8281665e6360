"""Plain torch: the specification of the p- and q-norms."""

from torch import Tensor

from sparsefl.kernels.registry import register


@register("pq_norms", "reference")
def pq_norms(values: Tensor, offsets: Tensor, p: float, q: float, norms: Tensor) -> None:
    for layer, w in enumerate(values.split(offsets.diff().tolist())):
        largest = w.abs().max().double() if w.numel() else 0.0
        if largest > 0:  # scaled, so that no power under- or overflows
            scaled = w.double().abs() / largest
            norms[layer, 0] = largest * scaled.pow(p).sum() ** (1 / p)
            norms[layer, 1] = largest * scaled.pow(q).sum() ** (1 / q)
        elif w.numel():
            norms[layer] = largest  # 0, or NaN
