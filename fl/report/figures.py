"""The figures of one run. Values are drawn as they were recorded; axes, not data, have units."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from fl.keys import Figure
from fl.report import page
from fl.report.page import BLUE, GREY, ORANGE, RED, Curve, Panel
from fl.run import keys
from fl.run.recorded import Recorded

_CLIENTS = 200  # more do not fit next to each other: then every n-th is shown
_LINES = 7  # more layers than colours become a heat map
_LOG_TICKS = [digit * 10.0**power for power in range(-9, 7) for digit in (1, 2, 5)]
_THREE = (BLUE, RED, GREY)
_NO_ROUNDS = "No data: no round is finished yet."


def panels(run: Recorded) -> list[Panel]:
    """Return all figures, in the order of the page."""
    return [
        accuracy(run),
        spread(run),
        density(run),
        layers(run),
        *(declared(run, figure) for figure in keys.figures(run.config.algorithm)),
        depth(run),
        sent(run),
        busiest(run),
        flop(run),
        seconds(run),
        *pace(run),
        *joules(run),
        partition(run),
        clients(run),
    ]


def accuracy(run: Recorded) -> Panel:
    lines = {"after training": "accuracy_mean", "before training": "accuracy_before"}
    text = (
        "Each client on its own test samples, unweighted mean over all clients: after local training, and "
        "before it, right after averaging with the neighbours."
    )
    if run.has("accuracy_global"):
        lines = {
            "clients' models": "accuracy_mean",
            "server's model": "accuracy_global",
            "sampled clients alone": "accuracy_sampled",
        }
        text = (
            "Unweighted mean over all clients, each on its own test samples: of the model that the client "
            "would use (the one that it trained last, or its personal one), and of the server's new model. "
            "The mean over the clients that were sampled in the round depends on who was drawn."
        )
    figure = _figure(run, lines, "test accuracy (%)", _THREE, ("solid", "dash", "dot"), share=True)
    return Panel(
        "Accuracy",
        text,
        _marked(figure, run),
        _why(run, "no client has test samples."),
    )


def spread(run: Recorded) -> Panel:
    text = "How far clients are apart: test accuracy, lowest and highest of all clients. "
    if run.quartiles and run.has("sampled"):
        text += "Median and darker band: half of the clients that trained in the round."
    elif run.quartiles:
        text += "Half of the clients lie in the darker band."
    else:
        text += "Quartiles are there for runs with run.record_clients = true."
    return Panel("Accuracy over clients", text, _spread(run), _why(run, "no client has test samples."))


def _spread(run: Recorded) -> go.Figure | None:
    if not run.has("accuracy_mean"):
        return None
    low, middle, high = ([run.quartiles.get(t, [None] * 3)[i] for t in run.x] for i in range(3))
    some = " of those that trained" if run.has("sampled") else ""
    name, values = (f"median{some}", middle) if run.quartiles else ("mean", run.column("accuracy_mean"))
    figure = page.curves([Curve(name, run.x, values)])
    page.band(
        figure, run.x, run.column("accuracy_min"), run.column("accuracy_max"), "lowest to highest", BLUE
    )
    if run.quartiles:
        page.band(figure, run.x, low, high, f"middle half{some}", BLUE, 0.35)
    return _dressed(figure, run.x, "test accuracy (%)", share=True)


def density(run: Recorded) -> Panel:
    figure = _figure(run, {"mean over clients": "density_mean"}, "density (stored share)")
    if figure is not None:
        page.band(
            figure, run.x, run.column("density_min"), run.column("density_max"), "lowest to highest", BLUE
        )
        figure.update_yaxes(rangemode="tozero")
        _levels(figure, run, "density_mean")
    return Panel(
        "Density",
        "Share of the prunable weights that is stored and sent, at the end of the round.",
        _marked(figure, run),
        _why(run, "density was not recorded."),
    )


def layers(run: Recorded) -> Panel:
    return Panel(
        "Density of layers", "Mean over clients.", _layers(run), _why(run, "layers were not recorded.")
    )


def _layers(run: Recorded) -> go.Figure | None:
    named = {name.removesuffix(".weight"): values for name, values in run.layers().items()}
    if not named:
        return None
    if len(named) <= _LINES:
        figure = page.curves([Curve(name, run.x, values) for name, values in named.items()])
        figure.update_yaxes(rangemode="tozero")
        return _dressed(figure, run.x, "density (stored share)")
    rows: list[list[Any]] = [*named.values()]
    figure = page.heat(run.x, [*named], rows, "density", top=1)
    figure.update_traces(hovertemplate="%{customdata}, round %{x}: %{z:.3f}<extra></extra>")
    return _heat(figure, "round", "layer", height=max(360, 20 * len(named) + 80))


def declared(run: Recorded, told: Figure) -> Panel:
    """A figure that the algorithm of the run wants to be there."""
    figure = _figure(run, {told.curve: told.key}, told.y, share=told.scale == "share")
    if figure is not None:
        if told.scale == "share":
            figure.update_yaxes(range=[-0.03, 1.05])
        elif told.scale == "log":
            figure.update_yaxes(type="log", tickvals=_LOG_TICKS, tickformat="~g")
        else:
            figure.update_yaxes(rangemode="tozero")
        _levels(figure, run, told.key)
    return Panel(told.title, told.text, _marked(figure, run), _why(run, told.missing))


def depth(run: Recorded) -> Panel:
    figure = None
    if any(run.column("depth")):
        figure = go.Figure()
        figure.add_bar(x=run.x, y=run.column("depth"), name="depth", marker={"color": BLUE})
        _dressed(figure, run.x, "depth (clients in a chain)")
        figure.update_layout(showlegend=False, bargap=0.1 if len(run.x) <= page.MANY else 0)
    return Panel(
        "Waiting",
        "The longest chain of clients that wait for each other: a round lasts depth + 1 trainings.",
        figure,
        _why(run, "no client waited for another in any round."),
    )


def sent(run: Recorded) -> Panel:
    return Panel(
        "Bytes sent",
        "By all clients in a round. Real: messages as they were written, with masks.",
        _bytes(run, "bytes_total"),
        _why(run, "no messages were counted."),
    )


def busiest(run: Recorded) -> Panel:
    return Panel(
        "Bytes of the busiest client",
        "Received in a round by the client, or server, that receives most: the paper's measure.",
        _bytes(run, "bytes_busiest"),
        _why(run, "no messages were counted."),
    )


def _bytes(run: Recorded, key: str) -> go.Figure | None:
    lines = {"real": key, "the paper's count, without masks": f"{key}_paper", "dense": f"{key}_dense"}
    return _si(_figure(run, lines, "bytes per round", [BLUE, ORANGE, GREY], ["solid", "dot", "dash"]), "B")


def flop(run: Recorded) -> Panel:
    lines = {"this run, with growth": "flop_round", "dense": "flop_dense"}
    return Panel(
        "Training operations",
        "FLOP of all clients in a round, counted exactly; dense: the same samples through dense models.",
        _si(_figure(run, lines, "FLOP per round", [BLUE, GREY], ["solid", "dash"])),
        _why(run, "operations were not counted."),
    )


def seconds(run: Recorded) -> Panel:
    lines = {"round, wall time": "wall_s", "local training, summed over clients": "train_s"}
    figure = _figure(run, lines, "time (s), measured")
    if figure is not None:
        figure.update_yaxes(rangemode="tozero")
    return Panel(
        "Time, measured",
        "On the machine of this run; the modelled time of the devices is in the table above.",
        figure,
        _why(run, "time was not measured."),
    )


def pace(run: Recorded) -> list[Panel]:
    """What runs of many clients are watched by, as far as it was recorded: clients per second, memory, and
    who was there."""
    return [*_rate(run), *_memory(run), *_crowd(run)]


def _rate(run: Recorded) -> list[Panel]:
    both = zip(run.column("trained"), run.column("wall_s"), strict=True)
    rate = [trained / wall if trained is not None and wall else None for trained, wall in both]
    if not any(rate):
        return []
    figure = _dressed(page.curves([Curve("clients per second", run.x, rate)]), run.x, "clients per second")
    figure.update_yaxes(rangemode="tozero")
    text = "Clients that trained in a round, over its wall time, with tests and planning."
    return [Panel("Clients per second (measured)", text, figure, _NO_ROUNDS)]


def _memory(run: Recorded) -> list[Panel]:
    figure = _si(_figure(run, {"resident": "rss_bytes"}, "memory (bytes), measured"), "B")
    text = "Resident memory of the process when the round was over: data, workers and all clients."
    return [] if figure is None else [Panel("Memory (measured)", text, figure, _NO_ROUNDS)]


def _crowd(run: Recorded) -> list[Panel]:
    if not run.has("present"):
        return []
    figure = _figure(run, {"there": "present", "trained": "trained"}, "clients")
    assert figure is not None  # some key is there
    figure.update_yaxes(rangemode="tozero")
    text = "Clients come and go: accuracies and densities of a round are over those that were there."
    return [Panel("Clients that were there", text, figure, _NO_ROUNDS)]


def joules(run: Recorded) -> list[Panel]:
    """None, or one: of a run whose joules were measured."""
    if not run.has("energy_j"):
        return []
    lines = {"gross": "energy_j", "net of idle power": "energy_net_j"}
    figure = _figure(run, lines, "energy (J), measured")
    assert figure is not None  # there are joules
    figure.update_yaxes(rangemode="tozero")
    text = "Read from meters in every round; gross, and less what the idle machine took before the first."
    return [Panel("Joules (measured)", text, figure, _NO_ROUNDS)]


def partition(run: Recorded) -> Panel:
    figure, text = None, "Training samples of each class that a client has."
    if run.partition is not None:
        counts = run.partition["train"]
        shown = _chosen(len(counts))
        names, z = run.partition["classes"], np.array([counts[k] for k in shown]).T.tolist()
        figure = page.heat(shown, names, z, "samples")
        where = "class %{customdata}, client %{x}: %{z} samples<extra></extra>"
        figure.update_traces(hovertemplate=where)
        _heat(figure, "client", "class", height=max(300, min(20 * len(names) + 100, 900)))
        text += _note(shown, len(counts))
    return Panel("Partition", text, figure, "No data: partition.json is not there.", wide=True)


def clients(run: Recorded) -> Panel:
    tested = [one for one in run.last if one.accuracy is not None]
    figure, shown = None, [tested[i] for i in _chosen(len(tested))]
    if shown:
        x = [one.client for one in shown]
        figure = page.curves(
            [
                Curve("after training", x, [one.accuracy for one in shown], BLUE),
                Curve("before training", x, [one.accuracy_before for one in shown], RED),
            ]
        )
        figure.update_traces(mode="markers", marker={"size": 9})
        figure.data[1].marker.symbol = "circle-open"
        _dressed(figure, x, "test accuracy (%)", share=True).update_xaxes(title_text="client")
    text = "Test accuracy of every client that trained in the last round."
    missing = _why(run, "clients.jsonl is not there (run.record_clients), or nobody has test samples.")
    return Panel("Clients, last round", text + _note(shown, len(tested)), figure, missing, wide=True)


def _figure(
    run: Recorded,
    lines: dict[str, str],
    y_title: str,
    colours: Sequence[str] = (BLUE, RED),
    dashes: Sequence[str] = ("solid", "dash"),
    share: bool = False,
) -> go.Figure | None:
    """Keys of metrics.jsonl against the rounds; None where nothing was recorded."""
    if not run.has(*lines.values()):
        return None
    drawn = [
        Curve(name, run.x, run.column(key), colour, dash)
        for (name, key), colour, dash in zip(lines.items(), colours, dashes, strict=False)
    ]
    return _dressed(page.curves(drawn), run.x, y_title, share)


def _dressed(figure: go.Figure, x: Sequence[int], y_title: str, share: bool = False) -> go.Figure:
    page.whole_ticks(page.dressed(figure, "round", y_title), len(x))
    if share:
        figure.update_yaxes(tickformat=".0%", hoverformat=".2%")
    else:
        figure.update_yaxes(hoverformat=".4~g")
    return figure


def _heat(figure: go.Figure, x_title: str, y_title: str, height: int) -> go.Figure:
    page.dressed(figure, x_title, y_title, height)
    figure.update_layout(showlegend=False, hovermode="closest")
    return figure


def _si(figure: go.Figure | None, unit: str = "") -> go.Figure | None:
    """Give the axis ticks such as 7.5 MB, and return the figure."""
    if figure is not None:
        figure.update_yaxes(tickformat="~s", hoverformat=".4~s", ticksuffix=unit, rangemode="tozero")
    return figure


def _marked(figure: go.Figure | None, run: Recorded) -> go.Figure | None:
    """Mark the rounds that keys of the summary name, and return the figure."""
    if figure is not None and run.summary is not None:
        for key in keys.own("run", run.config.algorithm):
            at = run.summary[key.name]
            if not key.mark or at is None:
                continue
            if isinstance(at, list):
                page.mark(figure, at, key.mark)
            else:
                page.mark(figure, [at], key.mark.format(at), "solid")
    return figure


def _levels(figure: go.Figure, run: Recorded, key: str) -> None:
    """Lines at what settings of the algorithm say of `key`."""
    for level in keys.levels(run.config.algorithm):
        if level.key == key:
            value = level.value(run.config.settings)
            page.level(figure, value, level.text.format(value))


def _why(run: Recorded, reason: str) -> str:
    return f"No data: {reason}" if run.rounds else _NO_ROUNDS


def _chosen(n: int) -> list[int]:
    return [*range(0, n, max(-(-n // _CLIENTS), 1))]


def _note(shown: Sequence[object], n: int) -> str:
    return "" if len(shown) == n else f" {len(shown)} of {n:,} clients are shown."
