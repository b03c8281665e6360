"""report.html of a run directory: what a run gave, what it cost and what it was, on one page.

write(path)      makes path/report.html, of a finished run or of one that is not
"""

from collections.abc import Mapping
from html import escape
from pathlib import Path

from fl.config import Config
from fl.report import energy, page
from fl.report import figures as report_figures
from fl.report.summary import SUMMARY_COLUMNS, describe, how_long, mixed_lines, summary_rows, times
from fl.run import recorded
from fl.run.recorded import Record, Recorded
from fl.run.rundir import REPORT, RunDirError, write_atomic
from fl.units import counted, duration, percent, quantity


def write(path: Path | str) -> Path:
    """The report of the run in `path`, in its directory."""
    return write_page(recorded.read(path), Path(path) / REPORT)


def write_page(run: Recorded, file: Path) -> Path:
    """The report of `run`, in that file."""
    text = html(run)
    try:
        write_atomic(file, text.encode())
    except OSError as wrong:
        raise RunDirError(f"cannot write {file}: {wrong.strerror or wrong}") from wrong
    return file


def html(run: Recorded) -> str:
    """Return the whole page."""
    parts = [head(run), page.grid(report_figures.panels(run)), settings(run), environment(run)]
    return page.document(f"{run.config.name}: {run.config.algorithm}", "".join(parts))


def head(run: Recorded) -> str:
    """Name, state, the figures that matter most, and the table that ends a run."""
    cfg = run.config
    about = "".join(f"<p>{escape(text)}</p>\n" for text in (describe(cfg), cfg.description) if text)
    said = f"{_path(run)}{_state(run)}{_mixed(run)}{_joules(run)}"
    return f"<h1>{escape(cfg.name)}</h1>\n{about}{said}{_results(run)}"


def _path(run: Recorded) -> str:
    """Return how clients were trained; nothing if it was not recorded."""
    path = run.summary["path"] if run.summary else ""
    return f"<p>Clients train as {escape(path)}.</p>\n" if path else ""


def _state(run: Recorded) -> str:
    """Return what is to be said of a run that is not finished, or stopped early."""
    if not run.finished:
        return (
            f"<p><b>Not finished:</b> {len(run.rounds)} of {counted(run.config.num_rounds, 'round')}.</p>\n"
        )
    if run.summary and run.summary["stopped_early"]:
        return f"<p><b>Not all rounds:</b> {escape(how_long(run.summary))}.</p>\n"
    return ""


def _mixed(run: Recorded) -> str:
    """Return a warning if not all rounds were computed alike."""
    lines = mixed_lines(run.summary or {})
    if not lines:
        return ""
    text = "numbers were not computed alike in all rounds, and no single machine repeats them."
    return f"<p><b>Mixed:</b> {text} {escape('; '.join(lines))}.</p>\n"


def _joules(run: Recorded) -> str:
    """Return where measured joules come from, or why there are none; nothing if nobody asked for them."""
    notes = energy.notes(run.rounds, run.summary["environment"] if run.summary else {})
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<p><b>Measured joules:</b></p><ul>{items}</ul>\n" if items else ""


def _results(run: Recorded) -> str:
    if run.summary is None:
        return ""
    rows = page.table(summary_rows(run.summary), SUMMARY_COLUMNS)
    tiles = page.tiles(_highlights(run.summary, _who(run.config)))
    return f'{tiles}{rows}<p class="note">{escape(_meaning(run.config))}</p>\n'


def _who(cfg: Config) -> str:
    """Over whom accuracies of a round are."""
    return "all clients" if cfg.presence.kind == "always" else "clients that were there"


def _highlights(ours: Record, who: str) -> list[tuple[str, str, str]]:
    return [
        ("Best test accuracy", percent(ours["accuracy_best"]), f"round {ours['round_best']}, {who}"),
        ("Mean of the last 5 rounds", percent(ours["accuracy_last5"]), f"test accuracy, {who}"),
        ("Density at the end", f"{ours['density_last']:.3f}", "of prunable weights"),
        ("Bytes sent", *_less(ours["bytes_total"], ours["bytes_total_dense"], "B")),
        ("Training operations", *_less(ours["flop_total"], ours["flop_total_dense"], "FLOP")),
        ("Wall time, measured", duration(ours["wall_s"]), "all rounds together"),
        *energy.tile(ours),
        ("Energy, modelled", quantity(ours["sim_energy_j"], "J"), f"in {quantity(ours['sim_time_s'], 's')}"),
    ]


def _less(ours: float, dense: float, unit: str) -> tuple[str, str]:
    shown = f"{times(ours, dense)} less" if ours <= dense else f"{times(dense, ours)} more"
    return shown if ours else "none", f"{quantity(ours, unit)}, dense {quantity(dense, unit)}"


def _meaning(cfg: Config) -> str:
    """Return the remarks on columns and modelled figures."""
    dense = "Dense: the same messages with every weight in them, and the same samples through dense models. "
    return dense + modelled(cfg)


def modelled(cfg: Config) -> str:
    """Return the table of the modelled devices."""
    model = cfg.devices
    speed = quantity(model.peak_flops / model.over_peak, "FLOP/s")
    device = f"{speed} at {model.compute_watts:g} W, and {quantity(model.bandwidth, 'bit/s')}"
    kind = model.kind if model.hardware is None else f"{model.kind} {model.hardware}"
    usual = " where their trace does not say otherwise" if model.kind == "trace" else ""
    return f"Modelled, not measured: {kind} devices that do {device}{usual}."


def settings(run: Recorded) -> str:
    """The complete configuration, folded."""
    return f"<details><summary>Configuration</summary><pre>{escape(run.config_text)}</pre></details>\n"


def environment(run: Recorded) -> str:
    """Versions, hardware and commit."""
    if run.summary is not None and run.summary["environment"]:
        return facts(run.summary["environment"] | {"workers": str(run.summary["workers"])})
    return facts({})


def facts(environment: Mapping[str, str]) -> str:
    """Return a folded table of {fact: value}."""
    shown = page.table(environment.items(), kind="facts")
    if not environment:
        shown = '<p class="note">No data: not recorded yet.</p>\n'
    return f"<details open><summary>Versions and hardware</summary>{shown}</details>\n"
