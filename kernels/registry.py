"""Which implementation of an operation runs: the only place that decides.

By default the device of the tensors decides: a CPU tensor runs on `cpu` (native code), a CUDA tensor on
`triton`. `use_backend("reference")` or the environment variable `SPARSE_BACKEND` overrides. `cpu:avx2` names
one instruction set of the native backend. A backend asked for by name and missing raises; nothing ever falls
back.
"""

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch

from sparsefl import kernels
from sparsefl.kernels import native, settings
from sparsefl.kernels.errors import NoKernel, SettingError
from sparsefl.kernels.settings import BACKENDS

_BY_DEVICE = {"cpu": "cpu", "cuda": "triton"}
_implementations: dict[tuple[str, str], Callable] = {}
_forced: ContextVar[str | None] = ContextVar("backend", default=None)


def register(op: str, backend: str) -> Callable[[Callable], Callable]:
    """Decorator: this function is `op` on `backend`."""
    assert backend in BACKENDS

    def add(function: Callable) -> Callable:
        assert (op, backend) not in _implementations, f"{op} is registered twice for {backend}"
        _implementations[op, backend] = function
        return function

    return add


def bind(package: str) -> Callable:
    """`call(op, device, *args)` for the operations that live in `package`."""
    return partial(_call, package)


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Run every operation on `reference`, `cpu`, `triton`, or one native variant such as `cpu:avx2`."""
    backend, isa = _split(name)
    token = _forced.set(backend)
    try:
        with native.use_isa(isa) if isa else _unchanged():
            yield
    finally:
        _forced.reset(token)


def variants(operation: str | None = None) -> list[str]:
    """Every backend this machine can run, the native one once per instruction set.

    operation: the name of a folder of kernels, such as "sparse_conv"; only backends that have it then.
    """
    names = ["reference", *(f"cpu:{isa}" for isa in native.isas())]
    if _triton_runs("cuda" if torch.cuda.is_available() else "cpu"):
        names.append("triton")
    if operation is None:
        return names
    if operation not in operations():
        raise ValueError(f"expected an operation out of {operations()}, got {operation!r}")
    return [name for name in names if _exists(operation, _split(name)[0])]


def operations() -> list[str]:
    """The folders of kernels that hold an operation, or a family of them: those with a reference."""
    packages = (module.name for module in pkgutil.iter_modules(kernels.__path__) if module.ispkg)
    return sorted(name for name in packages if _exists(name, "reference"))


def _exists(operation: str, backend: str) -> bool:
    return importlib.util.find_spec(f"{kernels.__name__}.{operation}._{backend}") is not None


def backend_for(device: str) -> str:
    """The backend that a call on tensors of this device type runs on."""
    forced = _forced.get()
    backend = forced or settings.current().backend
    if backend is None:
        if device not in _BY_DEVICE:
            raise ValueError(f"no kernels for device {device!r}; there are kernels for {sorted(_BY_DEVICE)}")
        return _BY_DEVICE[device]
    wrong: type[ValueError] = ValueError if forced else SettingError
    name = f"backend {backend!r}" if forced else f"SPARSE_BACKEND={backend}"
    if backend == "cpu" and device != "cpu":
        raise wrong(f"{name} takes CPU tensors, got one on {device!r}")
    if backend == "triton" and not _triton_runs(device):
        raise wrong(f"{name} takes CUDA tensors, or CPU tensors under TRITON_INTERPRET=1")
    return backend


def _call(package: str, op: str, device: torch.device, *args: Any) -> Any:
    backend = backend_for(device.type)
    found = _implementations.get((op, backend)) or _loaded(package, op, backend)
    return found(*args)


def _loaded(package: str, op: str, backend: str) -> Callable:
    file = f"{package}._{backend}"
    try:
        importlib.import_module(file)
    except ModuleNotFoundError as missing:
        if missing.name != file:
            raise
    if (op, backend) not in _implementations:
        name = package.rpartition(".")[2]
        raise NoKernel(
            f"there is no {backend} kernel of {name} yet ({op}); "
            "it runs on CPU tensors with the backend cpu, and on all with the backend reference"
        )
    return _implementations[op, backend]


def _split(name: str) -> tuple[str, str]:
    backend, _, isa = name.partition(":")
    if backend not in BACKENDS or (isa and backend != "cpu"):
        raise ValueError(f"expected a backend out of {BACKENDS} or 'cpu:<instruction set>', got {name!r}")
    if isa and isa not in native.isas():
        raise ValueError(f"instruction set {isa!r} is not available here; there are {native.isas()}")
    return backend, isa


def _triton_runs(device: str) -> bool:
    return device == "cuda" or settings.current().interpret


@contextmanager
def _unchanged() -> Iterator[None]:
    yield
