"""Tensors that say they are on cuda:0 and keep their numbers in the memory of this process.

torch computes on them with its CPU kernels. On the way are counted what would be launches, copies and waits
of the host on a real card (`card.events`): `launch`, `aten:<name>`, `sync:<reason>`, `async:<direction>`.
Memory that nobody wrote may not be read: neither by kernels nor by torch. Two devices in one
operation are refused, as torch would. Not there: backward passes of autograd, whose engine asks for a driver.
"""

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from virtual_card import guard
from virtual_card.card import Card
from virtual_card.faults import Fault
from virtual_card.memory import Allocation, Memory

CUDA = torch.device("cuda", 0)
MEMORY = Memory()  # for as long as the process: caches hold tensors from one test to the next
_cards: list[Card] = []  # the last one is in use

_EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
_VIEWS = _EMPTY | {
    *("view", "slice", "select", "t", "transpose", "permute", "as_strided", "detach", "alias", "unsqueeze"),
    *(
        "squeeze",
        "expand",
        "_unsafe_view",
        "_reshape_alias",
        "reshape",
        "split",
        "split_with_sizes",
        "unbind",
    ),
    *("unfold", "diagonal", "view_as_real", "lift_fresh"),
}
_ONLY_WRITE = {"copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_"}
_WRITE_A_PART = {
    "index_put_",
    "_index_put_impl_",
    "index_copy_",
    "scatter_",
    "masked_fill_",
    "masked_scatter_",
}
_SYNCS = {"_local_scalar_dense", "nonzero", "equal", "masked_select", "is_nonzero", "unique_consecutive"}
_TAKES_CPU_INDICES = {"index", "index_put_", "index_put", "_index_put_impl_"}


class OnCard(Tensor):
    """A tensor on cuda:0; `held` has its numbers."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor, *, written: bool = True) -> "OnCard":
        shape, strides = held.shape, held.stride()
        made = Tensor._make_wrapper_subclass(
            cls, shape, strides=strides, storage_offset=held.storage_offset(), dtype=held.dtype, device=CUDA
        )
        made.held = held
        _own(held, written)
        return made

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def tolist(self) -> Any:
        _event("sync:tolist")
        _check_written("tolist", self)
        return self.held.tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")

    def __array__(self, *_: Any) -> Any:
        return self.numpy()

    def __repr__(self, **_: Any) -> str:
        return f"OnCard({self.held})"

    def __deepcopy__(self, memo: dict) -> "OnCard":
        return self.clone()

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        return _dispatch(function, args, kwargs or {})


class _Mode(TorchDispatchMode):
    """Sees what makes tensors on cuda:0 out of none."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        return _dispatch(function, args, kwargs or {})


