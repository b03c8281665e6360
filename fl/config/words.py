"""What is wrong with a configuration, in words: one line per problem, with the key that was meant."""

import difflib
import math
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

LONGEST = 100  # characters of a run's name

_BOUNDS = {
    "greater_than": "above {gt}",
    "greater_than_equal": "from {ge} on",
    "less_than": "below {lt}",
    "less_than_equal": "up to {le}",
    "finite_number": "that is finite",
}
_LONGEST = 200  # characters
_TYPES = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a table of names and values",
    "model_type": "a section (a table of keys)",
}


def explain(error: Any, keys: Sequence[str], others: Collection[str]) -> str:
    """One line for one of pydantic's errors. `keys`: all there are; `others`: algorithms that do not run."""
    key, context = ".".join(map(str, error["loc"])), error.get("ctx", {})
    given = error["input"]
    match error["type"]:
        case "extra_forbidden":
            return f"{key}: expected a known key, got {key} = {shown(given)}{meant(key, given, keys, others)}"
        case "value_error":
            return f"{key}: {context['error']}" if key else str(context["error"])
        case "literal_error":
            near = nearest(given, re.findall("'([^']*)'", context["expected"]))
            return f"{key}: expected {context['expected']}, got {shown(given)}{near}"
        case kind if kind in _BOUNDS:
            return f"{key}: expected a number {_BOUNDS[kind].format(**context)}, got {shown(given)}"
        case kind if kind in _TYPES:
            return f"{key}: expected {_TYPES[kind]}, got {shown(given)}"
    return f"{key}: {error['msg']}, got {shown(given)}"


def meant(key: str, given: object, keys: Sequence[str], others: Collection[str]) -> str:
    """The known keys (or sections, where a table was given) that an unknown one may stand for."""
    section, _, last = key.rpartition(".")
    known = sorted({_section(one) for one in keys} - {""}) if isinstance(given, dict) else [*keys]
    found = [one for one in known if _last(one) == last]
    found = found or _close(last, [one for one in known if _section(one) == section], 0.5)
    found = found or _close(last, known, 0.75)
    found = [one for one in found if one.split(".")[0] not in others] or found
    if found:
        return f"; did you mean {' or '.join(map(repr, found[:3]))}?"
    at = f"{section}." if section else ""
    here = [one[len(at) :].partition(".")[0] for one in keys if one.startswith(at)]
    return f"; known are {list(dict.fromkeys(here))}"


def shown(given: object) -> str:
    """A value as it was given, but not pages of it."""
    text = repr(given)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def nearest(word: object, known: Iterable[str]) -> str:
    """The most similar one, as a question; "" where none is."""
    near = _close(str(word), known, 0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def _close(word: str, known: Iterable[str], cutoff: float) -> list[str]:
    """Return the known words whose last part is the most similar."""
    by_last: dict[str, list[str]] = {}
    for one in known:
        by_last.setdefault(_last(one), []).append(one)
    near = difflib.get_close_matches(word, by_last, n=1, cutoff=cutoff)
    return by_last[near[0]] if near else []


def _section(key: str) -> str:
    return key.rpartition(".")[0]


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def free_table(table: dict[str, Any]) -> dict[str, Any]:
    """`table` itself, where it can be given to a function and written to a file. Else a ValueError."""
    for name, value in table.items():
        if not name.isidentifier() or not _is_plain(value):
            raise ValueError(
                "expected names of arguments with finite numbers, strings, true, false or lists of these, "
                f"got {name} = {shown(value)}"
            )
    return table


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))


def run_name(text: str) -> str:
    """`text` itself, when a run may be called so: its directory is named after it. Else a ValueError."""
    plain = all(letter.isalnum() or letter in "._+- " for letter in text)
    if not plain or not text.strip() or text.startswith(".") or len(text) > LONGEST:
        raise ValueError(
            f"expected letters, digits, blanks and any of ._+-, at most {LONGEST}, not starting with a dot, "
            f"got {text[: LONGEST + 1]!r}"
        )
    return text
