"""`sparsefl bench wire`: bytes and speed of messages.

    bound      the bytes of all numbers as they are (fp32: 4 each) + n H(density) bits per layer; for a
               receiver that has the mask before, the entropy of drops and grows in place of the latter
    of_bound   bytes / bound.   Packed values go below 1: the bound takes every bit of a float for random
    GB/s       of dense weights, 4 bytes per parameter, by seconds of one processor core

A network is sparsified at an ERK density, trained for a few steps, moved by RigL (a share dropped and grown
by the real gradient) and trained again: `first` messages stand alone, `rigl a` are those after a step of
share a, for receivers that have the message before. Rivals: int32 CSR (its size), and zstandard, where it is
installed, on the dense tensors, on bitmap and values, and on these with the values cut into planes of bytes.
"""

from collections.abc import Callable, Iterator, Mapping
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sparse_engine as se
from fl.units import quantity
from sparse_engine.wire.values import CODECS
from sparsefl.bench.models import MODELS
from sparsefl.bench.timing import take_turns
from sparsefl.kernels import mask_code, use_threads
from sparsefl.kernels.pack import unpack

try:
    import zstandard
except ModuleNotFoundError:
    zstandard = None

Row = dict[str, Any]
SHARES = (0.3, 0.1, 0.01)  # that RigL moves: at first, midway, towards the end
STEPS, BATCH = 2, 8
SHOWN = ("first", "rigl 0.1")  # in the summary
LEVEL = 3  # of zstandard, its default
FORMS: dict[str, dict[str, Any]] = {
    "bitmap": {"mask": "bitmap", "pack": False},
    "entropy": {"mask": "entropy", "pack": False},
    "difference": {"mask": "difference", "pack": False},
    "fp32": {},
    "bf16": {"values": "bf16"},
    "fp16": {"values": "fp16"},
    "q16": {"values": "q16"},
    "q8": {"values": "q8"},
}
ALONE = ("bitmap", "entropy", "zstd dense", "zstd sparse", "zstd planes")  # use no mask of the receiver's


class Case(NamedTuple):
    """A state to send, and the mask that its receiver has."""

    model: str
    density: float
    stage: str
    state: se.Model
    known: se.Bitmap | None


class Contestant(NamedTuple):
    name: str
    nbytes: int
    mask_bytes: int | None
    encode: Callable[[], object]
    decode: Callable[[], object]


def run(
    names: tuple[str, ...], densities: tuple[float, ...], *, repeats: int, stages: bool = True
) -> Iterator[Row]:
    torch.set_num_threads(1)
    with use_threads(1):
        for name in names:
            for density in densities:
                for case in cases(name, density, stages):
                    yield from _rows(case, repeats)


def cases(name: str, density: float, stages: bool) -> Iterator[Case]:
    """The first message, then those after RigL steps."""
    classes, shape = MODELS[name]
    torch.manual_seed(0)
    net = se.sparsify(se.models.by_name(name, num_classes=classes), density=density, seed=0)
    batch = torch.randn(BATCH, *shape), torch.randint(0, classes, (BATCH,))
    _train(net, *batch)
    first = se.compress(net)
    yield Case(name, density, "first", first, None)
    for share in SHARES if stages else ():
        se.load(net, _moved(net, first, share, *batch))
        _train(net, *batch)
        yield Case(name, density, f"rigl {share}", se.compress(net), first.bitmap)


def _train(net: nn.Module, images: Tensor, labels: Tensor) -> None:
    optimizer = se.SparseSGD(net, lr=0.1, weight_decay=5e-4)
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(net(images), labels).backward()
        optimizer.step()


def _moved(net: nn.Module, state: se.Model, share: float, images: Tensor, labels: Tensor) -> se.Model:
    growth = se.Growth(state, share)
    se.load(net, state)
    net.zero_grad()
    with se.dense_gradients(net, growth.add):
        F.cross_entropy(net(images), labels).backward()
    return state.with_pattern(growth.kept).with_pattern(growth.bitmap())


def _rows(case: Case, repeats: int) -> Iterator[Row]:
    state = case.state
    contestants = [*_ours(state, case.known), *(_zstd(state) if case.known is None else ())]
    how: dict[str, Any] = {"repeats": repeats, "burst": 1, "clock": process_time}
    encoding = take_turns({c.name: c.encode for c in contestants}, **how)
    decoding = take_turns({c.name: c.decode for c in contestants}, **how)
    dense = 4 * (state.bitmap.segments.numel + state.rest.numel())
    for c in contestants:
        nearest = bound(
            state, None if c.name in ALONE else case.known, FORMS.get(c.name, {}).get("values", "fp32")
        )
        yield {
            **dict(zip(("model", "density", "stage"), case[:3], strict=True)),
            "name": c.name,
            "bytes": c.nbytes,
            "mask_bytes": c.mask_bytes,
            "bytes_bound": round(nearest),
            "bytes_dense": dense,
            "bytes_csr": csr_bytes(state),
            "of_bound": c.nbytes / nearest,
            "vs_dense": dense / c.nbytes,
            "vs_csr": csr_bytes(state) / c.nbytes,
            "encode_gbps": dense / encoding[c.name].median / 1e9,
            "decode_gbps": dense / decoding[c.name].median / 1e9,
            "encode_spread": encoding[c.name].spread,
            "decode_spread": decoding[c.name].spread,
        }


