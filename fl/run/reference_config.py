"""docs/reference/config.md, made from the configuration's own table of keys.

python -m fl.run.reference_config > docs/reference/config.md
"""

from itertools import groupby

from fl import config


def text() -> str:
    """The page: a table per section."""
    rows = sorted(config.keys(), key=lambda row: _section(row[0]))  # stable: keys stay in order
    parts = [_table(section, list(found)) for section, found in groupby(rows, lambda row: _section(row[0]))]
    return "\n".join([_HEAD, *parts]).rstrip() + "\n"


_HEAD = """\
# Keys of a configuration

Made from the sources: `python -m fl.run.reference_config > docs/reference/config.md`. `sparsefl list --keys` prints the same. A key is
set in a TOML file (`[training]`, then `lr = 0.1`) or on the command line (`--set training.lr=0.1`).
"""


def _section(key: str) -> str:
    return key.rpartition(".")[0]


def _table(section: str, rows: list[tuple[str, str, str, str]]) -> str:
    head = [f"## [{section}]" if section else "## At the top", ""]
    head += ["| key | type | default | meaning |", "|---|---|---|---|"]
    return "\n".join([*head, *map(_row, rows), ""])


def _row(row: tuple[str, str, str, str]) -> str:
    key, kind, default, meaning = (cell.replace("|", "\\|").replace("\n", " ") for cell in row)
    return f"| `{key}` | {kind} | {f'`{default}`' if default else ''} | {meaning} |"


if __name__ == "__main__":
    print(text(), end="")
