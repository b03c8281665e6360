"""A program for people: what runs, on which kernels, on how much memory."""

from math import prod

from sparse_engine.program.cpu.program import CpuProgram
from sparse_engine.program.steps import Conv, Flatten


def describe(program: CpuProgram) -> str:
    """Return a table of the steps: name, what, kernels (forward, input and weight gradient), shape, bytes."""
    graph = program.graph
    rows = [("step", "what", "kernels", "output", "KB")]
    for i, step in enumerate(graph.steps):
        kernels = ", ".join(program.convs[i].kernels[:3]) if isinstance(step, Conv) else ""
        shape = graph.values[step.y]
        size = 0 if isinstance(step, Flatten) else prod(shape) * program.lanes * program.itemsize
        text = str(shape[0]) if shape[1:] == (1, 1) else "x".join(map(str, shape))
        rows.append(
            (step.name, step.describe(graph.values), kernels, text, f"{size / 1024:,.0f}" if size else "")
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(row[i].rjust(widths[i]) if i == 4 else row[i].ljust(widths[i]) for i in range(5)).rstrip()
        for row in rows
    ]
    title = f"{graph.title}, samples {'x'.join(map(str, graph.sample))}"
    return "\n".join([title + _precision(program), *lines, *_totals(program)])


def _precision(program: CpuProgram) -> str:
    if not program.bf16:
        return ""
    return f", in bfloat16 ({'with' if program.dot else 'without'} AVX512_BF16)"


def _totals(program: CpuProgram) -> list[str]:
    training = program.places["train"]
    steps = {mode: len(planned) for mode, planned in program.planned.items()}
    return [
        f"training: {steps['train']} native steps; evaluation: {steps['evaluate']}; growth: {steps['grow']}",
        f"workspace for {program.lanes} samples: {4 * training.size / 1e6:,.1f} MB "
        f"({4 * training.alone / 1e6:,.1f} MB if no two buffers shared memory)",
    ]
