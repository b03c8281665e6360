"""`sparsefl simulate`: its figures against the specification, its table, JSON and page, its refusals."""

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

import sparse_engine as se
from fl import config
from fl.cli.app import app
from fl.simulate.page import page
from fl.simulate.simulate import WORKLOADS, Mean, Settings, record, simulate, table, with_error
from fl.units import quantity

UNIT = {"flop": 16e12, "message_bytes": 0.0}  # training takes 1 s, messages nothing


def sparsefl(*args):
    return CliRunner().invoke(app, ["simulate", *args], prog_name="sparsefl")


def rows_of(**options):
    return {(row.degree, row.max_wait): row for row in simulate(Settings(**options))}


@pytest.fixture(scope="module")
def sweep():
    settings = Settings(degrees=(2, 10), max_waits=(0, 1, 5, None), rounds=150, seed=3, **UNIT)
    return settings, list(simulate(settings))


def test_figures_of_the_specification(sweep):
    rows = {(row.degree, row.max_wait): row for row in sweep[1]}
    expected = {(2, None): 5.23, (10, 1): 2.75, (10, 5): 9.15, (10, None): 17.12, (2, 0): 0, (10, 0): 0}
    for key, depth in expected.items():
        assert abs(rows[key].depth.mean - depth) <= 3 * rows[key].depth.error + 0.005
        share = 1 / (key[0] + 1) if key[1] != 0 else 1
        assert abs(rows[key].parallelism.mean - share) <= 3 * rows[key].parallelism.error


def test_index_rule_and_id_reuse():
    by_index = rows_of(max_waits=(1,), wait_rule="index", rounds=150, **UNIT)[10, 1]
    assert abs(by_index.depth.mean - 3.74) < 3 * by_index.depth.error + 0.005
    ring = rows_of(clients=50, topology="ring", reuse="id", rounds=2, **UNIT)[2, None]
    assert ring.depth == (49, 0)


def test_time_is_depth_and_one_trainings(sweep):
    for row in sweep[1]:
        assert row.time_s.mean == pytest.approx(row.depth.mean + 1)
        assert row.energy_j.mean == pytest.approx(100 * 450)
        waves = np.arange(len(row.wave_shares))
        assert sum(row.wave_shares) == pytest.approx(1)
        assert row.wave_shares[0] == pytest.approx(row.parallelism.mean)
        assert row.waiting_s.mean == pytest.approx(waves @ row.wave_shares)


def test_a_bound_above_the_degree_is_left_out(sweep):
    assert [(row.degree, row.max_wait) for row in sweep[1]] == [
        (2, 0), (2, 1), (2, None), (10, 0), (10, 1), (10, 5), (10, None),
    ]  # fmt: skip
    alone = Settings(degrees=(2,), max_waits=(7,), rounds=3, **UNIT)
    assert [row.max_wait for row in simulate(alone)] == [7]
    assert next(simulate(alone)).depth == rows_of(degrees=(2,), rounds=3, **UNIT)[2, None].depth


def test_other_graphs_have_one_degree():
    rows = rows_of(clients=9, topology="grid", degrees=(2, 5), rounds=4, **UNIT)
    assert list(rows) == [(24 / 9, None)]


def test_the_users_graph(tmp_path):
    """0 <- 1 <- 2 <- 3 in order of id."""
    path = tmp_path / "links.txt"
    path.write_text("1 0\n2 1\n3 2\n")
    row = next(simulate(Settings(clients=4, topology="edges", edges=str(path), reuse="id", rounds=1, **UNIT)))
    assert row.depth.mean == 3 and row.parallelism.mean == 0.25 and row.waiting_s.mean == 1.5
    assert row.wave_shares == [0.25] * 4 and np.isnan(row.depth.error)


def test_stragglers_take_longer():
    even, uneven = (
        rows_of(model=config.Devices(kind=kind, spread=0.8), max_waits=(1,), rounds=20, **UNIT)[10, 1]
        for kind in ("homogeneous", "lognormal")
    )
    assert uneven.time_s.mean > 1.5 * even.time_s.mean


def test_messages_on_the_way_delay():
    after, during = (
        rows_of(rounds=20, flop=16e12, message_bytes=125e5, messages=messages)[10, None]
        for messages in ("after", "during")
    )
    assert after.depth == during.depth  # all priors are waited for, whenever they finish
    assert after.time_s.mean == pytest.approx(after.depth.mean + 1 + 1)  # 10 messages of 0.1 s
    assert during.time_s.mean > after.time_s.mean


@pytest.mark.parametrize(
    ("name", "net", "shape"),
    [
        ("resnet18", lambda: se.models.resnet18(num_classes=10), (3, 32, 32)),
        ("vgg11", lambda: se.models.vgg11(num_classes=100), (3, 32, 32)),
        ("alexnet", lambda: se.models.alexnet(num_classes=7), (3, 64, 64)),
    ],
)
def test_workloads_are_those_of_the_networks(name, net, shape):
    dense, work = net(), WORKLOADS[name]
    counted = se.count_flops(se.sparsify(net(), density=0.5, distribution="erk", seed=0), shape)
    assert counted.dense_forward == work.forward_flop
    assert counted.sparse_forward / counted.dense_forward == pytest.approx(work.sparse_share, abs=6e-4)
    assert sum(w.numel() for w in dense.parameters()) == work.weights + work.rest
    assert se.compress(dense).layout.segments.numel == work.weights
    assert work.flop(dense=True) == 5 * work.samples * 3 * work.forward_flop > work.flop(dense=False)
    assert work.message_bytes(dense=True) == 4 * (work.weights + work.rest)


