"""Ahead of time: compile every kernel that can be launched, for an RTX 4090 (sm_89) or for other cards.

No card is needed. `python -m kernels.aot` prints registers, spills and shared memory of each `Config` as
text, `--json` as JSON; `--arch 80 90` for an A100 and an H100. The interpreter accepts what the compiler
does not: a kernel is right when it passes there, compiles here, and what was compiled passes on the
virtual card of the tests.
"""

import argparse
import importlib
import json
import pkgutil
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from sparsefl import kernels
from sparsefl.kernels import tile

ARCH = 89
ARCHS = (80, 86, 89, 90, 120)  # A100; RTX 30; RTX 40; H100; RTX 50


def configs() -> list[tile.Config]:
    """Every configuration of every package that has Triton kernels."""
    for package in pkgutil.iter_modules(kernels.__path__, "sparsefl.kernels."):
        if package.ispkg and (Path(kernels.__path__[0]) / package.name.split(".")[2] / "_triton.py").exists():
            importlib.import_module(f"{package.name}._triton")
    return list(tile.CONFIGS)


def table(arch: int = ARCH) -> list[dict[str, Any]]:
    """One row per configuration, compiled now."""
    if triton.knobs.runtime.interpret:
        raise RuntimeError("expected TRITON_INTERPRET unset, got 1: interpreted kernels cannot be compiled")
    return [compile_one(config, arch) for config in configs()]


def compiled(config: tile.Config, arch: int = ARCH) -> Any:
    """What Triton makes of it: `asm` has PTX and machine code, `metadata.shared` the bytes per program."""
    names = config.kernel.arg_names
    types = config.types.split()
    signature = dict(zip(names, types + ["constexpr"] * len(config.constants), strict=True))
    source = ASTSource(
        fn=config.kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in config.constants.items()},
    )
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=config.options)


def compile_one(config: tile.Config, arch: int = ARCH) -> dict[str, Any]:
    """The row of one configuration."""
    made = compiled(config, arch)
    ptx, code = made.asm["ptx"], made.asm["cubin"]
    return {
        "arch": arch,
        "op": config.op,
        "kernel": config.kernel.__name__,
        "config": " ".join(
            [*(f"{name}={value}" for name, value in config.constants.items()), config.types.split()[0]]
        ),
        "num_warps": config.num_warps,
        **resources(code, ptx),
        "shared": made.metadata.shared,
        "ptx_lines": ptx.count("\n"),
        "cubin_bytes": len(code),
        "vector_loads": len(re.findall(r"\bld\.global\S*\.v[24]\.", ptx)),
        "vector_stores": len(re.findall(r"\bst\.global\S*\.v[24]\.", ptx)),
    }


def resources(code: bytes, ptx: str) -> dict[str, int]:
    """Registers per thread, and bytes of them spilled to memory. Where machine code has a stack, the
    assembler is asked what for: that takes longer."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(code)
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", path]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = {name: int(re.search(rf"\b{name}:(\d+)", said)[1]) for name in ("REG", "STACK", "LOCAL")}
    return {"registers": found["REG"], "spills": _spills(ptx) if found["STACK"] + found["LOCAL"] else 0}


def _spills(ptx: str) -> int:
    target = re.search(r"^\.target (sm_(\d+)\w*)", ptx, re.MULTILINE)
    assert target is not None, "PTX names its target"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx)
        assembler = get_ptxas(int(target[2])).path
        command = [assembler, "-v", f"--gpu-name={target[1]}", path, "-o", path.with_suffix(".cubin")]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    return sum(map(int, re.findall(r"(\d+) bytes spill (?:stores|loads)", said)))


def text(rows: list[dict[str, Any]]) -> str:
    cells = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)) for row in cells]
    return "\n".join(line.rstrip() for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kernels.aot", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a text table")
    parser.add_argument(
        "--arch", type=int, nargs="+", default=[ARCH], help="80, 86, 89, 90, 120: sm_80 and so on"
    )
    asked = parser.parse_args()
    rows = [row for arch in asked.arch for row in table(arch)]
    print(json.dumps(rows, indent=1) if asked.json else text(rows))


if __name__ == "__main__":
    main()
