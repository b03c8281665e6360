"""Which kernel runs a layer, per direction: by the rule, or as measured on this machine.

SPARSE_PLAN=off        the built-in rule alone (sparse_engine/choice/rule.py)
SPARSE_PLAN=FILE       that file's rule and measurements (sparse_engine/choice/files.py)
SPARSE_PLAN=measure    what is not in this machine's file is measured at first use and added to it
(not set)              this machine's file if there is one (sparsefl tune writes it), as for FILE

Kernels round differently. A run that must give the same bits as another needs the same plan: runs record
theirs, and go on with it (fl/run/history.py). The rule and a file's entries do not change while a program
runs, unless it measures.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sparse_engine.choice import clock, files
from sparse_engine.choice.clock import Image
from sparse_engine.choice.rule import Rule, built_in, share
from sparsefl.kernels import native, settings, sparse_conv
from sparsefl.kernels.sparse_conv import Conv, Geometry

NATIVE = " native"  # ends the key of a second entry, for programs, where the first names torch's kernel
MARGIN = 0.95  # the rule's kernel stays unless another takes less than this share of its time

# Measures kernels of a layer and direction: the seconds of each.
Clock = Callable[[Conv, str, Image, tuple[str, ...]], dict[str, float]]


class Choice(NamedTuple):
    """`measured`: by a measurement on a machine; else by the rule."""

    kernel: str
    measured: bool


@dataclass(eq=False)
class Plan:
    """Kernels by layer, direction, image, density and threads; the rule for what was not measured."""

    measured: dict[str, str] = field(default_factory=dict)
    path: Path | None = None  # where new measurements go
    clock: Clock | None = None  # measures what is missing
    threads: int | None = (
        None  # choose as for so many, however many there are: then results do not depend on it
    )
    rule: Rule = field(default_factory=Rule)

    def kernel(
        self,
        conv: Conv | Geometry,
        direction: str,
        height: int,
        width: int,
        batch: int,
        bf16: bool = False,
        *,
        native: bool = False,
    ) -> str:
        """Return the kernel of a layer and direction; native: of a program, which cannot call torch; bf16: of
        images in bfloat16."""
        return self.choice(conv, direction, (height, width, batch), bf16, native=native).kernel

    def choice(
        self,
        conv: Conv | Geometry,
        direction: str,
        image: Image,
        bf16: bool = False,
        *,
        native: bool = False,
    ) -> Choice:
        """Return the kernel for an input `image` (height, width, batch), and whether it was measured. Those
        for bfloat16 go by the rule: files hold what was measured in float32."""
        native = native or self.threads is not None  # torch's may round otherwise on more threads
        if bf16 or (not self.measured and self.clock is None):
            return Choice(self.rule.kernel(conv, direction, image, bf16, native), False)
        name = key(conv, direction, image, self.threads)
        if name not in self.measured and self.clock is not None:
            self.measured |= fastest(conv, direction, image, self.clock, self.rule, self.threads)
            if self.path is not None:
                files.write(self.path, self.text())
        fitting = sparse_conv.candidates(conv, native=native)
        for found in ((self.measured.get(name + NATIVE),) if native else ()) + (self.measured.get(name),):
            if found in fitting:
                return Choice(found, True)
        return Choice(self.rule.kernel(conv, direction, image, False, native), False)

    def text(self) -> str:
        """Return all that decides, as files have it."""
        return files.text(files.Content(self.measured, self.rule))

    def identity(self) -> str:
        """Return a text that is equal for plans that choose the same kernels, whatever their files."""
        if not self.measured and not self.rule.is_tuned:
            return "built-in rule" + (f" ({self.rule.name})" if self.rule.costs else "")
        return f"measured, sha256 {hashlib.sha256(self.text().encode()).hexdigest()[:16]}"


def fastest(
    conv: Conv | Geometry,
    direction: str,
    image: Image,
    time: Clock,
    rule: Rule,
    threads: int | None = None,
) -> dict[str, str]:
    """Return the entries of a plan for one layer and direction: the rule's kernel, or a faster one. Where
    that is torch's, there is an entry for programs too."""
    made, name = clock.drawn(conv), key(conv, direction, image, threads)
    seconds = time(made, direction, image, sparse_conv.candidates(conv))
    found = {name: _winner(seconds, rule.kernel(conv, direction, image))}
    if found[name] == "torch":
        native = {kernel: seconds[kernel] for kernel in sparse_conv.candidates(conv, native=True)}
        found[name + NATIVE] = _winner(native, rule.kernel(conv, direction, image, False, True))
    return found


def _winner(seconds: dict[str, float], rule: str) -> str:
    best = min(seconds, key=lambda kernel: seconds[kernel])
    return best if seconds[best] < MARGIN * seconds[rule] else rule


def key(conv: Conv | Geometry, direction: str, image: Image, threads: int | None = None) -> str:
    """Return what decides the speed of a layer, as text. Densities are rounded (rule.share)."""
    size = "x".join(map(str, conv.shape))
    how = f"s{conv.stride} p{conv.padding[0]},{conv.padding[1]} d{conv.dilation[0]},{conv.dilation[1]}"
    return (
        f"{direction} {size} {how} image {'x'.join(map(str, image))} density {share(conv.density):.2f} "
        f"threads {threads or native.num_threads()}"
    )


def from_environment() -> Plan:
    """Return the plan that SPARSE_PLAN asks for."""
    choice, path = settings.current().plan, files.machine_file()
    if choice == "off":
        return Plan(rule=built_in())
    if choice == "measure":
        plan = from_file(path) if path.exists() else Plan(rule=built_in())
        return Plan(plan.measured, path, clock.seconds, rule=plan.rule)
    if choice:
        return from_file(Path(choice))
    return from_file(path) if path.exists() else Plan(rule=built_in())


def from_file(path: Path) -> Plan:
    """Return the plan in a file, or raise a SettingError."""
    return Plan(*_fields(files.read(path)))


def from_text(text: str) -> Plan:
    """Return the plan that `Plan.text` wrote; ValueError: it is none."""
    return Plan(*_fields(files.parsed(text)))


def _fields(content: files.Content) -> tuple[dict[str, str], None, None, None, Rule]:
    return content.kernels, None, None, None, content.rule


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
    now = current()
    return use_plan(Plan(now.measured, threads=1, rule=now.rule))


@contextmanager
def use_plan(plan: Plan) -> Iterator[None]:
    """A context in which layers take their kernels from `plan`."""
    token = _plan.set(plan)
    try:
        yield
    finally:
        _plan.reset(token)
