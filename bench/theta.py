"""The paper's total cost C(theta) from first principles (algorithms.md 7), for all methods and data sets.

    T_comp = 5 FLOP / 80e12          of a client's training, FLOP as `bench cost` counts them
    T_comm = 8 bytes / 1e9           of what the busiest receives in a round, 10 messages by the paper's count
    time   = (depth + 1) T_comp + T_comm       depth of the schedule, K = 100, M = N = 10; 0 without waiting
    energy = a 450 W T_comp + b 1 W T_comm     a clients that train, b that receive 10 messages:
                                               100 and 100; with a server 10 and 1 (the server)
    C(theta) = (1 - theta) time + theta energy,    in $ at 1 $/s and 1 $/J;  all rounds: T times that

These are the constants and sums of the paper ("CFLs have 1 % of the communication, 10 % of the computation");
the way from a server to its clients is not in them. The paper does not say whether energy is that of all
clients or the mean per client: `energy_j` and `client_j` (a hundredth) are both given, with C of both.
DA-DPFL is taken at its final sparsity in all rounds, as the paper's table has it. Its first rounds are at
0.5: "DA-DPFL, before pruning" is what they cost, so that a whole run lies between the two.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from fl import config
from fl.simulate.simulate import Settings, simulate
from fl.world.clock import dollars

Row = dict[str, Any]
CLIENTS, NEIGHBOURS, MAX_WAIT = 100, 10, 10  # K, M and N of the paper
ROUNDS = {"HAM10000": 300, "CIFAR10": 500, "CIFAR100": 500}
SERVER = ("FedAvg", "Ditto", "FedDST")
OURS, UNPRUNED = "DA-DPFL", "DA-DPFL, before pruning"
SHOWN = (0.0, 0.2, 0.5, 1.0)  # thetas of tables
PLANNED = 2000  # rounds whose depth is averaged
DEVICE = config.Devices()


def depth() -> float:
    """The mean depth of the paper's schedule: how many trainings a client waits for at most."""
    unit = Settings(CLIENTS, (NEIGHBOURS,), (MAX_WAIT,), rounds=PLANNED, flop=16e12, message_bytes=0.0)
    return next(simulate(unit)).depth.mean


def rows(costs: Iterable[Row], waits: float) -> list[Row]:
    """A row per row of `bench cost`, and one for DA-DPFL before pruning; `waits`: depth of the schedule."""
    found, masked = [], {}
    for row in costs:
        if row["method"] == "DisPFL":
            masked = row
        if row["method"] == "DA-DPFL, Dir":  # before pruning: the masks and messages of DisPFL, with waiting
            found.append(_row(UNPRUNED, masked, waits))
        found.append(_row(row["method"], row, waits if row["method"].startswith(OURS) else 0.0))
    return found


def _row(method: str, counted: Row, waits: float) -> Row:
    train_s = DEVICE.over_peak * counted["tflop"] * 1e12 / DEVICE.peak_flops
    link_s = 8 * counted["mb"] * 2**20 / DEVICE.bandwidth
    trains, receives = (NEIGHBOURS, 1) if method in SERVER else (CLIENTS, CLIENTS)
    time_s = (waits + 1) * train_s + link_s
    energy_j = trains * DEVICE.compute_watts * train_s + receives * DEVICE.radio_watts * link_s
    whole = ROUNDS[counted["data"]]
    figures = {"train_s": train_s, "link_s": link_s, "depth": waits, "time_s": time_s, "energy_j": energy_j,
               "client_j": energy_j / CLIENTS, "rounds": whole}  # fmt: skip
    return (
        {"method": method, "data": counted["data"]}
        | figures
        | {
            "per_round": {at: dollars(at, time_s, energy_j) for at in SHOWN},
            "all_rounds": {at: whole * dollars(at, time_s, energy_j) for at in SHOWN},
            "client_all_rounds": {at: whole * dollars(at, time_s, energy_j / CLIENTS) for at in SHOWN},
        }
    )


