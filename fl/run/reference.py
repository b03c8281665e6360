"""docs/reference/metrics.md, made from the table of keys.

python -m fl.run.reference > docs/reference/metrics.md
"""

from fl import algorithms
from fl.keys import Key, Where
from fl.run import keys


def text() -> str:
    """The page."""
    parts = [_page(where) for where in keys.FILES]
    return "\n".join([_HEAD, *parts]).rstrip() + "\n"


_HEAD = """\
# Keys of a run's files

Made from the tables of the sources: `python -m fl.run.reference > docs/reference/metrics.md`.

*Exact* keys are the same for any number of workers and on every machine of one kind. *Measured* ones differ
from run to run. *Modelled* ones come from the device model (`[devices]`). Shares are from 0 to 1. `null`:
there was none. Keys of one algorithm are declared by its module (fl/keys.py says how). Those of a round that
are made from clients' columns stand in the lines of all algorithms.
"""
_TITLES = {
    "round": "one object per round",
    "client": "one object per client and round in which it trained",
    "run": "written when the last round is done",
}
_HOW = {
    "sum": "sum of",
    "max": "largest",
    "mean": "mean of",
    "last": "last",
    "rounds": "rounds with",
}


def _page(where: Where) -> str:
    rows = [_row(key) for key in keys.table(where)]
    head = ["| key | unit | kind | made from | meaning | declared by |", "|---|---|---|---|---|---|"]
    return "\n".join([f"## {keys.FILES[where]}: {_TITLES[where]}", "", *head, *rows, ""])


def _row(key: Key) -> str:
    cells = f"`{key.name}`", key.unit, key.kind, _made(key), key.text.replace("|", "\\|"), _owners(key)
    return f"| {' | '.join(cells)} |"


def _made(key: Key) -> str:
    return f"{_HOW[key.sums]} `{key.of}`" if key.of else ""


def _owners(key: Key) -> str:
    """The algorithms that declare it."""
    found = algorithms.registered()
    return ", ".join(name for name, module in found.items() if key in getattr(module, "KEYS", ()))


if __name__ == "__main__":
    print(text(), end="")
