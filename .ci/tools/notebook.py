"""examples/tutorial.ipynb from docs/tutorial.md, cell by cell: `python .ci/tools/notebook.py` writes it."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
START = "import os\n\nos.chdir('..')  # paths below are from the root of the checkout"


def notebook(page: str) -> str:
    cells = [_code(START)]
    for i, part in enumerate(re.split(r"```python\n(.*?)```\n", page, flags=re.DOTALL)):
        if part.strip():
            cells.append(_code(part.strip()) if i % 2 else {**_cell("markdown", part.strip())})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 4}
    return json.dumps(whole, indent=1) + "\n"


def _code(text: str) -> dict:
    return {**_cell("code", text), "execution_count": None, "outputs": []}


def _cell(kind: str, text: str) -> dict:
    return {"cell_type": kind, "metadata": {}, "source": text.splitlines(keepends=True)}


if __name__ == "__main__":
    page = (ROOT / "docs" / "tutorial.md").read_text().replace("](", "](../docs/")
    (ROOT / "examples" / "tutorial.ipynb").write_text(notebook(page))
