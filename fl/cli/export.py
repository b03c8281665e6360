"""`sparsefl export`: trained models of a run directory as files that other programs read (docs/export.md).

    state_dict     torch.save of the dense network's state_dict(), zeros where nothing is stored
    safetensors    the same tensors; with --sparse the four of se.Model: bitmap, values, rest, integers
    onnx-dense     the dense network as ONNX, for any batch size; needs the package onnx

Safetensors and ONNX files say in their metadata where the model comes from and what its input is.
"""

import io
import json
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from rich.console import Console

import sparse_engine as se
from fl.cli.exits import guarded, say
from fl.config import code
from fl.errors import ConfigError, Missing, RunDirError
from fl.run import models
from fl.run.files import write_atomic
from fl.run.models import Trained

FORMATS = {"state_dict": ".pt", "safetensors": ".safetensors", "onnx-dense": ".onnx"}  # and their endings
ALL, SERVER = "all", "server"
_VERSION = 17  # of ONNX's operators
_SHOWN = 4  # numbers of a mean


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What the command line said."""

    path: Path
    client: str
    format: str = "state_dict"
    out: Path | None = None
    sparse: bool = False
    overwrite: bool = False
    code: Sequence[str] = ()
    trust: bool = False

    def check(self) -> None:
        if self.format not in FORMATS:
            raise ConfigError(f"--format: expected one of {list(FORMATS)}, got {self.format!r}")
        if self.sparse and self.format != "safetensors":
            raise ConfigError(f"expected --sparse with --format safetensors, got {self.format}")
        if self.client not in (ALL, SERVER) and not (self.client.isdecimal() and len(self.client) < 10):
            raise ConfigError(f"--client: expected a number, {ALL} or {SERVER}, got {self.client!r}")
        if self.format == "onnx-dense":
            _onnx()

    def file(self, who: str) -> Path:
        """Where the model of "client-3" or "server" goes."""
        if self.out is None:
            return Path(f"{who}{FORMATS[self.format]}")
        return (
            self.out.with_name(f"{self.out.stem}-{who}{self.out.suffix}") if self.client == ALL else self.out
        )


def run(console: Console, given: Arguments) -> int:
    """Write the files, name each, return the exit code."""

    def work() -> int:
        given.check()
        code.allow_named(given.code, given.trust)
        trained = models.read(given.path)
        for problem in trained.problems:
            say(console, f"damaged checkpoint left aside: {problem}")
        wanted = [(who, given.file(who), model) for who, model in _wanted(given.client, trained)]
        _refuse([file for _, file, _ in wanted], given.overwrite)
        for who, file, model in wanted:
            _write(file, content(trained, model, who, given.format, given.sparse))
            say(console, f"{who} after round {trained.round}, density {model.density:.4f}: {file}")
        say(console, f"input: {_input(trained)}")
        return 0

    return guarded(console, work)


def content(trained: Trained, model: se.Model, who: str, form: str, sparse: bool = False) -> bytes:
    """The file of one model; `form` is one of FORMATS."""
    about = _about(trained, model, who)
    if sparse:
        return safetensors.torch.save(model.tensors(), about | {"layout": json.dumps(_layout(model.layout))})
    network = trained.network(model)
    if form == "safetensors":
        tensors = {name: x.contiguous() for name, x in network.state_dict().items()}
        return safetensors.torch.save(tensors, about)
    buffer = io.BytesIO()
    if form == "state_dict":
        torch.save(network.state_dict(), buffer)
        return buffer.getvalue()
    return _as_onnx(network, trained.data.shape, about)


def _wanted(client: str, trained: Trained) -> Iterator[tuple[str, se.Model]]:
    if client == SERVER:
        yield SERVER, trained.server
    else:
        for k in range(len(trained.clients)) if client == ALL else [int(client)]:
            yield f"client-{k}", trained.client(k)


def _refuse(paths: list[Path], overwrite: bool) -> None:
    """Before anything is written."""
    for path in paths:
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise ConfigError(f"--out: expected a file in a folder that is there, got {path}")
        if path.exists() and not overwrite:
            raise ConfigError(f"--out: expected a new file, got {path}: replace it with --overwrite")


def _write(path: Path, data: bytes) -> None:
    try:
        write_atomic(path, data)
    except OSError as wrong:
        raise RunDirError(f"cannot write {path}: {wrong.strerror or wrong}") from wrong


def _input(trained: Trained) -> str:
    data = trained.data
    shape = f"float32 [n, {', '.join(map(str, data.shape))}]"
    if not data.mean:
        return f"{shape}, as the data are"
    mean, std = (_few(part) for part in (data.mean, data.std))
    return f"{shape}, (x - mean) / std, mean {mean}, std {std}"


def _few(numbers: tuple[float, ...]) -> str:
    more = f", ... ({len(numbers)})" if len(numbers) > _SHOWN else ""
    return f"[{', '.join(f'{x:.4g}' for x in numbers[:_SHOWN])}{more}]"


def _about(trained: Trained, model: se.Model, who: str) -> dict[str, str]:
    """Metadata, as text."""
    cfg, data = trained.config, trained.data
    return {
        "format": "pt",  # what Hugging Face's readers look for
        "model": who,
        "network": json.dumps(cfg.model.model_dump(mode="json", exclude_none=True)),
        "run": cfg.name,
        "algorithm": cfg.algorithm,
        "seed": str(cfg.seed),
        "round": str(trained.round),
        "density": repr(model.density),
        "data": data.name,
        "classes": json.dumps(list(data.classes)),
        "input_shape": json.dumps(list(data.shape)),
        "input_mean": json.dumps(list(data.mean)),
        "input_std": json.dumps(list(data.std)),
    }


def _layout(layout: se.Layout) -> dict[str, Any]:
    """What the four tensors of a model are made of, in their order."""
    weights = [[name, list(shape)] for name, shape in zip(layout.names, layout.shapes, strict=True)]
    rest = [[entry.name, list(entry.shape), str(entry.dtype)] for entry in layout.rest]
    return {"weights": weights, "rest": rest}


def _onnx() -> Any:
    try:
        import onnx
    except ImportError as wrong:
        raise Missing(
            "expected the package onnx for --format onnx-dense, got none: pip install onnx"
        ) from wrong
    return onnx


def _as_onnx(network: torch.nn.Module, shape: tuple[int, ...], about: dict[str, str]) -> bytes:
    onnx = _onnx()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        file = Path(folder) / "network.onnx"
        warnings.simplefilter(
            "ignore"
        )  # torch's own exporter is called an old one; it needs one package less
        torch.onnx.export(
            network,
            (torch.zeros(2, *shape),),
            file,
            dynamo=False,
            opset_version=_VERSION,
            input_names=["input"],
            output_names=["logits"],
            dynamic_axes={"input": {0: "batch"}, "logits": {0: "batch"}},
        )
        made = onnx.load(file)
    onnx.helper.set_model_props(made, about)
    onnx.checker.check_model(made)
    return bytes(made.SerializeToString())
