"""Numbers as people read them."""


def percent(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.2f} %"


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def quantity(value: float, unit: str) -> str:
    """Three digits and a prefix: 23.4 MJ."""
    prefixes = {1e15: "P", 1e12: "T", 1e9: "G", 1e6: "M", 1e3: "k", 1.0: "", 1e-3: "m", 1e-6: "µ"}
    for scale, prefix in prefixes.items():
        if value >= scale * 0.9995:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def counted(count: int, what: str) -> str:
    """1 round, 2 rounds."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
