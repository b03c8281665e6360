"""C(theta) from first principles, by hand: figures that a calculator gives from the paper's constants."""

import json

import browser
import pytest

from sparsefl.bench import cli, cost, theta, theta_plot

# 16 TFLOP train in 5 * 16e12 / 80e12 = 1 s for 450 J;  2^20 * 119.2092895... MB are 1e9 bits: 1 s for 1 J
MB = 1e9 / 8 / 2**20


def counted(method, data="CIFAR10", mb=MB, tflop=16.0):
    return {"method": method, "data": data, "mb": mb, "tflop": tflop}


def made():
    """Methods of one training second and one link second, DA-DPFL of half of both."""
    costs = [
        counted("FedAvg"),
        counted("DisPFL"),
        *(counted(f"DA-DPFL, {x}", mb=MB / 2, tflop=8.0) for x in ("Dir", "Pat")),
    ]
    return theta.rows(costs, waits=17.0)


def test_a_round_by_hand():
    fedavg, dispfl, before, dirichlet, _ = made()
    assert (dispfl["train_s"], dispfl["link_s"]) == pytest.approx((1, 1))
    assert dispfl["time_s"] == pytest.approx(2) and dispfl["energy_j"] == pytest.approx(100 * 451)
    assert fedavg["time_s"] == pytest.approx(2) and fedavg["energy_j"] == pytest.approx(10 * 450 + 1)
    assert before["method"] == theta.UNPRUNED and before["time_s"] == pytest.approx(18 + 1)
    assert before["energy_j"] == pytest.approx(100 * 451)
    assert dirichlet["time_s"] == pytest.approx(18 / 2 + 0.5)
    assert dirichlet["energy_j"] == pytest.approx(50 * 451) and dirichlet["client_j"] == pytest.approx(225.5)
    assert dirichlet["per_round"] == pytest.approx({0.0: 9.5, 0.2: 4517.6, 0.5: 11279.75, 1.0: 22550.0})
    assert dirichlet["all_rounds"][0.5] == pytest.approx(500 * 11279.75)
    assert dirichlet["client_all_rounds"][0.5] == pytest.approx(500 * (9.5 + 225.5) / 2)


def test_where_one_is_cheaper_by_hand():
    fedavg, dispfl, before, dirichlet, _ = made()
    low, high = theta.cheaper(dirichlet, dispfl, "client_j")  # 7.5 s more, 225.5 J less
    assert low == pytest.approx(7.5 / 233) and high == 1
    for row in (dirichlet, dispfl):
        row["at"] = (1 - low) * row["time_s"] + low * row["client_j"]
    assert dirichlet["at"] == pytest.approx(dispfl["at"])
    assert theta.cheaper(before, dispfl) is None and theta.cheaper(dispfl, before) == (0, 1)
    assert theta.cheaper(before, fedavg) is None
    late = fedavg | {"time_s": 20.0}
    assert theta.cheaper(dirichlet, late, "client_j") == (0, pytest.approx(10.5 / (10.5 + 225.5 - 45.01)))
    shown = [theta._where(dirichlet, other) for other in (dispfl, fedavg, late)]
    assert shown == ["from 0.032 (0.00033)", "never", "up to 0.055 (0.00058)"]


@pytest.fixture(scope="module")
def rows():
    """All methods and data sets, with the depth of algorithms.md."""
    return theta.rows(list(cost.run(real=False)), waits=17.12)


def test_the_papers_constants_by_hand(rows):
    """algorithms.md's ResNet18: 8.31e12 FLOP and 426.3 MB dense; DisPFL .801 of it and a batch of 128."""
    found = theta.of(rows, "CIFAR10")
    dense_s, dense_link_s = 5 * 2495 * 3 * 1_110_845_450 / 80e12, 10 * 4 * 8 * 11_173_962 / 1e9
    assert (
        found["GossipFL"]["time_s"]
        == pytest.approx(dense_s + dense_link_s / 2)
        == pytest.approx(2.3075, abs=1e-3)
    )
    assert found["DFedSAM"]["energy_j"] == pytest.approx(100 * (450 * 2 * dense_s + dense_link_s))
    sparse_s = dense_s * (0.801 + 128 / 2495)
    assert found["DisPFL"]["time_s"] == pytest.approx(sparse_s + dense_link_s / 2, rel=1e-3)
    assert found[theta.UNPRUNED]["time_s"] == pytest.approx(18.12 * sparse_s + dense_link_s / 2, rel=1e-3)
    assert {row["rounds"] for row in rows if row["data"] == "HAM10000"} == {300}


def test_what_the_paper_says_of_its_figures(rows):
    """Slower at theta 0, cheapest without a server from theta 0.2 on; with a server cheaper still."""
    for data in ("CIFAR10", "CIFAR100"):
        found = theta.of(rows, data)
        for ours in ("DA-DPFL, Dir", "DA-DPFL, Pat"):
            for name in ("GossipFL", "DFedAvgM", "DisPFL", "BEER"):
                for energy in ("client_j", "energy_j"):
                    low, high = theta.cheaper(found[ours], found[name], energy)
                    assert 0 < low < 0.2 and high == 1
            for name in theta.SERVER:
                assert found[name]["energy_j"] < 0.25 * found[ours]["energy_j"]


def test_the_depth_is_that_of_the_papers_schedule():
    assert theta.depth() == pytest.approx(17.12, abs=0.2)


def test_the_command_writes_table_figures_and_page(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(theta, "PLANNED", 20)
    file, plot = tmp_path / "theta.json", tmp_path / "theta.html"
    assert cli.main(["cost", "--theta", "--quick", "--json", str(file), "--plot", str(plot)]) == 0
    result = json.loads(file.read_text())
    assert {row["data"] for row in result["rows"]} == {"CIFAR100"} and len(result["rows"]) == 11
    assert result["summary"]["CIFAR100"]["DisPFL"]["Dir cheaper"][1] == 1
    out = capsys.readouterr()
    assert "| DA-DPFL, Dir |" in out.out and "Nothing is measured" in out.out
    assert "CIFAR100, DisPFL: 177.0 MB, 1.72 TFLOP per round\n" in out.err
    assert "figure-1" in plot.read_text() and "GossipFL, DFedAvgM, BEER" in plot.read_text()
    assert cli.main(["cost", "--theta", "--plot", str(tmp_path / "x.pdf")]) == 2


@pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium")
def test_a_browser_draws_all_of_the_page(rows, tmp_path):
    told, console = browser.look({"page": (theta_plot.page(rows), 1000)}, tmp_path)
    assert told["page"]["drawn"] == told["page"]["wanted"] == 6 and not console
