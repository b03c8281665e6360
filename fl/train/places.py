"""Where workers compute (`--device`): on the CPU, on GPUs with one worker each, or on both side by side."""

from collections.abc import Sequence

from fl.errors import ConfigError
from fl.train.path import Path
from sparse_engine.program.gpu import cards
from sparse_engine.program.gpu.cards import NoCard
from sparse_engine.program.gpu.plan import NotOnGpu, plan

CPU = "cpu"
ONLY_CPU = (CPU,)
Places = tuple[str, ...]


def find(text: str, told: str = "device") -> Places:
    """Return the places that `text` names (cpu, cuda, cuda:1, all; several with commas), GPUs first.

    ConfigError, which begins with `told`: one is not there, or cannot be used.
    """
    try:
        return cards.named(text)
    except NoCard as wrong:
        raise ConfigError(f"{told}: {wrong}") from None


def of_workers(places: Places, workers: int) -> list[str]:
    """Return the place of every worker: each GPU has one, the CPU, if it is among them, so many."""
    gpus = [place for place in places if place != CPU]
    return gpus + [CPU] * workers * (CPU in places)


def check(path: Path, places: Places) -> None:
    """ConfigError where clients that are trained on `path` cannot be trained on a GPU."""
    gpus = [place for place in places if place != CPU]
    if not gpus:
        return
    if path.graph is None:
        raise ConfigError(f"device: expected clients that train as a program on {gpus[0]}, got {path}")
    try:
        plan(path.graph)
    except NotOnGpu as missing:
        raise ConfigError(f"device: expected a network that runs on {gpus[0]}: {missing}") from None


def told(places: Places) -> str:
    """Return what numbers depend on besides the program, in words; nothing on the CPU."""
    gpus = [cards.usable(place) for place in places if place != CPU]
    if not gpus:
        return ""
    names = ", ".join(dict.fromkeys(card.name for card in gpus))
    return f" on {names}" + (" and the CPU" if CPU in places else "")


def note(places: Places) -> str | None:
    """Return a remark for the user; None: there is none."""
    if mixed(places):
        return (
            "clients are trained on GPUs and on the CPU, whichever is free: their numbers agree within "
            "rounding only, so another run may come out otherwise"
        )
    return None


def mixed(places: Sequence[str]) -> bool:
    """Are there both?"""
    return CPU in places and len(places) > 1