def cheaper(ours: Row, other: Row, energy: str = "energy_j") -> tuple[float, float] | None:
    """From which to which theta `ours` costs less than `other`; None: nowhere."""
    slower, saved = ours["time_s"] - other["time_s"], other[energy] - ours[energy]
    if slower >= 0 and saved <= 0:
        return None
    if slower <= 0 and saved >= 0:
        return 0.0, 1.0
    equal = slower / (slower + saved)  # (1 - theta) slower = theta saved
    return (equal, 1.0) if slower > 0 else (0.0, equal)


def of(rows: Sequence[Row], data: str) -> dict[str, Row]:
    """{method: row}"""
    return {row["method"]: row for row in rows if row["data"] == data}


def tasks(rows: Sequence[Row]) -> list[str]:
    """The data sets, in order."""
    return [*dict.fromkeys(row["data"] for row in rows)]


def summarise(rows: Sequence[Row]) -> dict[str, Any]:
    """By data set and method: time and energy of a round, C of all rounds, where DA-DPFL costs less."""
    summary: dict[str, Any] = {}
    for data in tasks(rows):
        found = of(rows, data)
        for name, row in found.items():
            cell = {
                key: row[key] for key in ("time_s", "energy_j", "client_j", "all_rounds", "client_all_rounds")
            }
            if not name.startswith(OURS):
                for how in ("Dir", "Pat"):
                    ours = found[f"{OURS}, {how}"]
                    cell[f"{how} cheaper"] = cheaper(ours, row)
                    cell[f"{how} cheaper, energy per client"] = cheaper(ours, row, "client_j")
            summary.setdefault(data, {})[name] = cell
    return summary


def as_table(rows: Sequence[Row]) -> Row:
    """A line per method: seconds and kJ of a round, C(0.5) of all rounds, where DA-DPFL costs less."""
    head, lines = ["total cost, modelled"], {name: [name] for name in of(rows, tasks(rows)[0])}
    for data in tasks(rows):
        head += [f"{data} s", "kJ", f"k$ of {ROUNDS[data]}", "DA-DPFL cheaper"]
        found = of(rows, data)
        for name, row in found.items():
            figures = (
                f"{row['time_s']:.2f}",
                f"{row['energy_j'] / 1e3:.2f}",
                f"{row['all_rounds'][0.5] / 1e3:,.0f}",
            )
            where = "" if name.startswith(OURS) else _where(found[f"{OURS}, Dir"], row)
            lines[name] += [*figures, where]
    return {"head": head, "rows": [*lines.values()], "note": f"{modelled(rows)} {_COLUMNS}"}


def _where(ours: Row, other: Row) -> str:
    """With the mean energy per client, and in brackets with that of all."""
    shown = [_range(cheaper(ours, other, energy)) for energy in ("client_j", "energy_j")]
    return shown[0] if shown[0] == shown[1] else f"{shown[0]} ({shown[1].split()[-1]})"


def _range(thetas: tuple[float, float] | None) -> str:
    if thetas is None:
        return "never"
    low, high = thetas
    return f"from {low:.2g}" if low > 0 else f"up to {high:.2g}" if high < 1 else "always"


_COLUMNS = (
    "Columns: seconds of a round, which are C(0); kilojoules of a round, all clients, which are C(1); C(0.5) "
    "of all rounds in 1000 $; the thetas at which DA-DPFL (Dir) costs less, with the mean energy per client "
    "and, in brackets, with that of all clients."
)


def modelled(rows: Sequence[Row]) -> str:
    """What the figures are, in sentences."""
    waits = max(row["depth"] for row in rows)
    return (
        "C(theta) = (1 - theta) time + theta energy at 1 $/s and 1 $/J: theta 0 weighs time alone, theta 1 "
        "energy alone. Nothing is measured: training takes 5 FLOP / 80e12 s at 450 W, messages take "
        "8 bytes / 1e9 s at 1 W, FLOP and bytes are counted as in the paper's table. A round of DA-DPFL "
        f"lasts {waits + 1:.1f} trainings (mean depth {waits:.1f} of the schedule with 100 clients and 10 "
        "neighbours, all waited for). With a server 10 clients train and the server alone receives. DA-DPFL "
        "is at its final sparsity in all rounds, as the paper has it; its first rounds cost what "
        f'"{UNPRUNED}" says.'
    )
