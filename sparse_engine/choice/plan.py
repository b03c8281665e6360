"""Which kernel runs a layer, per direction: by a built-in rule, or as measured on this machine.

SPARSE_PLAN=off        the built-in rule alone (kernels.sparse_conv.suggest): by density and size
SPARSE_PLAN=FILE       that file's measurements, and the built-in rule for what is not in it
SPARSE_PLAN=measure    what is not in this machine's file is measured at first use and added to it
(not set)              this machine's file if there is one, as for FILE

Kernels round differently. A run that must give the same bits as another needs the same plan: the built-in
rule is the same on all machines with one instruction set (its constants differ for 16 lanes); a file can be
copied. The rule and a file's entries do not change while a program runs, unless it measures.
"""

import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from sparse_engine.hardware import cpu_model
from sparsefl.kernels import bitmap as bitmaps
from sparsefl.kernels import native, settings, sparse_conv
from sparsefl.kernels.errors import SettingError
from sparsefl.kernels.layout import Segments
from sparsefl.kernels.sparse_conv import Conv, Geometry

VERSION = 1
REPEATS = 3
_HELP = "SPARSE_PLAN takes off (no file), measure, or a file that measure wrote"
NATIVE = " native"  # ends the key of a second entry, for programs, where the first names torch's kernel
MARGIN = 0.95  # the rule's kernel stays unless another takes less than this share of its time

# Measures one kernel of a layer and direction, in seconds.
Clock = Callable[[Conv, str, tuple[int, int, int], str], float]


@dataclass
class Plan:
    """Kernels by layer, direction, image, density and threads. Without `measured`, the built-in rule."""

    measured: dict[str, str] = field(default_factory=dict)
    path: Path | None = None  # where new measurements go
    clock: Clock | None = None  # measures what is missing
    threads: int | None = None  # choose as for so many, however many there are

    def kernel(
        self,
        conv: Conv | Geometry,
        direction: str,
        height: int,
        width: int,
        batch: int,
        *,
        native: bool = False,
    ) -> str:
        """Return the kernel of a layer and direction; native: of a program, which cannot call torch."""
        return self.choice(conv, direction, (height, width, batch), native=native).kernel

    def choice(
        self, conv: Conv | Geometry, direction: str, image: tuple[int, int, int], *, native: bool = False
    ) -> "Choice":
        """Return the kernel for an input `image` (height, width, batch), and whether it was measured."""
        rule = sparse_conv.suggest(conv, direction, *image, native=native)
        if not self.measured and self.clock is None:
            return Choice(rule, False)
        name = key(conv, direction, image, self.threads)
        if name not in self.measured and self.clock is not None:
            self.measured |= fastest(conv, direction, image, self.clock, self.threads)
            if self.path is not None:
                write(self.path, self.measured)
        fitting = sparse_conv.candidates(conv, native=native)
        for found in ((self.measured.get(name + NATIVE),) if native else ()) + (self.measured.get(name),):
            if found in fitting:
                return Choice(found, True)
        return Choice(rule, False)

    def identity(self) -> str:
        """Return a text that is equal for plans that choose the same kernels, whatever their files."""
        if not self.measured:
            return "built-in rule"
        return f"measured, sha256 {hashlib.sha256(_text(self.measured).encode()).hexdigest()[:16]}"


class Choice(NamedTuple):
    """`measured`: by a measurement on a machine; else by the built-in rule."""

    kernel: str
    measured: bool


def fastest(
    conv: Conv | Geometry,
    direction: str,
    image: tuple[int, int, int],
    clock: Clock,
    threads: int | None = None,
) -> dict[str, str]:
    """Return the entries of a plan for one layer and direction: the rule's kernel, or a faster one. Where
    that is torch's, there is an entry for programs too."""
    made, name = _with_pattern(conv), key(conv, direction, image, threads)
    seconds = {kernel: clock(made, direction, image, kernel) for kernel in sparse_conv.candidates(conv)}
    found = {name: _winner(seconds, sparse_conv.suggest(conv, direction, *image))}
    if found[name] not in sparse_conv.NATIVE:
        native = {kernel: seconds[kernel] for kernel in sparse_conv.candidates(conv, native=True)}
        found[name + NATIVE] = _winner(native, sparse_conv.suggest(conv, direction, *image, native=True))
    return found


def _winner(seconds: dict[str, float], rule: str) -> str:
    best = min(seconds, key=lambda kernel: seconds[kernel])
    return best if seconds[best] < MARGIN * seconds[rule] else rule


def key(
    conv: Conv | Geometry, direction: str, image: tuple[int, int, int], threads: int | None = None
) -> str:
    """Return what decides the speed of a layer, as text. Densities are rounded to steps of 1/20."""
    density = round(20 * conv.density) / 20
    size = "x".join(map(str, conv.shape))
    how = f"s{conv.stride} p{conv.padding[0]},{conv.padding[1]} d{conv.dilation[0]},{conv.dilation[1]}"
    return (
        f"{direction} {size} {how} image {'x'.join(map(str, image))} density {density:.2f} "
        f"threads {threads or native.num_threads()}"
    )


