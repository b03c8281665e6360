"""A configuration as text: TOML that `tomllib` reads back, and the words of `sparsefl list --keys`."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel

from fl.config.source import NONE

if TYPE_CHECKING:
    from fl.config import Section

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}


def dump(section: "Section", path: str, skip: Iterable[str] = ()) -> str:
    """The section's own keys, then its tables: in TOML a table ends only where the next one starts."""
    lines, tables = [], []
    for name in type(section).model_fields:
        given: Any = getattr(section, name)
        if name in skip:
            continue
        if isinstance(given, BaseModel):
            table = f"{path}.{name}" if path else name
            tables.append(f"\n[{table}]\n{dump(getattr(section, name), table)}")
        elif isinstance(given, dict):
            own = "".join(f"{key} = {value(one)}\n" for key, one in given.items())
            tables += [f"\n[{path}.{name}]\n{own}"] if given else []
        else:
            shown = NONE if given is None and section.unsets(name) else given
            lines.append(f"# {name} is not set" if shown is None else f"{name} = {value(shown)}")
    return "".join(line + "\n" for line in lines) + "".join(tables)


def value(given: Any) -> str:
    """One value, as TOML writes it."""
    if isinstance(given, bool):
        return "true" if given else "false"
    if isinstance(given, int | float):
        return repr(given)
    if isinstance(given, list | tuple):
        return "[" + ", ".join(map(value, given)) + "]"
    if isinstance(given, dict):
        return "{" + ", ".join(f"{key} = {value(one)}" for key, one in given.items()) + "}"
    assert isinstance(given, str), given
    return f'"{printable(given, _ESCAPES)}"'


def printable(text: str, escapes: dict[str, str] | None = None) -> str:
    """On one line, with what cannot be seen as \\U and its number."""
    known = escapes or {}
    return "".join(known.get(c, c if c.isprintable() else f"\\U{ord(c):08x}") for c in text)


def type_name(annotation: Any) -> str:
    """In words: int, list of int, one of "a", "b"."""
    parts = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return type_name(parts[0])
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(map(value, parts))
    if get_origin(annotation) is list:
        return f"list of {type_name(parts[0])}"
    if get_origin(annotation) is dict:
        return "table"
    if parts:  # only unions with None
        return type_name(next(part for part in parts if part is not type(None)))
    return str(annotation.__name__)
