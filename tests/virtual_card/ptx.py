"""PTX text -> a Kernel: its parameters, threads per program, instructions and labels.

Only what Triton writes: one entry per file, registers declared by count (`%r<80>`) or, in inline assembly,
by name. Operands are read once, here, so that running an instruction looks nothing up in text.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

SPECIAL = frozenset(
    [f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"]
    + ["%laneid", "%warpid", "WARP_SZ"]
)
_STATEMENT = re.compile(r"(?:@(!?)([%\w]+)\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)
_ADDRESS = re.compile(r"([%$\w.]+?)(?:\s*([+-])\s*(-?\w+))?")


class Register(NamedTuple):
    """A register; `negated` for a predicate under `!`."""

    name: str
    negated: bool = False


class Special(NamedTuple):
    """%tid.x and its like."""

    name: str


class Literal(NamedTuple):
    """A number: bits of a float, or an integer that may be negative."""

    value: int


class Symbol(NamedTuple):
    """A label, a parameter or the start of shared memory."""

    name: str


class Address(NamedTuple):
    """[base + offset]"""

    base: "Operand"
    offset: int


class Group(NamedTuple):
    """{a, b} or a|b: several operands in one place."""

    items: tuple["Operand", ...]


Operand = Register | Special | Literal | Symbol | Address | Group
NOWHERE = Symbol("_")


@dataclass(frozen=True)
class Instruction:
    """One instruction, with the place where it was written."""

    opcode: str  # ld
    parts: tuple[str, ...]  # global v4 b32
    operands: tuple[Operand, ...]
    guard: Register | None
    line: int  # of the PTX text, from 1
    source: str  # of the Triton source: tile.py:215
    text: str

    @property
    def waits_for_warp(self) -> bool:
        """All lanes of a warp have to be here before it runs."""
        return "sync" in self.parts and self.opcode not in ("bar", "barrier")


@dataclass(frozen=True)
class Kernel:
    """The one entry of a PTX text."""

    name: str
    parameters: tuple[str, ...]
    threads: int  # per program
    code: tuple[Instruction, ...]
    labels: dict[str, int]
    leaders: frozenset[int]  # where lanes may meet or part


@lru_cache(maxsize=256)
def parse(text: str) -> Kernel:
    """Return the kernel of this text; ValueError names the line that cannot be read."""
    entry = re.search(r"\.entry\s+(\S+?)\s*\((.*?)\)", text, re.DOTALL)
    threads = re.search(r"\.reqntid\s+(\d+)", text)
    if entry is None or threads is None:
        raise ValueError("expected PTX with one .entry and .reqntid")
    parameters = tuple(re.findall(r"\.param[^,]*?(\w+)\s*(?:,|$)", entry[2]))
    code, labels = _body(text, text.count("\n", 0, threads.end()) + 1)
    return Kernel(entry[1], parameters, int(threads[1]), code, labels, _leaders(code, labels))


def _body(text: str, head: int) -> tuple[tuple[Instruction, ...], dict[str, int]]:
    """What follows the first `head` lines."""
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    declared: set[str] = set()
    source = ""
    for number, line in enumerate(text.splitlines()[head:], head + 1):
        line, _, comment = line.partition("//")
        for statement in filter(None, (part.strip() for part in line.split(";"))):
            statement = re.sub(r"^(\{\s*(?=[.@a-z]))|^\}$|^\{$", "", statement).strip()
            if not statement:
                continue
            if statement.startswith(".section"):
                return tuple(code), labels
            if statement.startswith(".loc"):
                source = comment.split("@")[0].strip().rpartition(":")[0]
            elif statement.startswith(".reg"):
                declared.update(re.findall(r"(\w+)\s*(?:,|$)", statement))
            elif statement.endswith(":"):
                labels[statement[:-1]] = len(code)
            elif not statement.startswith("."):
                code.append(_instruction(statement, number, source, declared))
    return tuple(code), labels


def _instruction(text: str, line: int, source: str, declared: set[str]) -> Instruction:
    found = _STATEMENT.fullmatch(text)
    if found is None:
        raise ValueError(f"PTX line {line}: cannot read {text!r}")
    negated, guard, name, rest = found.groups()
    opcode, *parts = name.replace("::cta", "").split(".")
    operands = tuple(_operand(part, declared) for part in _split(rest))
    guarded = Register(guard, bool(negated)) if guard else None
    return Instruction(opcode, tuple(parts), operands, guarded, line, source, re.sub(r"\s+", " ", text))


def _split(text: str) -> list[str]:
    """At the commas outside brackets."""
    return [part.strip() for part in re.findall(r"(?:[^,{\[]|\{[^}]*\}|\[[^\]]*\])+", text) if part.strip()]


def _operand(text: str, declared: set[str]) -> Operand:
    if text[0] == "{":
        return Group(tuple(_operand(part.strip(), declared) for part in text[1:-1].split(",")))
    if "|" in text:
        return Group(tuple(_operand(part.strip(), declared) for part in text.split("|")))
    if text[0] == "[":
        found = _ADDRESS.fullmatch(text[1:-1].strip())
        assert found is not None, text
        offset = int(found[3], 0) if found[3] else 0
        return Address(_operand(found[1], declared), -offset if found[2] == "-" else offset)
    if text[0] == "!":
        return Register(text[1:].strip(), negated=True)
    if text in SPECIAL:
        return Special(text)
    if text[0] == "%" or text in declared:
        return Register(text)
    return _literal(text)


def _literal(text: str) -> Operand:
    if re.fullmatch("0[fFdD][0-9A-Fa-f]+", text):
        return Literal(int(text[2:], 16))
    try:
        return Literal(int(text.rstrip("U"), 0))
    except ValueError:
        return Symbol(text)


def _leaders(code: tuple[Instruction, ...], labels: dict[str, int]) -> frozenset[int]:
    """Targets of branches, what follows a branch or barrier, and what waits for a warp."""
    targets = {labels[ins.operands[0].name] for ins in code if ins.opcode == "bra"}
    after = {i + 1 for i, ins in enumerate(code) if ins.opcode in ("bra", "bar", "barrier", "ret", "exit")}
    return frozenset(targets | after | {i for i, ins in enumerate(code) if ins.waits_for_warp})
