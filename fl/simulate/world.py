"""Devices and presence of `sparsefl simulate`, from the words of a command line, and back to words."""

from fl import config
from fl.config import Devices, Presence
from fl.errors import ConfigError
from fl.units import percent


def devices(
    kind: str | None, spread: float, hardware: str | None = None, trace: str | None = None
) -> Devices:
    """The device model of these words; one that cannot be is a ConfigError. A trace has a kind of its own."""
    if trace is not None and kind not in (None, "trace"):
        raise ConfigError(f"expected no device model or trace beside a trace, got {kind!r}")
    usual = "homogeneous" if trace is None else "trace"
    given = {"kind": kind or usual, "spread": spread, "hardware": hardware, "trace": trace}
    return config.section(Devices, {key: value for key, value in given.items() if value is not None})


def presences(
    rate: float | None, online: float | None, offline: float | None, trace: str | None, round_hours: float
) -> Presence:
    """Who is there, by these words: a rate, sessions, or the hours of a trace; nothing is everybody."""
    told = {
        "rate": rate is not None,
        "sessions": (online, offline) != (None, None),
        "trace": trace is not None,
    }
    kinds = [kind for kind, is_told in told.items() if is_told]
    if len(kinds) > 1:
        raise ConfigError(f"expected one way to come and go, got {' and '.join(kinds)}")
    given = {"rate": rate, "online": online, "offline": offline, "trace": trace}
    known = {key: value for key, value in given.items() if value is not None}
    more = {"round_hours": round_hours} if trace is not None else {}
    return config.section(Presence, {"kind": kinds[0] if kinds else "always"} | known | more)


def comes_and_goes(given: Presence) -> str:
    """Who is there, in words; nothing where everybody is."""
    return {
        "always": "",
        "rate": f", {percent(given.rate)} of the clients absent",
        "sessions": f", {given.online:g} rounds online and {given.offline:g} offline",
        "trace": f", online as in {given.trace}",
    }[given.kind]
