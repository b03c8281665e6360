"""Does the native code of this installation compute what the reference does? A second's work, for `doctor`.

Every operation runs on a small random model under each native variant and under the reference. Whole numbers
and bits have to agree exactly, floats up to the rounding of a short sum. The tests are the thorough check;
this one is for machines that have no tests.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparsefl.kernels import bitmap as bitmaps
from sparsefl.kernels import loss, mask_code, native, norm, number_code, pointwise, pool, use_backend
from sparsefl.kernels import sparse_conv as convolution
from sparsefl.kernels.bias_gradient import bias_gradient
from sparsefl.kernels.checksum import checksum
from sparsefl.kernels.drift import drift, drift_of_runs
from sparsefl.kernels.dropout import dropout
from sparsefl.kernels.gather import Moves, gather
from sparsefl.kernels.layout import Bitmap, Packed
from sparsefl.kernels.masked_average import masked_average
from sparsefl.kernels.masked_sgd import masked_sgd_
from sparsefl.kernels.pack import pack, unpack
from sparsefl.kernels.pqi import pqi
from sparsefl.kernels.select import select
from sparsefl.kernels.transpose import transpose

SIZES = (1000, 1, 64, 4097)  # a segment that ends inside a word, a single entry, whole words, several vectors
ROWS = 17  # 4097 = 17 * 241


class Check(NamedTuple):
    """One operation on one variant; `problem` is empty when it agrees."""

    op: str
    variant: str
    problem: str


def self_check() -> Iterator[Check]:
    """Every operation on every native variant of this machine. Not built: one row that says so."""
    if not native.isas():
        yield Check("all", "cpu", "the native kernels are not built: run `pip install -e .` (or `make venv`)")
    for op, work in OPERATIONS.items():
        with use_backend("reference"):
            expected = work()
        for isa in native.isas():
            yield Check(op, f"cpu:{isa}", _problem(work, f"cpu:{isa}", expected))


def _problem(work: Callable[[], list[Tensor]], variant: str, expected: list[Tensor]) -> str:
    try:
        with use_backend(variant):
            actual = work()
    except (RuntimeError, ValueError) as wrong:
        return f"{type(wrong).__name__}: {wrong}"
    for i, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        if ours.is_floating_point():
            scale = max(1.0, theirs.abs().max().item()) if theirs.numel() else 1.0
            same = torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5 * scale)
        else:
            same = torch.equal(ours, theirs)
        if not same:
            return f"result {i} differs from the reference"
    return ""


def _bitmap(seed: int, sizes: tuple[int, ...] = SIZES) -> Bitmap:
    mask = torch.rand(sum(sizes), generator=torch.Generator().manual_seed(seed)) < 0.3
    return bitmaps.from_mask(mask, sizes)


def _floats(n: int, seed: int) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def _model(seed: int) -> Packed:
    bitmap = _bitmap(seed)
    return Packed(bitmap, _floats(bitmap.nnz, seed))


def _bitmap_work() -> list[Tensor]:
    matrix = _bitmap(0, (SIZES[-1],))
    whole = _bitmap(0)
    indices = [*bitmaps.csr(matrix, ROWS), *bitmaps.transpose(matrix, ROWS)]
    return [whole.words, whole.offsets, bitmaps.to_mask(whole), *indices]


def _checksum_work() -> list[Tensor]:
    data = np.arange(1001).astype(np.uint8)
    return [torch.tensor([checksum(data[:n], seed=n) >> 1 for n in (0, 3, 100, 1001)])]


def _mask_code_work() -> list[Tensor]:
    bitmap, known = _bitmap(1), _bitmap(2)
    codes = [mask_code.encode(bitmap), mask_code.encode(bitmap, known)]
    back = mask_code.decode(codes[1], bitmap.segments, mask_code.flips(bitmap, known), known)
    return [*map(torch.from_numpy, codes), back.words]


def _number_code_work() -> list[Tensor]:
    found = []
    for width, x in {
        4: _floats(1000, 1),
        2: _floats(1000, 2).half(),
        1: _floats(1000, 3).to(torch.int8),
    }.items():
        code = number_code.encode(x.view(torch.uint8).numpy(), width)
        assert code is not None
        found += [torch.from_numpy(code), torch.from_numpy(number_code.decode(code, 1000, width))]
    return found


def _conv_work() -> list[Tensor]:
    """Every kernel, with a stride and without."""
    bitmap = _bitmap(0, (20 * 17 * 9,))
    values, x, bias = _floats(bitmap.nnz, 1), _floats(17 * 5 * 6 * 9, 2).view(17, 5, 6, 9), _floats(20, 3)
    found = []
    for stride in (1, 2):
        conv = convolution.Conv(bitmap, 20, 17, (3, 3), stride=stride, padding=(1, 1))
        high, wide = conv.output_size(5, 6)
        dy = _floats(20 * high * wide * 9, 4).view(20, high, wide, 9)
        for kernel in (k for k in convolution.candidates(conv) if not convolution.split(k)[1]):
            found += [
                convolution.forward(conv, values, x, bias, kernel=kernel),
                convolution.input_gradient(conv, values, dy, (5, 6), kernel=kernel),
                convolution.weight_gradient(conv, x, dy, kernel=kernel),
            ]
    return found


def _images(channels: int, seed: int) -> Tensor:
    return _floats(channels * 5 * 6 * 9, seed).view(channels, 5, 6, 9)


def _pointwise_work() -> list[Tensor]:
    a, b = _images(7, 1), _images(7, 2)
    y = pointwise.relu(a)
    return [pointwise.add(a, b), pointwise.add_relu(a, b), y, pointwise.relu_backward(y, b)]


def _bias_work() -> list[Tensor]:
    return [bias_gradient(_images(7, 1))]


def _transpose_work() -> list[Tensor]:
    return [transpose(_images(7, 1).reshape(7, -1))]


def _dropout_work() -> list[Tensor]:
    return [dropout(_images(7, 1), 0.3, seed=2**63 + 1, step=5)]


def _gather_work() -> list[Tensor]:
    images = np.arange(5 * 2 * 9 * 11).astype(np.uint8).reshape(5, 2, 9, 11)
    indices, shifts = np.arange(19) % 5, np.arange(19) % 9
    moves = Moves(shifts, shifts[::-1].copy(), shifts > 4, padding=4)
    mean, std = np.array([100, 90], np.float32), np.array([50, 60], np.float32)
    return [gather(images, indices, mean, std, moves), gather(images.astype(np.float32), indices)]


def _loss_work() -> list[Tensor]:
    logits, labels = _floats(10 * 21, 1).view(10, 21), torch.arange(21) % 10
    found = loss.cross_entropy(logits, labels, gradient=True)
    assert found.gradient is not None
    return [found.losses, found.gradient, torch.tensor(loss.count_correct(logits, labels))]


def _norm_work() -> list[Tensor]:
    x, dy, gamma, beta = _images(8, 1), _images(8, 2), _floats(8, 3), _floats(8, 4)
    by_group = norm.group_norm(x, 4, gamma, beta, relu=True)
    by_batch = norm.batch_norm(x, gamma, beta)
    back = norm.group_norm_backward(dy, x, *by_group[1:], gamma, beta, relu=True)
    back_too = norm.batch_norm_backward(dy, x, *by_batch[1:], gamma, beta)
    return [t for t in (*by_group, *by_batch, *back, *back_too) if t is not None]


def _pool_work() -> list[Tensor]:
    window, x = pool.Window.of(3, 2, 1), _images(7, 1)
    largest = pool.max_pool(window, x)
    return [
        *largest,
        pool.max_pool_backward(window, largest.y, largest.tap, (5, 6)),
        pool.average_pool(window, x),
        pool.adaptive_average_pool(x, (2, 3)),
    ]


def _drift_work() -> list[Tensor]:
    a, b = _model(1), _model(2)
    x, y = (m.values[:50].contiguous() for m in (a, b))
    return [drift(a, b), drift_of_runs(x, y, [0, 7, 7, 50])]


def _average_work() -> list[Tensor]:
    return [masked_average(_bitmap(0), [_model(seed) for seed in range(5)])]


def _sgd_work() -> list[Tensor]:
    bitmap, w = _model(1)
    through, u, v = w.clone(), torch.zeros_like(w), torch.zeros_like(w)
    masked_sgd_(w, _floats(w.numel(), 2), u, lr=0.1, momentum=0.9, weight_decay=5e-4)
    masked_sgd_(through, _floats(sum(SIZES), 3), v, lr=0.1, momentum=0.9, nesterov=True, through=bitmap)
    return [w, u, through, v]


def _pack_work() -> list[Tensor]:
    bitmap, values = _model(1)
    return [pack(_floats(sum(SIZES), 2), bitmap), unpack(values, bitmap)]


def _pqi_work() -> list[Tensor]:
    bitmap, values = _model(1)
    return [*pqi(values, bitmap.offsets), *pqi(values, bitmap.offsets, p=0.7, q=1.9)]


def _select_work() -> list[Tensor]:
    bitmap, values = _model(1)
    k = bitmap.counts // 3
    scores = _floats(sum(SIZES), 2)
    return [
        select(values, bitmap, k).words,
        select(values, bitmap, k, largest=True).words,
        select(scores, bitmap, k, largest=True, dense=True).words,
    ]


OPERATIONS: dict[str, Callable[[], list[Tensor]]] = {
    "bias_gradient": _bias_work,
    "bitmap": _bitmap_work,
    "checksum": _checksum_work,
    "drift": _drift_work,
    "dropout": _dropout_work,
    "gather": _gather_work,
    "loss": _loss_work,
    "mask_code": _mask_code_work,
    "masked_average": _average_work,
    "masked_sgd": _sgd_work,
    "norm": _norm_work,
    "number_code": _number_code_work,
    "pack": _pack_work,
    "pointwise": _pointwise_work,
    "pool": _pool_work,
    "pqi": _pqi_work,
    "select": _select_work,
    "sparse_conv": _conv_work,
    "transpose": _transpose_work,
}
