"""`sparsefl doctor`: versions, hardware, settings; are the native kernels right? Exit code 1 if not."""

from rich.console import Console
from rich.table import Table

from fl.cli.exits import failed, guarded, say
from sparse_engine.doctor.environment import environment, numerics, unknown_settings
from sparse_engine.doctor.selfcheck import self_check


def run(console: Console) -> int:
    return guarded(console, lambda: _examine(console))


def _examine(console: Console) -> int:
    facts, results = environment(), numerics()
    facts["avx-512"] = _avx512(facts["instruction sets"], results["instruction set"])
    facts["kernel plan"] = results["plan"]
    grid = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        grid.add_row(name, value)
    console.print(grid)
    for name in unknown_settings():
        say(console, f"note: the environment variable {name} has no meaning here")
    checks = list(self_check())
    wrong = [check for check in checks if check.problem]
    for check in wrong:
        failed(console, f"FAILED: {check.op} on {check.variant}: {check.problem}", 1)
    if not wrong:
        operations = len({check.op for check in checks})
        console.print(f"self-check ok: {operations} operations, {len(checks)} comparisons with the reference")
    return 1 if wrong else 0


def _avx512(available: str, used: str) -> str:
    if "avx512" not in available:
        return "not on this machine"
    return "in use" if used == "avx512" else f"not in use, though the machine has it: {used}"
