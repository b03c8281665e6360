r"""comparison.tex: the tables of a comparison for a paper, to be read with \input; needs package booktabs.

Comments at its head say what the columns mean, what is not finished and in which settings rows differ.
"""

from fl.compare import table
from fl.compare.table import Shown
from fl.run.recorded import Record
from fl.units import counted

_ESCAPES = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"\(\pm\)",
    "µ": r"\(\mu\)",
}


def text(told: Record) -> str:
    """comparison.tex of what comparison.json holds."""
    about = [
        f"{told['name']}: {told['num_clients']} clients, {counted(told['num_rounds'], 'round')}",
        table.MEANING,
        *table.differences(told),
        *table.notes(told),
    ]
    parts = [_comments(about), _tabular(table.results(told))]
    if told["target"]:
        parts += [_comments([table.target(told)]), _tabular(table.to_target(told))]
    return "\n".join(parts) + "\n"


def escaped(given: str) -> str:
    """`given` as LaTeX prints it letter by letter, in one line."""
    return "".join(_ESCAPES.get(letter, letter) for letter in " ".join(given.split()))


def _tabular(shown: Shown) -> str:
    head, *rows = (" & ".join(map(escaped, row)) + r" \\" for row in (shown.head, *shown.rows))
    columns = "l" + "r" * (len(shown.head) - 1)
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *rows, r"\bottomrule"]
    return "\n".join([*lines, r"\end{tabular}"])


def _comments(lines: list[str]) -> str:
    """A line each, whatever it holds: a new line in it would end the comment."""
    return "\n".join(f"% {' '.join(line.split())}" for line in lines)
