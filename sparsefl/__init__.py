"""`import sparsefl`: sparse networks as `sparsefl.se`, federated learning as `sparsefl.fl`.

`sparsefl.kernels` and `sparsefl.bench` are the folders kernels/ and bench/ of a checkout, to which links lead
from here: as top-level packages their names would be those of others (`kernels` is Hugging Face's). Both
engines are imported when they are asked for, since they import `sparsefl.kernels` themselves.
"""

import importlib
from types import ModuleType

__all__ = ["fl", "se"]
_OFFERED = {"fl": "fl", "se": "sparse_engine"}


def __getattr__(name: str) -> ModuleType:
    if name not in _OFFERED:
        raise AttributeError(f"module 'sparsefl' has no attribute {name!r}")
    return importlib.import_module(_OFFERED[name])
