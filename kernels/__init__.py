"""Tensors in, tensors out: the compute kernels, on up to three backends (reference, cpu, triton).

No autograd, no modules, no files and no clients here. Every sub-package is one operation with the same
files: `__init__` (the maths, the checks, one call), `_reference`, `_cpu`, and `_triton` for models at rest.
Layers and the coders of messages have no `_triton` yet.
"""

from sparsefl.kernels.native import num_threads, use_threads
from sparsefl.kernels.registry import use_backend

__all__ = ["num_threads", "use_backend", "use_threads"]
