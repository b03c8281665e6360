"""When torch's dense product runs a linear layer, in place of our sparse kernels.

Ours want the batch last, so the rows of a token layer are turned over before and after; torch's product takes
them as they lie. It multiplies by zeros, too.
"""

from sparsefl.kernels.sparse_conv import Conv

DENSE_FROM = 0.6  # stored share from which it is the faster one
SMALL = 1 << 14  # weights up to which torch's functions also make the dense weight, without a call of ours
FEW = 1 << 22  # multiplications of a dense product below which calls decide, and torch's are the shorter ones


def dense_pays(conv: Conv, rows: int) -> bool:
    """Whether torch's product is the faster one for so many rows that lie one after the other, forward and
    backward together. As it was found for 64 to 512 features and 32 to 2048 rows (docs/tuning.md)."""
    return conv.density >= DENSE_FROM or rows * conv.in_channels * conv.out_channels < FEW
