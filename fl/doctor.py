"""`sparsefl doctor`: versions, hardware, and whether the native kernels are right. Exit code 1 if not."""

from rich.console import Console
from rich.table import Table

from sparse_engine.environment import environment
from sparse_engine.selfcheck import self_check


def run(console: Console) -> int:
    try:
        facts = environment()
    except ValueError as wrong:  # SPARSE_ISA or SPARSE_THREADS name what is not there
        console.print(f"FAILED: {wrong}", markup=False)
        return 1
    grid = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        grid.add_row(name, value)
    console.print(grid)
    checks = list(self_check())
    failed = [check for check in checks if check.problem]
    for check in failed:
        console.print(f"FAILED: {check.op} on {check.variant}: {check.problem}", markup=False)
    operations = len({check.op for check in checks})
    if not failed:
        console.print(f"self-check ok: {operations} operations, {len(checks)} comparisons with the reference")
    return 1 if failed else 0
