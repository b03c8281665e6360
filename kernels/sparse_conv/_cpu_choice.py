"""The native kernels of a convolution, and which of them is usually the fastest.

`sparse` touches stored entries only. `dense` and `winograd` multiply by the whole weight, with zeros where
nothing is stored: they are for layers that masks leave full or nearly so. `winograd` (3x3 kernel, stride 1,
undilated) needs a quarter of the multiplications, so it wins far below density 1. `torch` is PyTorch's dense
convolution or product with what turns images over for it (_cpu_torch.py); a program cannot call it.

A native kernel runs on the instruction set in use; "sparse:avx2" is the sparse one on another. On AVX-512,
those for AVX2 are candidates too: they have other tiles, and on processors with 256-bit units win at times.
"""

from math import ceil

from sparsefl.kernels.native import bf16_dot, extension, fast_bf16_dot, isa, isas
from sparsefl.kernels.sparse_conv.conv import Conv, Geometry

NATIVE = ("sparse", "dense", "winograd")
KERNELS = (*NATIVE, "torch")
BESIDE = {"avx512": ("avx2",)}  # instruction sets that are tried beside the one in use
DENSE_FROM = 0.85  # stored share from which the dense kernel is the faster one
LARGE = 16 << 20  # bytes of transformed weights from which they come from memory
# The same for Winograd's, if its 4x4 tiles were full: a share, and another over the columns of its products
# (tiles times images), because transforming the weight costs the same however few they are; the last: where
# the transformed weight is large. With 16 lanes and without.
WINOGRAD_FROM = {
    True: {"forward": (0.18, 6, 20), "input_gradient": (0.18, 6, 20), "weight_gradient": (0.18, 16, 16)},
    False: {"forward": (0.22, 6, 6), "input_gradient": (0.22, 6, 6), "weight_gradient": (0.24, 14, 14)},
}
# What is added to the share for bfloat16 images where the processor has an instruction for their products:
# sparse kernels gain from it, Winograd's do not. As found on Zen 5; and on Zen 4, where the instruction makes
# twice the products of a multiply-add.
MORE_BF16 = {"forward": 0.06, "input_gradient": 0.06, "weight_gradient": 0.2}
MORE_FAST_BF16 = {"forward": 0.22, "input_gradient": 0.22, "weight_gradient": 0.32}
DENSE_FROM_BF16 = 0.75  # DENSE_FROM there


def candidates(conv: Conv | Geometry, *, native: bool = False) -> tuple[str, ...]:
    """Return the kernels that can run `conv`; native: without torch's."""
    plain = conv.kernel == (3, 3) and conv.stride == 1 and conv.dilation == (1, 1)
    ours = NATIVE if plain and max(conv.padding) <= 2 else NATIVE[:2]
    beside = BESIDE.get(isa(), ()) if isas() else ()
    found = (*ours, *(f"{kernel}:{name}" for name in beside for kernel in ours))
    return found if native else (*found, "torch")


def split(kernel: str) -> tuple[str, str]:
    """Return the name of a kernel, and the instruction set that it names; "": the one in use."""
    name, _, named = kernel.partition(":")
    return name, named


def joined(name: str, isa: str) -> str:
    """Return what `split` takes apart."""
    return f"{name}:{isa}" if isa else name


def suggest(
    conv: Conv | Geometry,
    direction: str,
    height: int,
    width: int,
    batch: int,
    bf16: bool = False,
    *,
    native: bool = False,
) -> str:
    """Return the kernel that is usually the fastest for an input image [height, width] and batch; bf16: of
    bfloat16; native: of those that programs can call."""
    dot = bf16 and bool(isas()) and bf16_dot()
    if "winograd" in candidates(conv):
        high, wide = (height, width) if direction == "input_gradient" else conv.output_size(height, width)
        tiles = max(1, ceil(high / 4) * ceil(wide / 4))
        share, few, many = WINOGRAD_FROM[bool(isas()) and extension().conv_vector() == 16][direction]
        if dot:
            share += (MORE_FAST_BF16 if fast_bf16_dot() else MORE_BF16)[direction]
        more = many if 36 * 4 * conv.out_channels * conv.in_channels >= LARGE else few
        if conv.density * high * wide / (16 * tiles) >= share + more / (tiles * max(1, batch)):
            return "winograd"
    full = DENSE_FROM_BF16 if dot and fast_bf16_dot() else DENSE_FROM
    return "dense" if conv.density >= full else "sparse"