def measure(conv: Conv, direction: str, image: tuple[int, int, int], kernel: str) -> float:
    """Return the seconds of the best of a few runs on random data."""
    height, width, batch = image
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(conv.bitmap.nnz, generator=draw)
    x = torch.randn(conv.in_channels, height, width, batch, generator=draw)
    dy = torch.randn(conv.out_channels, *conv.output_size(height, width), batch, generator=draw)
    run: dict[str, Callable[[], Any]] = {
        "forward": lambda: sparse_conv.forward(conv, values, x, kernel=kernel),
        "input_gradient": lambda: sparse_conv.input_gradient(
            conv, values, dy, (height, width), kernel=kernel
        ),
        "weight_gradient": lambda: sparse_conv.weight_gradient(conv, x, dy, kernel=kernel),
    }
    run[direction]()  # makes the plan of the pass
    return min(_seconds(run[direction]) for _ in range(REPEATS))


def _with_pattern(conv: Conv | Geometry) -> Conv:
    """Return `conv`, or one of its geometry and density with random entries."""
    if isinstance(conv, Conv):
        return conv
    numel = conv.shape.numel()
    drawn = torch.rand(numel, generator=torch.Generator().manual_seed(0)) < conv.density
    sizes = conv.out_channels, conv.in_channels, conv.kernel, conv.stride, conv.padding, conv.dilation
    return Conv(bitmaps.from_mask(drawn, Segments((numel,))), *sizes)


def machine_file() -> Path:
    """Return the file of this machine's measurements."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    isa = native.isa() if native.isas() else "none"
    name = re.sub(r"[^A-Za-z0-9]+", "-", f"{cpu_model()} {os.cpu_count()} {isa}").strip("-")
    return cache / "sparsefl" / f"plan-{name}.json"


def read(path: Path) -> dict[str, str]:
    """Return the measurements in a file; raise a SettingError if it has none."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:  # also text that is no UTF-8
        raise SettingError(f"expected a kernel plan in {path}, got {_reason(error)}; {_HELP}") from error
    kernels = found.get("kernels") if isinstance(found, dict) else None
    if not isinstance(kernels, dict) or found.get("version") != VERSION:
        raise SettingError(
            f"expected a kernel plan of version {VERSION} in {path}, got another file; {_HELP}"
        )
    wrong = next((name for name in kernels.values() if name not in sparse_conv.KERNELS), None)
    if wrong is not None:
        raise SettingError(f"expected kernels {sparse_conv.KERNELS} in {path}, got {wrong!r}; {_HELP}")
    return kernels


def _reason(error: Exception) -> str:
    return (
        (error.strerror or str(error)).lower()
        if isinstance(error, OSError)
        else f"text that is none ({error})"
    )


def write(path: Path, kernels: dict[str, str]) -> None:
    """Write the file at once: others may read or write it at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(_text(kernels))
    os.replace(file.name, path)


def _text(kernels: dict[str, str]) -> str:
    return json.dumps({"version": VERSION, "kernels": dict(sorted(kernels.items()))}, indent=1) + "\n"


def from_environment() -> Plan:
    """Return the plan that SPARSE_PLAN asks for."""
    choice = settings.current().plan
    if choice == "off":
        return Plan()
    if choice == "measure":
        path = machine_file()
        return Plan(read(path) if path.exists() else {}, path, measure)
    if choice:
        return Plan(read(Path(choice)))
    return Plan(read(machine_file())) if machine_file().exists() else Plan()


_plan: ContextVar[Plan | None] = ContextVar("plan", default=None)
_defaults: dict[str, Plan] = {}  # by instruction set: the machine has a file for each


def current() -> Plan:
    """Return the plan of this context: that of `use_plan`, else the one SPARSE_PLAN asks for, read once."""
    chosen = _plan.get()
    if chosen is not None:
        return chosen
    isa = native.isa() if native.isas() else "none"
    if isa not in _defaults:
        _defaults[isa] = from_environment()
    return _defaults[isa]


def steady_plan() -> AbstractContextManager[None]:
    """A context in which kernels are chosen by the present plan, as for one thread, and nothing is measured.

    Results then have the same bits on any number of threads.

    >>> import torch, sparse_engine as se
    >>> net = se.sparsify(torch.nn.Linear(20, 50), density=0.1)
    >>> with se.steady_plan():
    ...     y = net(torch.randn(3, 20))
    """
    return use_plan(Plan(current().measured, threads=1))


@contextmanager
def use_plan(plan: Plan) -> Iterator[None]:
    """A context in which layers take their kernels from `plan`."""
    token = _plan.set(plan)
    try:
        yield
    finally:
        _plan.reset(token)


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