def test_rounds_by_default_take_seconds():
    assert next(simulate(Settings(clients=20, degrees=(3,), **UNIT))).rounds == 200
    assert next(simulate(Settings(clients=50_000, degrees=(40,), max_waits=(0,), **UNIT))).rounds == 2


def test_same_seed_same_rows():
    one, again, other = (list(simulate(Settings(rounds=5, seed=seed))) for seed in (4, 4, 5))
    assert one == again != other


def test_table_and_record(sweep):
    settings, rows = sweep
    shown = table(settings, rows)
    assert shown.row_count == 7 and sum("modelled" in str(column.header) for column in shown.columns) == 3
    one = record(Settings(rounds=1), list(simulate(Settings(rounds=1))))
    text = json.dumps(one, allow_nan=False)
    back = json.loads(text)["rows"][0]
    assert back["depth_error"] is None and back["max_wait"] is None and "modelled" in one["note"]
    assert record(settings, rows)["rows"][5]["depth"] == rows[5].depth.mean


def test_page_is_self_contained_and_has_the_curves(sweep):
    settings, rows = sweep
    html = page(settings, rows)
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", html[:2000] + html[-200_000:])
    assert len(html) > 3_000_000  # plotly itself is inside
    body = html[html.index("<body>") :]
    for title in ("start at once, against M", "waiting, against M", "waiting, against N", "a round unfolds"):
        assert title in body
    assert body.count("Plotly.newPlot(") == 7 and body.count("<tr>") == 8
    assert "17." in body and "not measured" in body


def test_page_of_one_setting():
    settings = Settings(rounds=1)
    assert page(settings, list(simulate(settings))).count("Plotly.newPlot(") == 1


def test_command(tmp_path):
    plot, file = tmp_path / "curves.html", tmp_path / "figures.json"
    done = sparsefl(
        "--clients", "40", "--degree", "2,5", "--max-wait", "1,all", "--rounds", "5", "--topology", "regular",
        "--device-model", "uniform", "--spread", "0.3", "--plot", str(plot), "--json", str(file),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "not measured" in done.output and "40 clients, regular" in done.output
    written = json.loads(file.read_text())
    assert [(row["degree"], row["max_wait"]) for row in written["rows"]] == [
        (2, 1),
        (2, None),
        (5, 1),
        (5, None),
    ]
    assert written["settings"]["model"]["kind"] == "uniform"
    assert f"{written['rows'][1]['depth']:.2f}" in done.output and "M = 5" in plot.read_text()


def test_command_reads_edges_and_workloads(tmp_path):
    path, file = tmp_path / "links.csv", tmp_path / "figures.json"
    path.write_text("0,1\n1,2\n2,0\n")
    done = sparsefl(
        "--clients", "3", "--edges", str(path), "--workload", "vgg11", "--dense", "--json", str(file)
    )
    assert done.exit_code == 0, done.output
    settings = json.loads(file.read_text())["settings"]
    assert settings["topology"] == "edges" and settings["flop"] == pytest.approx(2.29e12, rel=2e-3)
    assert settings["message_bytes"] == 4 * 9_277_284


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--degree", "100"], r"expected a degree from 1 to 99 \(all others\), got 100"),
        (["--degree", "some"], "expected degree as numbers with commas between, got 'some'"),
        (["--max-wait", "1,few"], "expected max-wait as numbers with commas between, got 'few'"),
        (["--max-wait", "-1"], "expected max_wait >= 0, got -1"),
        (["--topology", "torus"], "expected a topology out of"),
        (["--workload", "gpt"], r"expected a workload out of \['resnet18', 'vgg11', 'alexnet'\], got 'gpt'"),
        (["--rounds", "0"], "expected at least 1 round, got 0"),
        (["--flop", "-1"], "expected flop and message_bytes >= 0, got -1.0"),
        (["--flop", "nan"], "expected flop and message_bytes >= 0, got nan"),
        (["--spread", "-1"], "spread: expected a number from 0.0 on, got -1.0"),
        (["--clients", "1"], "expected from 2 to .* clients, got 1"),
        (
            ["--device-model", "slow"],
            "kind: expected 'homogeneous', 'uniform', 'lognormal' or 'trace', got 'slow'",
        ),
        (["--reuse", "best"], "expected a reuse index out of"),
        (["--wait-rule", "best"], "expected a wait rule out of"),
        (["--messages", "never"], "expected messages out of"),
        (["--plot", "/nowhere/x.html"], "expected a file in an existing directory, got /nowhere/x.html"),
    ],
)
def test_command_refuses(args, message):
    done = sparsefl("--rounds", "2", *args)
    assert done.exit_code == 2 and re.match(message, done.output), done.output
    assert "Traceback" not in done.output and done.output.count("\n") == 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0 s"),
        (0.556, "556 ms"),
        (1, "1 s"),
        (999.6, "1 ks"),
        (999.4, "999 s"),
        (20_123, "20.1 ks"),
        (7.1e12, "7.1 Ts"),
    ],
)
def test_quantity(value, expected):
    assert quantity(value, "s") == expected


def test_mean():
    assert Mean.of(np.array([1.0, 3.0])) == (2, 1) and with_error(Mean(2, 1), 1) == "2.0 ± 1.0"
    assert with_error(Mean.of(np.array([2])), 1) == "2.0"
