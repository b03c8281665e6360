"""bench clients: what is timed is checked first, and the summary says what the rows say."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch

import sparse_engine as se
from sparsefl.bench import __main__ as bench
from sparsefl.bench import clients, loop

SMALL = partial(se.models.small_cnn, width=4)
TINY = clients.Case(SMALL, (1, 8, 8), clients=3, repeats=1, samples=12, tests=5, batch=8, lr=0.1)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def uncompiled(monkeypatch):
    """A machine without a compiler."""

    def refused(net, **how):
        def call(x):
            raise RuntimeError("no compiler\nhere")

        return call

    monkeypatch.setattr(torch, "compile", refused)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(clients, "CASES", {"tiny": TINY})
    monkeypatch.setattr(clients, "check_falls", lambda who, losses: None)  # so few samples teach little


def first(who, case=TINY):
    run = clients.Run(case, who, 0.5)
    try:
        return run.round(), run.model(0)
    finally:
        run.close()


def test_ours_agree_and_a_wrong_one_gets_no_time():
    found = {who: first(who) for who in clients.SETTINGS}
    clients.check(found)
    line, model = found["layers"]
    wrong = model.clone()
    wrong.values.mul_(1.01)
    for who, bad, sentence in (
        ("layers", ({**line, "loss": line["loss"] + 0.1}, model), "layers: expected a loss of"),
        ("dense", (line, wrong), "dense: expected the program's weights, got them apart by 0.0"),
        (clients.TWO, (line, model), "two workers: expected"),  # equal up to rounding is not enough
    ):
        with pytest.raises(AssertionError, match=sentence):
            clients.check(found | {who: bad})


def test_models_with_other_masks_are_apart():
    (_, a), (_, b) = (first("program", replace(TINY, clients=n)) for n in (3, 4))
    assert clients.distance(a, a) == 0
    other = a.with_pattern(first_mask(a))
    assert clients.distance(a, other) == float("inf")
    assert clients.distance(a, b) > 0


def first_mask(model):
    """Another mask of the same layout."""
    layout = model.layout
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    return layout.bitmap_of(se.erk_masks(shapes, 0.3, seed=9))


def test_each_of_ours_is_the_path_that_it_says():
    paths = {}
    for who in clients.SETTINGS:
        run = clients.Run(TINY, who, 0.5)
        paths[who] = run.setting.path.name
        run.close()
    assert paths == {"program": "program", clients.TWO: "program", "layers": "layers", "dense": "dense"}


def test_a_client_of_the_loop_is_plain_sgd():
    run = clients.Run(replace(TINY, batch=12), "dense", 1.0)
    run.close()
    made = loop.Loop.of(run.setting, torch.contiguous_format)
    samples = made.clients[1][0]
    x, y = made.train[0][samples], made.train[1][samples]
    wanted = {name: w.detach().clone() for name, w in made.net.named_parameters()}
    value = torch.nn.functional.cross_entropy(made.net(x), y)
    grads = torch.autograd.grad(value, list(made.net.parameters()))
    for w, g in zip(wanted.values(), grads, strict=True):
        w.sub_(made.lr * (g + made.weight_decay * w))
    assert made.client(1) == pytest.approx(value.item(), rel=1e-5)
    for name, w in made.net.named_parameters():
        torch.testing.assert_close(w.detach(), wanted[name])


def test_the_loop_learns_in_both_layouts():
    run = clients.Run(replace(TINY, samples=50), "dense", 1.0)
    run.close()
    for layout in loop.FORMATS:
        torch.manual_seed(0)
        made = loop.Loop.of(run.setting, layout)
        clients.check_falls("loop", [made.round() for _ in range(20)])
    with pytest.raises(AssertionError, match="loop: expected a loss that falls by 2 %"):
        clients.check_falls("loop", [1.0, 0.99])


def test_rows_of_a_machine_without_a_compiler(tiny, uncompiled):
    torch.set_num_threads(2)
    rows = list(clients.run(["tiny"], [0.5]))
    assert torch.get_num_threads() == 2
    found = {row["name"]: row for row in rows}
    assert found.keys() >= {"program", "layers", "dense", "loop", "compiled"}
    assert found["compiled"]["skipped"] == "torch.compile: RuntimeError: no compiler"
    assert clients.told(found["compiled"]).endswith(
        "compiled skipped: torch.compile: RuntimeError: no compiler"
    )
    for row in rows[:-1]:
        assert row["median_ms"] > 0 and row["cpu_ms"] > 0
        assert row["per_second"] == pytest.approx(1e3 / row["median_ms"])
    assert "vs_compiled" not in clients.summarise(rows)["tiny"]["0.5"]


def test_the_summary_by_hand():
    times = {"program": 2.0, clients.TWO: 1.25, "layers": 16.0, "dense": 5.0, "loop": 6.0, "compiled": 3.0}
    rows = [
        {"network": "n", "density": 0.2, "name": who, "median_ms": ms, "cpu_ms": ms / (1 + (who == "loop"))}
        for who, ms in times.items()
    ]
    ratios = {"vs_loop": 3.0, "vs_compiled": 1.5, "vs_layers": 8.0, "vs_dense": 2.5, "two_workers": 1.6}
    assert clients.summarise(rows) == {"n": {"0.2": ratios}}
    assert clients.summarise(rows, "cpu_ms")["n"]["0.2"] == ratios | {"vs_loop": 1.5}


def test_the_command_writes_the_summary(tiny, uncompiled, tmp_path, capsys):
    file = tmp_path / "clients.json"
    given = ["clients", "--network", "tiny", "--density", "0.5", "--cpu-time", "--json", str(file)]
    assert bench.main(given) == 0
    result = json.loads(file.read_text())
    assert result["meta"]["ratios_of"] == "cpu_ms" and result["meta"]["repeats"] == {"tiny": 1}
    assert result["summary"]["tiny"]["0.5"].keys() >= {"vs_loop", "vs_layers", "vs_dense"}
    assert "ratios are of cpu_ms" in capsys.readouterr().out
