"""Messages of clients: what arrives, what it costs, and what a rounded one leaves for the next."""

import json

import pytest
import torch
from messages import same, state_of

import sparse_engine as se
from fl.algorithms.messages import Sent, send
from fl.config import ConfigError, Messages
from fl.errors import Diverged
from fl.report.summary import summary_rows
from fl.run import runs as federation
from fl.run import setup
from fl.run.rundir import METRICS, read_jsonl
from fl.run.runs import Options
from fl.train.worker import Worker


def test_an_exact_message_is_the_model():
    model = state_of()
    sent = send(model, 3, 5, Messages())
    assert sent.model is model and sent.lost is None
    assert sent.nbytes == Sent.exact(model).nbytes == len(se.wire.encode(model))


@pytest.mark.parametrize("values", ["bf16", "fp16", "q8"])
def test_a_rounded_message_is_what_arrives(values):
    model = state_of()
    sent = send(model, 3, 5, Messages(values=values, error_feedback=False))
    blob = se.wire.encode(model, sender=3, round=5, values=values)
    assert sent.nbytes == len(blob) < Sent.exact(model).nbytes and sent.lost is None
    assert same(sent.model, se.wire.decode(blob, model)) and not sent.model.values.equal(model.values)


def test_what_is_lost_comes_with_the_next_message():
    model, cfg = state_of(), Messages(values="q8")
    first = send(model, 0, 0, cfg)
    assert torch.allclose(first.model.values + first.lost.values, model.values)
    second = send(model, 0, 1, cfg, first)
    assert torch.allclose(second.model.values + second.lost.values, model.values + first.lost.values)
    plain = send(model, 0, 1, Messages(values="q8", error_feedback=False), first)
    assert plain.model.values.equal(first.model.values)


@pytest.mark.parametrize(("values", "number"), [("fp32", float("nan")), ("fp16", 1e6)])
def test_a_model_that_cannot_be_sent(values, number):
    model = state_of().clone()
    model.values[0] = number
    with pytest.raises(
        Diverged, match=f"the model of client 4 in round 7 cannot be sent as {values}: expected finite"
    ):
        send(model, 4, 7, Messages(values=values))


@pytest.fixture(scope="module")
def runs(tiny, tmp_path_factory):
    """{values: run directory}"""
    made = {}
    for values in ("fp32", "bf16", "q8"):
        made[values] = tmp_path_factory.mktemp(values) / "run"
        federation.start(tiny(f"messages.values={values}"), made[values], Options(workers=1))
    return made


def test_runs_count_the_bytes_of_their_messages(runs):
    lines = {values: read_jsonl(path / METRICS) for values, path in runs.items()}
    for t in range(5):
        exact, half, eighth = (lines[values][t] for values in ("fp32", "bf16", "q8"))
        assert eighth["bytes_total"] < half["bytes_total"] < exact["bytes_total"] < exact["bytes_total_dense"]
    first = {values: line[0] for values, line in lines.items()}
    assert (
        len({line["bytes_total_paper"] for line in first.values()}) == 1
    )  # the same entries, whatever they cost
    # Neighbours train on rounded models, so losses differ, and little.
    losses = [line["loss"] for line in first.values()]
    assert len(set(losses)) == 3 and max(losses) - min(losses) < 0.05 * max(losses)


def test_a_run_says_what_its_messages_cost(runs):
    path = runs["q8"]
    before = json.loads((path / "summary.json").read_text())
    assert before["values"] == "q8" and before["exact"] is None
    assert ("  what q8 messages cost", "not measured (--baseline fp32)") in [
        r[:2] for r in summary_rows(before)
    ]
    after = federation.baseline(path, Options(workers=1), "fp32")
    exact = json.loads((runs["fp32"] / "summary.json").read_text())  # the same run
    assert after["exact"] == {
        key: exact[key]
        for key in ("values", "accuracy_best", "accuracy_last5", "accuracy_last", "bytes_total")
    }
    assert json.loads((path / "summary.json").read_text()) == after
    cost = 100 * (exact["accuracy_best"] - after["accuracy_best"])
    assert ("  what q8 messages cost", f"{cost:+.2f} points") in [row[:2] for row in summary_rows(after)]
    assert not any("cost" in row[0] for row in summary_rows(exact))
    with pytest.raises(ConfigError, match="messages.values: expected another for a comparison, got fp32"):
        federation.baseline(runs["fp32"], Options(workers=1), "fp32")


def test_first_messages_by_hand(tiny, tmp_path):
    """Nobody waits and nobody trains: all messages of round 0 are those of w0 under the first masks."""
    cfg = tiny("num_rounds=1", "training.epochs=0", "da_dpfl.max_wait=0", "topology.kind=full")
    federation.start(cfg, tmp_path / "run", Options(workers=1))
    setting = setup.prepare(cfg)
    layout = setting.initial.layout
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    worker = Worker(setting)
    sizes = []
    for k in range(4):
        masks = se.erk_masks(shapes, cfg.da_dpfl.density, seed=worker.seed("first mask", k=k))
        sizes.append(len(se.wire.encode(setting.initial.with_pattern(layout.bitmap_of(masks)))))
    line = read_jsonl(tmp_path / "run" / METRICS)[0]
    assert line["bytes_total"] == 3 * sum(sizes) and line["bytes_busiest"] == sum(sizes) - min(sizes)
