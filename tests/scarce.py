"""Work with hardly any memory, in a process of its own, for test_out_of_memory: scarce.py THREADS CASE...

Every case is done once with all the memory it likes; then with an address space that ends at what is in use,
or some megabytes above, until it succeeds. Each failure must be an exception that says that there is no
memory, and afterwards the same work with all memory must give the same bits as the first time.
Prints the errors that each case met, one per line.
"""

import ctypes
import gc
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from ctypes import c_size_t, c_void_p
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import sparse_engine as se
from sparse_engine.choice.plan import Plan, use_plan
from sparse_engine.doctor import selfcheck
from sparsefl.kernels import bitmap, memory, use_threads
from sparsefl.kernels import sparse_conv as convolution
from sparsefl.kernels.select import select

MIB = 1 << 20
Work = Callable[[], list[Tensor]]


@contextmanager
def limited(more: int) -> Iterator[None]:
    """No more than `more` bytes of address space beside what is in use."""
    memory.trim()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, hard))


@contextmanager
def crumbs() -> Iterator[None]:
    """Nothing left at all: what the C library still has is taken, too, down to the smallest piece."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = c_void_p, [c_size_t], [c_void_p]
    pieces = np.zeros(1 << 21, np.uint64)
    with limited(0):
        count = 0
        for size in (MIB, 64 << 10, 4096, 1024, 256, 64, 16):
            while count < len(pieces) and (piece := libc.malloc(size)):
                pieces[count] = piece
                count += 1
        try:
            yield
        finally:
            for piece in pieces[:count]:
                libc.free(int(piece))


def step() -> Work:
    """One training step of ResNet18: loss, gradients and the new weights."""
    net = se.sparsify(se.models.resnet18(), 0.5)
    start = {name: value.clone() for name, value in net.state_dict().items()}
    images, labels = torch.randn(8, 3, 32, 32), torch.arange(8)

    def work() -> list[Tensor]:
        net.load_state_dict(start)
        optimizer = se.SparseSGD(net, lr=0.1, momentum=0.9)
        try:
            loss = F.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
        finally:
            optimizer.zero_grad()
        return [loss.detach(), *(p.detach().clone() for p in net.parameters())]

    return work


def conv(kernel: str) -> Work:
    """A convolution whose scratch memory is larger than anything that lies around."""
    mask = torch.rand(256 * 256 * 9) < 0.5
    conv = convolution.Conv(bitmap.from_mask(mask, (mask.numel(),)), 256, 256, (3, 3), padding=(1, 1))
    values, x, dy = torch.randn(conv.bitmap.nnz), torch.randn(256, 8, 8, 64), torch.randn(256, 8, 8, 64)

    def work() -> list[Tensor]:
        return [
            convolution.forward(conv, values, x, kernel=kernel),
            convolution.input_gradient(conv, values, dy, (8, 8), kernel=kernel),
            convolution.weight_gradient(conv, x, dy, kernel=kernel),
        ]

    return work


def choice() -> Work:
    """A selection from 2 million values of one size, which are all near the border."""
    x = torch.ones(2 << 20)
    whole = bitmap.from_mask(x > 0, (x.numel() // 2, x.numel() // 2))
    k = torch.tensor([1000, 2000])
    return lambda: [select(x, whole, k, largest=True, dense=dense).words for dense in (False, True)]


CASES: dict[str, Callable[[], Work]] = {
    "step": step,
    "choice": choice,
    **{kernel: partial(conv, kernel) for kernel in convolution.KERNELS},
    **{name: (lambda work=work: work) for name, work in selfcheck.OPERATIONS.items()},
}
LIMITS = {"step": [n * MIB for n in (0, 20, 60, 160, 640)]}
FINE = [n * MIB for n in (*range(0, 24, 2), *range(24, 64, 8), *range(64, 512, 64))]


def main(threads: int, *cases: str) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    torch.randn(1 << 20).add_(1)  # starts torch's threads
    with use_threads(threads), use_plan(Plan()):
        for case in cases:
            for error in starve(CASES[case](), LIMITS.get(case, FINE)):
                print(f"{case}: {error}")


def starve(work: Work, limits: list[int]) -> list[str]:
    """The errors on the way to enough memory."""
    expected = [t.clone() for t in work()]  # not in the pool, which would keep its segment
    met = [attempt(work, crumbs())]
    check(work(), expected)
    for more in limits:
        met.append(attempt(work, limited(more)))
        if met[-1] is None or met[-1] not in met[:-1]:
            check(work(), expected)
        if met[-1] is None:
            return sorted({error for error in met if error})
    raise AssertionError(f"never enough memory: {met[-1]}")


def check(found: list[Tensor], expected: list[Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), "not the same bits"


def attempt(work: Work, way: AbstractContextManager[None]) -> str | None:
    """Why the work failed, or None. The tensors of the failed work are gone when this returns."""
    try:
        with way:
            work()
    except Exception as error:
        gc.collect()
        sentence = memory.exhausted(error)
        if sentence is None:
            raise
        return f"{type(error).__name__}: {sentence}"
    return None


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
