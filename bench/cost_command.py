"""`sparsefl bench cost`: count, show, save and draw."""

from pathlib import Path

from fl.report import picture
from sparsefl.bench import cost, running, theory, theta, theta_plot


def costs(
    tasks: tuple[str, ...],
    settings: list[theory.Setting],
    eta: float | None,
    path: Path | None,
    plot: Path | None,
) -> int:
    """Bytes and FLOP per round beside the paper's, the total cost that follows, and Theorem 1."""
    rows = list(running.shown(cost.run(tasks), cost.told))
    total = theta.rows(rows, theta.depth())
    constants = [theory.row(setting, eta) for setting in settings]
    columns = {"method": "", "data": "", "sparsity": "", "mb": ".1f", "mb_printed": ".1f", "mb_off": "+.2%",
               "mb_real": ".1f", "tflop": ".2f", "tflop_printed": ".1f", "tflop_off": "+.1%"}  # fmt: skip
    more = [theta.as_table(total), cost.theory_table(settings, constants)]
    also = {"table": cost.as_table(rows), "more": more, "theory": constants, "theta": total}
    title = "MB that the busiest receives per round, TFLOP of a client's training; _printed: in the paper"
    if plot:
        picture.draw(plot, theta_plot.page(total), height=theta_plot.HEIGHT)
    return running.finish(rows, columns, cost.summarise, path, title=title, also=also)


def total_cost(tasks: tuple[str, ...], path: Path | None, plot: Path | None) -> int:
    """The paper's C(theta) alone: no messages are written."""
    rows = theta.rows(list(running.shown(cost.run(tasks, real=False), cost.told)), theta.depth())
    if plot:
        picture.draw(plot, theta_plot.page(rows), height=theta_plot.HEIGHT)
    columns = {"data": "", "method": "", "train_s": ".3f", "link_s": ".3f", "time_s": ".2f"}
    columns |= {"energy_j": ",.0f", "client_j": ".1f"}
    shown = [row | {f"C({at:g})": cost_ for at, cost_ in row["per_round"].items()} for row in rows]
    columns |= {f"C({at:g})": ",.2f" for at in theta.SHOWN}
    title = "one round, modelled: seconds, joules, and C(theta) in $ with the energy of all clients"
    return running.finish(
        shown, columns, theta.summarise, path, title=title, also={"table": theta.as_table(rows)}
    )
