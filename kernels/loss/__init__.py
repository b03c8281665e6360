"""Mean cross-entropy of softmax over a batch, with its gradient, and how many samples are classified right:

    loss = 1/N sum_n (log sum_c exp(x_cn) - x_yn,n)        dx_cn = (softmax(x)_cn - [c = y_n]) / N

logits x: batch-last [classes, batch], contiguous; labels y: int64 [batch]. A NaN or an infinity among the
logits shows in the loss as it does in torch's. The mean is summed in float64.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from sparsefl.kernels import checks, memory, registry

_call = registry.bind(__name__)


class Loss(NamedTuple):
    """The mean over the batch, the loss of each sample, and the gradient [classes, batch] if asked for."""

    mean: float
    losses: Tensor
    gradient: Tensor | None


def cross_entropy(logits: Tensor, labels: Tensor, *, gradient: bool = False) -> Loss:
    """The loss of a batch; `gradient`: with the gradient of the mean in the logits."""
    _check(logits, labels)
    losses = memory.empty((logits.shape[1],), logits)
    dlogits = memory.empty(tuple(logits.shape), logits) if gradient else None
    return Loss(_call("cross_entropy", logits.device, logits, labels, losses, dlogits), losses, dlogits)


def count_correct(logits: Tensor, labels: Tensor) -> int:
    """How many samples have their first largest logit at their label. A NaN counts as the largest."""
    _check(logits, labels)
    return _call("count_correct", logits.device, logits, labels)


def _check(logits: Tensor, labels: Tensor) -> None:
    if logits.dim() != 2 or logits.numel() == 0:
        wanted = "logits as [classes, batch] of at least one class and sample"
        raise ValueError(f"expected {wanted}, got {tuple(logits.shape)}")
    checks.dtype(*checks.FLOATS, logits=logits)
    checks.dtype(torch.int64, labels=labels)
    checks.same_device(logits=logits, labels=labels)
    checks.contiguous(logits=logits, labels=labels)
    if labels.shape != logits.shape[1:]:
        raise ValueError(f"expected {logits.shape[1]} labels, got {tuple(labels.shape)}")
    lowest, highest = (int(n) for n in labels.aminmax())
    if lowest < 0 or highest >= len(logits):
        raise ValueError(f"expected labels from 0 to {len(logits) - 1}, got {lowest} to {highest}")