class _FromData(TorchFunctionMode):
    """torch.tensor(data, device="cuda") makes its tensor below every dispatch: it goes by way of the CPU."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        given = kwargs or {}
        device = given.get("device")
        if (
            function in (torch.tensor, torch.as_tensor)
            and device is not None
            and torch.device(device).type == "cuda"
        ):
            return function(*args, **given | {"device": "cpu"}).to(device)
        return function(*args, **given)


@contextmanager
def tensors_of(card: Card) -> Iterator[None]:
    """Inside, cuda:0 is `card`."""
    guard.load()
    _cards.append(card)
    try:
        with (
            mock.patch.object(torch.cuda, "_lazy_init", lambda: None),
            mock.patch.object(torch.nn.Module, "_apply", _same_parameters(torch.nn.Module._apply)),
            mock.patch.object(threading.Thread, "run", _on_card(threading.Thread.run)),
            _FromData(),
            _Mode(),
        ):
            yield
    finally:
        _cards.pop()


def _on_card(run: Callable) -> Callable:
    """Modes are those of a thread: threads that begin on the card have them too."""

    def ran(thread: threading.Thread) -> None:
        with _FromData(), _Mode():
            run(thread)

    return ran


def _same_parameters(apply: Callable) -> Callable:
    """A network that is moved keeps its parameters as objects, which torch does by itself on a real card."""

    def applied(module: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return apply(module, *args, **kwargs)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)

    return applied


def _event(name: str) -> None:
    if _cards:
        _cards[-1].events[name] += 1


# ---- memory ----


def _own(held: Tensor, written: bool) -> None:
    storage = held.untyped_storage()
    base, size = storage.data_ptr(), storage.nbytes()
    known = MEMORY.allocations.get(base)
    if not size or (known is not None and known.alive()):
        return  # a view of it
    assert base % 16 == 0, "torch aligns its memory"
    data = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(base))
    name = f"{str(held.dtype).removeprefix('torch.')} {list(held.shape)}"
    reference = StorageWeakRef(storage)
    alive = lambda: not reference.expired()  # noqa: E731
    MEMORY.allocations[base] = Allocation(base, data, name, np.full(size, written), alive)


def _bytes_written(x: OnCard) -> Tensor | None:
    """bool [..., bytes of an element]: which bytes of this view hold something; None: it has none."""
    held, size = x.held, x.held.element_size()
    if not held.numel():
        return None
    written = torch.from_numpy(MEMORY.allocations[held.untyped_storage().data_ptr()].written)
    strides = [stride * size for stride in held.stride()]
    return written.as_strided((*held.shape, size), (*strides, 1), held.storage_offset() * size)


def _check_written(name: str, x: OnCard) -> None:
    written = _bytes_written(x)
    if written is not None and not written.all():
        owner = MEMORY.allocations[x.held.untyped_storage().data_ptr()].name
        raise Fault(f"torch: {name} reads memory of {owner} that nobody wrote")


# ---- operations of torch ----


def _dispatch(function: Any, args: tuple, kwargs: dict) -> Any:
    name = function.overloadpacket.__name__
    leaves = tree_leaves((args, kwargs))
    ours = [x for x in leaves if isinstance(x, OnCard)]
    device = kwargs.get("device")
    target = torch.device(device).type if device is not None else "cuda" if ours else "cpu"
    if not ours and target != "cuda":
        return function(*args, **kwargs)
    with torch.utils._python_dispatch._disable_current_modes():
        read, written = _arguments(function, args, kwargs)
        _one_device(name, leaves, ours, device)
        if name not in _VIEWS:
            for x in read:
                _check_written(name, x)
        _count(name, args, kwargs, target)
        out = function(*tree_map(_held, args), **tree_map(_held, _on_cpu(kwargs)))
        for x in written if name not in _WRITE_A_PART else ():
            marks = _bytes_written(x)
            if marks is not None:
                marks.fill_(True)
        if target != "cuda":
            return out
        known = {id(x.held): x for x in ours}
        return tree_map(_wrap(known, written=name not in _EMPTY), out)


def _arguments(function: Any, args: tuple, kwargs: dict) -> tuple[list[OnCard], list[OnCard]]:
    """Our tensors that are read, and those that are written; x.add_(y) does both to x."""
    read: list[OnCard] = []
    written: list[OnCard] = []
    name = function.overloadpacket.__name__
    for i, argument in enumerate(function._schema.arguments):
        value = kwargs.get(argument.name) if argument.kwarg_only or i >= len(args) else args[i]
        found = [x for x in tree_leaves(value) if isinstance(x, OnCard)]
        writes = argument.alias_info is not None and argument.alias_info.is_write
        if writes:
            written.extend(found)
        if not writes or not (argument.kwarg_only or name in _ONLY_WRITE | _WRITE_A_PART):
            read.extend(found)
    return read, written


def _held(x: Any) -> Any:
    return x.held if isinstance(x, OnCard) else x


def _on_cpu(kwargs: dict) -> dict:
    given = {key: value for key, value in kwargs.items() if key != "pin_memory"}
    return given | {"device": torch.device("cpu")} if kwargs.get("device") is not None else given


def _wrap(known: dict[int, OnCard], written: bool) -> Callable[[Any], Any]:
    """Results on the card; one that an argument already wraps is that argument."""

    def wrap(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return known[id(x)] if id(x) in known else OnCard(x, written=written)

    return wrap


def _one_device(name: str, leaves: list, ours: list[OnCard], device: Any) -> None:
    if not ours or device is not None or name == "copy_":
        return
    others = [x for x in leaves if isinstance(x, Tensor) and not isinstance(x, OnCard) and x.dim() > 0]
    if not others:
        return
    if name not in _TAKES_CPU_INDICES:
        raise RuntimeError(f"Expected all tensors to be on the same device: {name} got cuda:0 and cpu")
    _event("sync:cpu->cuda")


def _count(name: str, args: tuple, kwargs: dict, target: str) -> None:
    if name in ("_to_copy", "copy_"):
        source = args[0 if name == "_to_copy" else 1].device.type
        to = target if name == "_to_copy" else args[0].device.type
        waits = not (kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]))
        _event("launch" if source == to else f"{'sync' if waits else 'async'}:{source}->{to}")
    elif name in _SYNCS:
        _event(f"sync:{name}")
    elif name not in _VIEWS:
        _event("launch")
        _event(f"aten:{name}")
