"""Which keys a run reads. A key that counts only sometimes says so where it is declared:

    alpha: Annotated[Positive, only_if(partition="dirichlet")] = 0.3        other keys of its section decide
    wait_rule: Annotated[..., unless(max_wait=0)] = "fastest"

Keys of an algorithm's section that `training` has too take the place of those (`Section.trainings`), and it
names other keys that it does not read (`Section.unread`). From this come the keys without effect of a run
(`without_effect`) and the words of `sparsefl list --keys` (`condition`).
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic.fields import FieldInfo

if TYPE_CHECKING:
    from fl.config import Config, Section


@dataclass(frozen=True)
class Counts:
    """A key has an effect where `when` holds for the section that it belongs to; `words` say the same."""

    when: Callable[[Any], bool]
    words: Callable[[str], str]  # of the section's prefix, such as "data."


Rule = Callable[["Config", Collection[str]], dict[str, str]]


def only_if(**wanted: object) -> Counts:
    """Counts where the other key has this value, or one of these (a tuple)."""
    ((name, values),) = wanted.items()
    allowed = values if isinstance(values, tuple) else (values,)
    text = " or ".join(map(str, allowed))
    return Counts(lambda section: getattr(section, name) in allowed, lambda at: f"with {at}{name} = {text}")


def unless(**refused: object) -> Counts:
    """Counts where the other key has any value but this one, or these (a tuple)."""
    ((name, values),) = refused.items()
    without = values if isinstance(values, tuple) else (values,)
    text = " or ".join(map(str, without))
    return Counts(
        lambda section: getattr(section, name) not in without,
        lambda at: f"with another {at}{name} than {text}",
    )


def condition(field: FieldInfo) -> str:
    """When a key counts, in words; "" where it always does."""
    found = [mark.words("") for mark in field.metadata if isinstance(mark, Counts)]
    return f"only {' and '.join(found)}" if found else ""


def without_effect(config: "Config", algorithms: Collection[str]) -> dict[str, str]:
    """The keys that this run does not read, each with what would make it count."""
    found = unfit(config, algorithms)
    for name in set(algorithms) - {config.section}:
        found |= {
            key: f"it counts with algorithm = {name}" for key in _leaves(getattr(config, name), f"{name}.")
        }
    everywhere = [*_leaves(config, "")]
    for key, why in by_algorithm(config).items():
        below = [one for one in everywhere if one == key or one.startswith(f"{key}.")]
        found |= {one: why for one in below if one not in found}
    return found


def unfit(config: "Config", algorithms: Collection[str]) -> dict[str, str]:
    """Return the keys that their own section makes idle, whichever algorithm runs."""
    others = set(algorithms) - {config.section}
    return {key: why for key, why in _unread(config, "") if key.split(".")[0] not in others}


def _unread(section: "Section", at: str) -> Iterator[tuple[str, str]]:
    for name, field in type(section).model_fields.items():
        value, key = getattr(section, name), f"{at}{name}"
        failing = [
            mark.words(at) for mark in field.metadata if isinstance(mark, Counts) and not mark.when(section)
        ]
        nested = _is_section(value)
        if failing:
            why = f"it counts {' and '.join(failing)}"
            yield from ((one, why) for one in (_leaves(value, f"{key}.") if nested else [key]))
        elif nested:
            yield from _unread(value, f"{key}.")


def by_algorithm(config: "Config") -> dict[str, str]:
    """Keys and sections that the algorithm leaves alone, and why."""
    name = config.section
    both = type(config.settings).model_fields.keys() & type(config.training).model_fields.keys()
    own = {f"training.{key}": f"{name} takes {name}.{key} instead" for key in both}
    return own | {key: f"{name} {why}" for key, why in config.settings.unread().items()}


def _leaves(section: "Section", at: str) -> Iterator[str]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        yield from _leaves(value, f"{at}{name}.") if _is_section(value) else [f"{at}{name}"]


def _is_section(value: object) -> bool:
    return hasattr(type(value), "model_fields")
