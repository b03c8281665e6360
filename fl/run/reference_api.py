"""docs/reference/api.md: the public functions and classes of `se` and `fl`, from their docstrings.

python -m fl.run.reference_api > docs/reference/api.md
"""

import inspect
import re
from types import ModuleType
from typing import Any

import fl
import sparse_engine as se


def text() -> str:
    """The page."""
    parts = [_package("sparse_engine, as `se`", "se", se), _package("fl", "fl", fl)]
    return "\n".join([_HEAD, *parts]).rstrip() + "\n"


_HEAD = """\
# Public functions and classes

Made from docstrings: `python -m fl.run.reference_api > docs/reference/api.md`. Tests run their examples.
"""


def _package(title: str, short: str, package: ModuleType) -> str:
    names = sorted(package.__all__, key=str.lower)
    return "\n".join([f"## {title}", "", *(_entry(short, name, getattr(package, name)) for name in names)])


def _entry(short: str, name: str, thing: Any) -> str:
    words = inspect.cleandoc(thing.__doc__ or "")
    if not words:
        raise ValueError(f"expected a docstring for {short}.{name}, got none")
    kind = "module" if inspect.ismodule(thing) else "class" if inspect.isclass(thing) else "function"
    return f"### {short}.{name}\n\n{kind}{_signature(name, thing)}\n\n```text\n{words}\n```\n"


def _signature(name: str, thing: Any) -> str:
    """As in the source, without annotations, which differ between versions of Python."""
    if inspect.ismodule(thing):
        return ""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    bare = [p.replace(annotation=p.empty) for p in found.parameters.values()]
    shown = re.sub(r"<([\w. ]+?)( at 0x[0-9a-f]+)?>", r"\1", str(inspect.Signature(bare)))
    return f" `{name}{shown}`"


if __name__ == "__main__":
    print(text(), end="")
