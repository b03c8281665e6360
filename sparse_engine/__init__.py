"""Sparse models: sparse networks, models at rest, and how these are pruned, grown, averaged and sent.

Knows no client and no round. `import sparse_engine as se` is meant to be enough. `se.masks` is the function
that returns what a network or model stores; the module of first masks is sparse_engine/model/masks.py.
"""

from sparse_engine import models, wire
from sparse_engine.choice.plan import steady_plan
from sparse_engine.doctor.environment import check_settings, has_bf16, numerics
from sparse_engine.flops import Flops, count_flops, training_flops
from sparse_engine.model.arithmetic import combine, overlay, zeros
from sparse_engine.model.average import average, drift, weighted_average
from sparse_engine.model.grow import Growth, rigl, rigl_fraction
from sparse_engine.model.masks import erk_densities, erk_masks, uniform_masks
from sparse_engine.model.model import Layout, Model
from sparse_engine.model.pattern import Pattern
from sparse_engine.model.prune import PQIConfig, keep_largest, pqi, prune_pqi
from sparse_engine.model.tensor import SparseTensor
from sparse_engine.nn.bridge import compress, load, masks
from sparse_engine.nn.convert import dense_gradients, sparsify, to_dense
from sparse_engine.nn.dynamic import RigL
from sparse_engine.nn.optim import SparseSGD
from sparse_engine.nn.report import Report, report
from sparse_engine.nn.rows import Row
from sparse_engine.program.compiled import NotCaptured, Program, compile
from sparsefl.kernels import use_threads
from sparsefl.kernels.errors import NoKernel, NotBuilt, SettingError
from sparsefl.kernels.layout import Bitmap
from sparsefl.kernels.memory import exhausted as out_of_memory
from sparsefl.kernels.native import use_isa

__all__ = [
    "Bitmap",
    "Flops",
    "Growth",
    "Layout",
    "NoKernel",
    "NotBuilt",
    "NotCaptured",
    "PQIConfig",
    "Pattern",
    "Program",
    "Report",
    "RigL",
    "Row",
    "SettingError",
    "SparseSGD",
    "SparseTensor",
    "Model",
    "average",
    "check_settings",
    "combine",
    "compile",
    "compress",
    "count_flops",
    "dense_gradients",
    "drift",
    "erk_densities",
    "erk_masks",
    "has_bf16",
    "keep_largest",
    "load",
    "masks",
    "models",
    "numerics",
    "out_of_memory",
    "overlay",
    "pqi",
    "prune_pqi",
    "report",
    "rigl",
    "rigl_fraction",
    "sparsify",
    "steady_plan",
    "to_dense",
    "training_flops",
    "uniform_masks",
    "use_isa",
    "use_threads",
    "weighted_average",
    "wire",
    "zeros",
]
