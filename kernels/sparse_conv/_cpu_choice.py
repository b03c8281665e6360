"""The native kernels of a convolution, and which of them is usually the fastest.

`sparse` touches stored entries only. `dense` and `winograd` multiply by the whole weight, with zeros where
nothing is stored: they are for layers that masks leave full or nearly so. `winograd` (3x3 kernel, stride 1,
undilated) needs a quarter of the multiplications, so it wins far below density 1. `torch` is PyTorch's dense
convolution or product with what turns images over for it (_cpu_torch.py); a program cannot call it.
"""

from math import ceil

from sparsefl.kernels.native import extension, isas
from sparsefl.kernels.sparse_conv.conv import Conv, Geometry

NATIVE = ("sparse", "dense", "winograd")
KERNELS = (*NATIVE, "torch")
DENSE_FROM = 0.85  # stored share from which the dense kernel is the faster one
LARGE = 16 << 20  # bytes of transformed weights from which they come from memory
# The same for Winograd's, if its 4x4 tiles were full: a share, and another over the columns of its products
# (tiles times images), because transforming the weight costs the same however few they are; the last: where
# the transformed weight is large. With 16 lanes and without.
WINOGRAD_FROM = {
    True: {"forward": (0.18, 6, 20), "input_gradient": (0.18, 6, 20), "weight_gradient": (0.18, 16, 16)},
    False: {"forward": (0.22, 6, 6), "input_gradient": (0.22, 6, 6), "weight_gradient": (0.24, 14, 14)},
}


def candidates(conv: Conv | Geometry, *, native: bool = False) -> tuple[str, ...]:
    """Return those of KERNELS, or of NATIVE, that can run `conv`."""
    plain = conv.kernel == (3, 3) and conv.stride == 1 and conv.dilation == (1, 1)
    fitting = KERNELS if plain and max(conv.padding) <= 2 else tuple(k for k in KERNELS if k != "winograd")
    return tuple(k for k in fitting if k in NATIVE) if native else fitting


def suggest(
    conv: Conv | Geometry, direction: str, height: int, width: int, batch: int, *, native: bool = False
) -> str:
    """Return the kernel that is usually the fastest for an input image [height, width] and batch; native: of
    those that programs can call."""
    if "winograd" in candidates(conv):
        high, wide = (height, width) if direction == "input_gradient" else conv.output_size(height, width)
        tiles = max(1, ceil(high / 4) * ceil(wide / 4))
        share, few, many = WINOGRAD_FROM[bool(isas()) and extension().conv_vector() == 16][direction]
        more = many if 36 * 4 * conv.out_channels * conv.in_channels >= LARGE else few
        if conv.density * high * wide / (16 * tiles) >= share + more / (tiles * max(1, batch)):
            return "winograd"
    return "dense" if conv.density >= DENSE_FROM else "sparse"
