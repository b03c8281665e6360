"""A whole run, step by step, against a slow float64 reference of the algorithm (tests/reference_da_dpfl.py).

Both take the same draws: the same named streams, the same first masks. Nothing else is shared, and the
reference is never set back on the run's track. Masks, schedules, counts and accuracies must be equal, weights
to the rounding that float32 collects on the way (TOLERANCE). The seeds are such that no choice by size is
closer than that (`test_no_choice_is_within_rounding`): masks would be a matter of luck.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import reference_da_dpfl as reference
import torch

import sparse_engine as se
from fl import algorithms, config, rng
from fl.run import runs, setup
from fl.run.rundir import CLIENTS, METRICS, read_jsonl
from fl.train.turn import EngineTurn
from fl.world import topology
from fl.world.devices import draw

TOLERANCE = 5e-6  # of the largest entry of a tensor; measured: 8e-7 in weights, 3e-6 in growth scores
PAD = 4
DIGITS = Path(runs.__file__).parents[1] / "data" / "digits.npz"

SPEC = """
name = "spec"
seed = 46
num_clients = 6
num_rounds = 12
[data]
name = "noisy"
train_per_client = 24
test_per_client = 20
alpha = 0.5
[model]
name = "small_cnn"
width = 3
[training]
epochs = 2
batch_size = 16
lr_decay = 0.95
[topology]
degree = 3
[devices]
kind = "lognormal"
[da_dpfl]
max_wait = 2
delta_pr = 0.6
target_sparsity = 0.585
"""
OPTIONS = """
name = "options"
seed = 4
num_clients = 5
num_rounds = 12
[data]
name = "noisy"
train_per_client = 30
test_per_client = 30
augment = true
[model]
name = "mlp"
hidden = [12, 10]
exempt = ["layers.2.weight"]
[training]
epochs = 1
batch_size = 12
[topology]
kind = "regular"
degree = 2
[da_dpfl]
shared_initial_mask = true
reuse_index = "id"
wait_rule = "index"
max_wait = 2
max_wait_schedule = "staircase"
drift = "squared"
delta_pr = 3.0
delta_v = 0.6
min_first_prune = 3
b = 0.5
c = 1.5
target_sparsity = 0.7
alpha0 = 0.5
grow_batches = 2
[da_dpfl.pqi]
eta_c = 0.05
gamma = 0.9
"""
SIMULATED = ("sim_start_s", "sim_finish_s")
CODE = OPTIONS.replace("b = 0.5", 'b = 0.5\nprune_gaps = "round"\nsend = "unpruned"') + "round_up = true\n"


@dataclass
class Seen:
    """What the run did, by (t, k), and what it wrote."""

    cfg: config.Config
    start: dict  # se.Model: aggregated
    trained: dict  # se.Model
    pruned: dict  # se.Model: where growth is decided
    scores: dict  # {name: dense gradient} that growth goes by
    next_mask: dict  # se.Bitmap
    rounds: list  # fl.algorithms.base.Round
    metrics: list  # lines of metrics.jsonl
    clients: dict  # lines of clients.jsonl


@pytest.fixture(scope="module", params=[SPEC, OPTIONS, CODE], ids=["spec", "options", "code"])
def both(request, tmp_path_factory):
    """The run as a user starts it, and the reference of the same settings and draws."""
    folder = tmp_path_factory.mktemp("reference")
    noisy_digits(folder / "noisy.npz")
    (folder / "config.toml").write_text(request.param)
    seen = watch(
        config.load(folder / "config.toml", [f"data.root={folder}", "training.path=layers"]), folder / "run"
    )
    return seen, reference.run(settings(seen.cfg), Drawn(seen))


def noisy_digits(path):
    """Digits on a grey ground. On a black one windows of equal values are common, and rounding then decides
    which of them max pooling sends the gradient to; and pixels that are always black have equal gradients."""
    with np.load(DIGITS) as digits:
        x, y = digits["x"].astype(np.int64), digits["y"]
    noise = np.random.default_rng(0).integers(0, 96, x.shape)
    np.savez(path, x=(x * 159 // x.max() + noise).astype(np.uint8), y=y)


def watch(cfg: config.Config, path) -> Seen:
    start, trained, pruned, scores, next_mask, rounds = {}, {}, {}, {}, {}, []
    algorithm = algorithms.registered()[cfg.algorithm]
    plain_train, plain_grow, plain_round = EngineTurn.train, EngineTurn.grow, algorithm.run_round
    plain_add = se.Growth.add
    now: dict[str, torch.Tensor] = {}

    def train(self, local):
        start[self.t, self.k] = self.model().clone()
        report = plain_train(self, local)
        trained[self.t, self.k] = self.model().clone()
        return report

    def grow(self, *args, **kwargs):
        pruned[self.t, self.k] = self.model().clone()
        now.clear()
        grown = plain_grow(self, *args, **kwargs)
        next_mask[self.t, self.k], scores[self.t, self.k] = grown.mask, dict(now)
        return grown

    def add(self, name, gradient):
        now[name] = gradient.clone()
        plain_add(self, name, gradient)

    def run_round(state, t, env):
        rounds.append(plain_round(state, t, env))
        return rounds[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EngineTurn, "train", train)
        patch.setattr(EngineTurn, "grow", grow)
        patch.setattr(se.Growth, "add", add)
        patch.setattr(algorithm, "run_round", run_round)
        runs.start(cfg, path, runs.Options(workers=1))
    clients = {(line["round"], line["client"]): line for line in read_jsonl(path / CLIENTS)}
    return Seen(cfg, start, trained, pruned, scores, next_mask, rounds, read_jsonl(path / METRICS), clients)


def settings(cfg: config.Config) -> reference.Settings:
    tree = cfg.training.model_dump() | cfg.da_dpfl.model_dump() | cfg.da_dpfl.pqi.model_dump()
    wanted = [f.name for f in fields(reference.Settings) if f.name != "num_rounds"]
    return reference.Settings(num_rounds=cfg.num_rounds, **{name: tree[name] for name in wanted})


class Drawn:
    """The draws of a run, from the streams by their names; w0 and the first masks as the run has them."""

    def __init__(self, seen: Seen) -> None:
        self.cfg, self.setting = seen.cfg, setup.prepare(seen.cfg)
        self.net = self.setting.network.double()
        self.initial = {name: w.detach() for name, w in self.net.named_parameters()}
        self.masks = [se.masks(seen.start[0, k]) for k in range(self.cfg.num_clients)]
        given = self.cfg.topology.model_dump()
        self.topology = topology.make(given.pop("kind"), self.cfg.num_clients, seed=self.cfg.seed, **given)

    def stream(self, purpose: str, t: int, k: int = 0) -> np.random.Generator:
        return rng.stream(self.cfg.seed, purpose, t, k)

    def neighbours(self, t):
        return [self.topology.neighbours(t).of(k).tolist() for k in range(self.cfg.num_clients)]

    def reuse(self, t):
        clients = range(self.cfg.num_clients)
        by_id = self.cfg.da_dpfl.reuse_index == "id"
        return list(clients) if by_id else self.stream("reuse", t).permutation(clients).tolist()

    def duration(self, t, masks):
        """T_comp of steps over all samples of all epochs, and of a dense step on the growth batch."""
        devices = draw(self.cfg.devices, self.cfg.num_clients, self.cfg.seed, t)
        samples, size = self.cfg.data.train_per_client, self.cfg.training.batch_size
        grown = min(self.cfg.da_dpfl.grow_batches * size, samples)
        counted = [se.count_flops(self.setting.network, self.setting.data.shape, m) for m in masks]
        steps = [self.cfg.training.epochs * samples * c.sparse_step + grown * c.dense_step for c in counted]
        return (np.array(steps) / devices.flop_rate).tolist()

    def train_batches(self, t, k):
        training, stream = self.cfg.training, self.stream("batches", t, k)
        return [batch for _ in range(training.epochs) for batch in self.epoch(k, training.batch_size, stream)]

    def grow_batch(self, t, k):
        size = self.cfg.da_dpfl.grow_batches * self.cfg.training.batch_size
        return self.epoch(k, size, self.stream("grow", t, k))[0]

    def test_set(self, k):
        chosen, test = self.setting.partition.test.of(k), self.setting.data.test
        return self.normal(test.x[chosen]), torch.from_numpy(test.labels[chosen])

    def epoch(self, k, size, stream):
        train = self.setting.data.train
        order = stream.permutation(self.setting.partition.train.of(k))
        shifts, mirrored = stream.integers(0, 2 * PAD + 1, (2, len(order))), stream.random(len(order)) < 0.5
        images = train.x[order]
        if self.cfg.data.augment:
            images = np.stack([crop(*each) for each in zip(images, *shifts, mirrored, strict=True)])
        x, y = self.normal(images), torch.from_numpy(train.labels[order])
        return list(zip(x.split(size), y.split(size), strict=True))

    def normal(self, images):
        data = self.setting.data
        mean, std = (np.array(value).reshape(-1, 1, 1) for value in (data.mean, data.std))
        return torch.from_numpy((images - mean) / std)


def crop(image, down, right, mirrored):
    """One image out of itself with black around it."""
    height, width = image.shape[1:]
    padded = np.pad(image, ((0, 0), (PAD, PAD), (PAD, PAD)))
    image = padded[:, down : down + height, right : right + width]
    return image[:, :, ::-1] if mirrored else image


def turns(both) -> Iterator[tuple[int, int, reference.Turn]]:
    """(t, k, what client k does in round t) of the reference."""
    for t, result in enumerate(both[1]):
        for k, turn in enumerate(result.turns):
            yield t, k, turn


def dense(state: se.Model) -> dict[str, torch.Tensor]:
    return {name: state.tensor(name).to_dense() for name in state.layout.names} | state.rest_tensors()


def check_close(where: str, ours: dict[str, torch.Tensor], theirs: reference.Weights) -> None:
    """Every tensor, relative to its largest entry."""
    assert ours.keys() == theirs.keys()
    for name, x in theirs.items():
        error = float((ours[name] - x).abs().max() / x.abs().max())
        assert error <= TOLERANCE, f"{where}, {name}: off by {error:.3g} of the largest entry"


def check_masks(where: str, ours: reference.Masks, theirs: reference.Masks, turn: reference.Turn) -> None:
    assert ours.keys() == theirs.keys()
    for name, m in theirs.items():
        wrong = (ours[name] != m).flatten().nonzero().flatten().tolist()
        sizes = f"{int(ours[name].sum())} stored instead of {int(m.sum())}"
        margins = [margin for margin in turn.margins if margin.name == name]
        assert not wrong, f"{where}, {name}: wrong entries {wrong}, {sizes}; {margins}"


def test_every_mechanism_fires(both):
    seen, rounds = both
    last, total = seen.cfg.num_rounds - 1, seen.rounds[0].models[0].bitmap.segments.numel
    assert max(turn.wave for _, _, turn in turns(both)) >= 2
    assert any(turn.priors_left for _, _, turn in turns(both))  # N bounds the waiting
    assert any(len({turn.vote for turn in result.turns}) == 2 for result in rounds)  # not of one mind
    assert rounds[2].t_star is None and rounds[3].t_star == 3
    prunings = [result for result in rounds if result.pruning]
    assert all(turn.num_removed and not turn.capped for result in prunings[:2] for turn in result.turns)
    for k, turn in enumerate(
        prunings[2].turns
    ):  # s* stops it: the largest number of zeros that is not past s*
        assert turn.capped and turn.num_removed
        zeros = round((1 - seen.clients[last, k]["density"]) * total)
        assert zeros == int(seen.cfg.da_dpfl.target_sparsity * total)
    values = torch.cat([regrown(rounds, t, k) for t, k, _ in turns(both) if t > 0])
    assert (values != 0).any() and (values == 0).any()  # first values from neighbours, and none from anybody


def regrown(rounds: list[reference.Round], t: int, k: int) -> torch.Tensor:
    """What entries that client k has grown in the round before start from."""
    turn, old = rounds[t].turns[k], rounds[t - 1].turns[k].sent.support
    return torch.cat([turn.aggregated[name][m & ~old[name]] for name, m in turn.mask.items()])


def test_first_masks(both):
    seen, _ = both
    first = [seen.start[0, k] for k in range(seen.cfg.num_clients)]
    layout = first[0].layout
    counts = reference.erk_counts(
        dict(zip(layout.names, layout.shapes, strict=True)), seen.cfg.da_dpfl.density
    )
    for state in first:
        assert dict(zip(layout.names, state.bitmap.counts.tolist(), strict=True)) == counts
    different = len({tuple(state.bitmap.words.tolist()) for state in first})
    assert different == (1 if seen.cfg.da_dpfl.shared_initial_mask else len(first))


def test_schedule(both):
    seen, rounds = both
    for t, result in enumerate(rounds):
        schedule, line = seen.rounds[t].schedule, seen.metrics[t]
        waves = {turn.client: wave for wave, turns in enumerate(schedule.waves()) for turn in turns}
        assert waves == {k: turn.wave for k, turn in enumerate(result.turns)}, f"round {t}"
        assert line["depth"] == max(turn.wave for turn in result.turns)
        assert line["max_wait"] == result.max_wait
        for k, turn in enumerate(result.turns):
            assert sorted(schedule.turn(k).wait_for) == sorted(turn.waited_for), f"round {t}, client {k}"
            assert sorted(schedule.turn(k).others) == sorted(turn.others), f"round {t}, client {k}"
            assert seen.clients[t, k]["waited_for"] == sorted(turn.waited_for)
            assert seen.clients[t, k]["wave"] == turn.wave
        assert schedule.start == pytest.approx([turn.start for turn in result.turns])
        assert schedule.finish == pytest.approx([turn.finish for turn in result.turns])
        told = [[seen.clients[t, k][key] for k in range(len(result.turns))] for key in SIMULATED]
        assert told == [schedule.start.tolist(), schedule.finish.tolist()]  # as planned, bit by bit


def test_aggregation(both):
    for t, k, turn in turns(both):
        start, where = both[0].start[t, k], f"before training in round {t}, client {k}"
        check_masks(where, se.masks(start), turn.mask, turn)
        check_close(where, dense(start), turn.aggregated)


def test_training(both):
    for t, k, turn in turns(both):
        trained, where = both[0].trained[t, k], f"after training in round {t}, client {k}"
        check_masks(where, se.masks(trained), turn.mask, turn)
        check_close(where, dense(trained), turn.trained)
        assert both[0].clients[t, k]["loss"] == pytest.approx(turn.loss, rel=TOLERANCE), where


def test_accuracy(both):
    seen, rounds = both
    for t, k, turn in turns(both):
        line, where = seen.clients[t, k], f"round {t}, client {k}"
        assert line["accuracy_before"] == pytest.approx(turn.accuracy_before), where
        assert line["accuracy"] == pytest.approx(turn.accuracy), where
    for line, result in zip(seen.metrics, rounds, strict=True):
        assert line["accuracy_mean"] == pytest.approx(fmean(turn.accuracy for turn in result.turns))
        assert line["accuracy_before"] == pytest.approx(fmean(turn.accuracy_before for turn in result.turns))


def test_drift_and_votes(both):
    seen, rounds = both
    for t, k, turn in turns(both):
        line, where = seen.clients[t, k], f"round {t}, client {k}"
        assert line["drift"] == pytest.approx(turn.drift, rel=TOLERANCE), where
        assert line["drift_ratio"] == (None if t == 0 else pytest.approx(turn.ratio, rel=100 * TOLERANCE)), (
            where
        )
        assert line["vote"] is turn.vote, where
    for t, (line, result) in enumerate(zip(seen.metrics, rounds, strict=True)):
        assert line["t_star"] == result.t_star, f"round {t}"
        assert line["votes"] == (None if t == 0 else pytest.approx(fmean(turn.vote for turn in result.turns)))


def test_pruning(both):
    """What every client ends a round with, and sends."""
    seen, rounds = both
    for t, k, turn in turns(both):
        sent, where = seen.rounds[t].models[k], f"after pruning in round {t}, client {k}"
        check_masks(where, se.masks(sent), turn.sent.support, turn)
        check_close(where, dense(sent), turn.sent.weights)
        assert seen.clients[t, k]["pruned"] == (turn.num_removed > 0), where
    for t, (line, result) in enumerate(zip(seen.metrics, rounds, strict=True)):
        assert line["pruned"] == sum(turn.num_removed > 0 for turn in result.turns), f"round {t}"


def test_growth(both):
    """RigL starts from the pruned weights, and gives the mask of the next round."""
    seen, _ = both
    for t, k, turn in turns(both):
        at, where = seen.pruned[t, k], f"growth in round {t}, client {k}"
        check_masks(where, se.masks(at), turn.pruned.support, turn)
        check_close(where, dense(at), turn.pruned.weights)
        check_close(where, seen.scores[t, k], turn.scores)
        check_masks(where, se.masks(at.with_pattern(seen.next_mask[t, k])), turn.next_mask, turn)


def test_no_choice_is_within_rounding(both):
    """Numbers to choose by, weights and scores, are as exact as TOLERANCE: the tests above say so."""
    closest = min((margin.size, t, k, margin) for t, k, turn in turns(both) for margin in turn.margins)
    assert closest[0] > TOLERANCE, f"chosen within rounding: {closest}"