def _ours(state: se.Model, known: se.Bitmap | None) -> Iterator[Contestant]:
    buffer = bytearray(se.wire.max_bytes(state) + 1024)
    for name, form in FORMS.items():
        if name == "difference" and known is None:
            continue
        how: Mapping[str, Any] = {"known": known, **form}
        blob = se.wire.encode(state, **how)
        _check(name, state, se.wire.decode(blob, state, known))
        yield Contestant(
            name,
            len(blob),
            se.wire.inspect(blob).mask_bytes,
            lambda how=how: se.wire.encode_into(buffer, state, **how),
            lambda blob=blob: se.wire.decode(blob, state, known),
        )


def _check(name: str, state: se.Model, back: se.Model) -> None:
    exact = FORMS[name].get("values", "fp32") == "fp32"
    right = back.bitmap.words.equal(state.bitmap.words) and back.integers.equal(state.integers)
    error = (back.values - state.values).norm() / state.values.norm()
    if not right or error > (0 if exact else 0.01):
        raise AssertionError(f"{name}: the message gave another model: a wrong result gets no time")


def _zstd(state: se.Model) -> Iterator[Contestant]:
    if zstandard is None:
        return
    values = state.values.numpy()
    planes = np.ascontiguousarray(values.view(np.uint8).reshape(-1, 4).T)
    mask, rest = state.bitmap.words.numpy().tobytes(), state.rest.numpy().tobytes()
    whole = unpack(state.values, state.bitmap).numpy().tobytes() + rest
    press, unpress = zstandard.ZstdCompressor(level=LEVEL), zstandard.ZstdDecompressor()
    for name, data in {
        "zstd dense": whole,
        "zstd sparse": mask + values.tobytes() + rest,
        "zstd planes": mask + planes.tobytes() + rest,
    }.items():
        pressed = press.compress(data)
        assert unpress.decompress(pressed) == data
        yield Contestant(
            name,
            len(pressed),
            None,
            lambda data=data: press.compress(data),
            lambda pressed=pressed: unpress.decompress(pressed),
        )


def csr_bytes(state: se.Model) -> int:
    """float32 values and int32 columns of every stored entry, int32 row pointers; the rest as it is."""
    rows = sum(shape[0] + 1 for shape in state.layout.shapes)
    return 8 * state.bitmap.nnz + 4 * rows + 4 * state.rest.numel() + 8 * state.integers.numel()


def bound(state: se.Model, known: se.Bitmap | None = None, values: str = "fp32") -> float:
    """Bytes of the numbers in this codec, and the entropy of the mask."""
    exempt = sum(x.numel() for x in state.rest_tensors().values() if x.is_floating_point() and x.dim() > 1)
    weights = CODECS[values].size(state.bitmap.nnz + exempt)
    others = 4 * (state.rest.numel() - exempt) + 8 * state.integers.numel()
    flips = mask_code.flips(state.bitmap, known)
    return weights + others + mask_code.entropy(flips, state.bitmap.segments, known) / 8


def told(row: Row) -> str:
    """A row in a line, for progress."""
    case = f"{row['model']}, density {row['density']:g}, {row['stage']}"
    size = quantity(row["bytes"], "B")
    return f"{case}: {row['name']} {size}, written at {row['encode_gbps']:.2f} GB/s"


def summarise(rows: list[Row]) -> dict[str, dict[str, dict[str, float]]]:
    """By model, of a first message and of one after a step of RigL: the other stages are among the rows.
    of_bound: values as they are; packed: the shortest message, which meets rivals."""
    summary: dict[str, dict[str, dict[str, float]]] = {}
    rows = [row for row in rows if row["stage"] in SHOWN]
    where = [(f"{row['model']}, {row['stage']}", str(row["density"])) for row in rows]
    for case, density in dict.fromkeys(where):
        of = {row["name"]: row for row, at in zip(rows, where, strict=True) if at == (case, density)}
        summary.setdefault(case, {})[density] = _cell(of)
    return summary


def _cell(of: dict[str, Row]) -> dict[str, float]:
    shortest, plain = of["fp32"], of.get("difference", of["entropy"])
    cell = {"of_bound": plain["of_bound"], "packed": shortest["of_bound"]}
    cell |= {key: shortest[key] for key in ("vs_dense", "vs_csr")}
    if "zstd dense" in of:
        cell["vs_zstd"] = of["zstd dense"]["bytes"] / shortest["bytes"]
    for key, row in {"bitmap": of["bitmap"], "coded": plain, "packed": shortest}.items():
        cell[f"{key} GB/s"] = min(row["encode_gbps"], row["decode_gbps"])
    return cell
