"""FedDST: two rounds of three clients by hand, many in float64, the density that never changes, FedAvg."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from central import LARGER, LAYOUT, bitmap, env, model, random_env, stored, vector
from fakes import make_env

import sparse_engine as se
from fl.algorithms import fedavg, feddst
from fl.algorithms.feddst import Config
from fl.run import setup
from fl.run.executor import Threads

GOALS = [[10, 0, 4, 0, 2], [0, 0, 0, -12, 4], [14, 0, 8, 0, 6]]
SIZES = LARGER.segments.sizes


def start_of(world, numbers, mask):
    return fedavg.first(model(numbers, mask), world)


def bits(state):
    return "".join("1" if bit else "0" for bit in stored(state))


def test_two_rounds_by_hand():
    world = env(Config(interval=2, alpha0=0.4), model([0] * 5), GOALS, samples=[1, 2, 5])
    grown = dict(enumerate(["1010", "1001", "1010"]))
    grow = world.executor.trainer.grow
    world.executor.trainer.grow = lambda k, *told: (
        grow(k, *told) and bitmap(LAYOUT, [bit == "1" for bit in grown[k]])
    )
    state = start_of(world, [8, -2, 0, 0, 0], "1100")

    first = feddst.run_round(state, 1, world)
    # everybody drops the second weight; 0 and 2 grow the third, 1 the fourth, from 0; half way to the goals
    assert [bits(m) for m in first.models] == ["1010", "1001", "1010"]
    assert [vector(m).tolist() for m in first.models] == [[9, 0, 2, 0, 1], [4, 0, 0, -6, 2], [11, 0, 4, 0, 3]]
    # by samples: (9 + 2 4 + 5 11) / 8 = 9,  (2 + 5 4) / 6 = 3.67,  -6: the first and the last are largest
    assert bits(first.state.model) == "1001"
    assert vector(first.state.model) == pytest.approx([9, 0, 0, -6, 2.5])
    growths = world.executor.trainer.growths
    assert [(one.k, one.t, one.batches) for one in growths] == [(0, 1, 1), (1, 1, 1), (2, 1, 1)]
    assert [report.flop for report in first.reports.values()] == [100 + 7] * 3
    assert growths[0].fraction == pytest.approx(0.2 * (1 + math.cos(math.pi / 100)))

    second = feddst.run_round(first.state, 2, world)  # the mask does not move
    assert [bits(m) for m in second.models] == ["1001"] * 3 == [bits(second.state.model)] * 3
    assert vector(second.state.model) == pytest.approx([9.5, 0, 0, -4.5, 3.75])
    assert second.facts["sampled"] == 3 and len(growths) == 3
    assert [report.flop for report in second.reports.values()] == [100] * 3
    sent, whole = second.models[0], first.state.model
    sizes = [len(se.wire.encode(sent, known=mask)) for mask in (whole.bitmap, None)]
    assert second.traffic.up[0, 0] == sizes[0] < sizes[1]  # the server knows the mask
    assert second.traffic.down[0, 0] == len(se.wire.encode(whole))
    # values and a bias: 12 byte as the paper counts, 20 dense
    assert second.traffic.down[:, 1].tolist() == [12, 12, 12, 36] == second.traffic.up[:, 1].tolist()
    assert second.traffic.down[:, 2].tolist() == [20, 20, 20, 60]


def test_what_is_dropped_and_grown_again_keeps_its_value():
    world = env(Config(interval=1, alpha0=1.0), model([0] * 5), [[8, -90, 1, 0, 0]], samples=[1])
    after = feddst.run_round(start_of(world, [8, -2, 0, 0, 0], "1100"), 0, world)  # all go, two return
    assert bits(after.state.model) == "0110"
    assert vector(after.models[0]).tolist() == [0, -46, 0.5, 0, 0]


def rigl(w, mask, gradient, fraction):
    """numpy, one layer."""
    n = math.ceil(fraction * mask.sum())
    kept = mask.copy()
    kept[sorted(np.flatnonzero(mask), key=lambda i: abs(w[i]))[:n]] = False
    new = kept.copy()
    new[sorted(np.flatnonzero(~kept), key=lambda i: -abs(gradient[i]))[:n]] = True
    return new


def by_layer(function, *vectors):
    cuts = np.cumsum(SIZES)[:-1]
    return np.concatenate(
        [function(*parts) for parts in zip(*(np.split(v[:22], cuts) for v in vectors), strict=True)]
    )


def largest(w, counted):
    """numpy, one layer: as many as `counted` has."""
    top = np.zeros(len(w), bool)
    top[np.argsort(-np.abs(w))[: counted.sum()]] = True
    return top


def test_many_clients_in_float64():
    world = random_env(Config(clients_per_round=3, interval=2, alpha0=0.6), num_rounds=14)
    state = feddst.init(world)
    goals, samples = world.executor.trainer.goals, world.executor.trainer.samples
    w, m, moved = vector(state.model), stored(state.model), 0
    for t in range(14):
        result = feddst.run_round(state, t, world)
        chosen = world.executor.waves[2 * t + 1]
        total, weight = np.zeros(23), np.zeros(23)
        for k in chosen:
            mask, fraction = m, 0.3 * (1 + math.cos(math.pi * t / 14))
            if t % 2:
                mask = by_layer(lambda *layer, f=fraction: rigl(*layer, f), w, m, w - goals[k])
            there = np.append(mask, True)
            trained = there * (w + goals[k]) / 2
            assert np.allclose(vector(result.models[k]), trained, atol=1e-5)
            total, weight = total + samples[k] * trained, weight + samples[k] * there
        mean = total / np.maximum(weight, 1)
        new = by_layer(largest, mean, m)
        moved += (new != m).sum()
        w, m = np.append(new, True) * mean, new
        assert np.array_equal(stored(result.state.model), m)
        assert np.allclose(vector(result.state.model), w, rtol=1e-5, atol=1e-6)
        state = result.state
    assert moved > 10


@pytest.mark.parametrize("interval", [1, 2, 5])
def test_the_global_density_is_kept_layer_by_layer(tiny, interval):
    """On real data, with real gradients; the mask moves when it should, and clients' masks are as large."""
    setting = setup.prepare(tiny())
    with Threads(setting, 2) as executor:
        cfg = Config(clients_per_round=3, interval=interval)
        given = {"initial": setting.initial, "training": setting.training, "num_rounds": 4}
        world = make_env(cfg, 4, executor, **given)
        state = feddst.init(world)
        counts = state.model.bitmap.counts
        for t in range(4):
            before, result = state.model.bitmap, feddst.run_round(state, t, world)
            state = result.state
            assert all(torch.equal(m.bitmap.counts, counts) for m in (state.model, *result.models))
            moved = not torch.equal(before.words, state.model.bitmap.words)
            assert moved == ((t + 1) % interval == 0)
            masks = {m.bitmap.words.numpy().tobytes() for m in result.models}
            assert (len(masks) > 2) == moved  # clients grow at their own gradients
    shapes = dict(zip(state.model.layout.names, state.model.layout.shapes, strict=True))
    wanted = se.erk_masks(shapes, 0.5, seed=0)
    assert counts.tolist() == [int(mask.sum()) for mask in wanted.values()]


def test_a_full_mask_is_fedavg():
    ours = random_env(Config(clients_per_round=3, density=1.0, interval=1), num_rounds=6)
    theirs = replace(random_env(fedavg.Config(clients_per_round=3), num_rounds=6), executor=ours.executor)
    a, b = feddst.init(ours), fedavg.init(theirs)
    for t in range(6):
        a, b = feddst.run_round(a, t, ours).state, fedavg.run_round(b, t, theirs).state
        assert a.model.density == 1 and np.allclose(vector(a.model), vector(b.model), rtol=1e-5, atol=1e-6)


def test_the_first_mask_follows_the_seed():
    a, b = (feddst.init(random_env(Config(), 2, seed=seed)).model for seed in (1, 2))
    assert np.array_equal(stored(a), stored(feddst.init(random_env(Config(), 2)).model))
    assert not np.array_equal(stored(a), stored(b)) and a.bitmap.nnz == b.bitmap.nnz < 22
    assert vector(a)[:22][stored(a)] == pytest.approx(vector(random_env(Config(), 2).initial)[:22][stored(a)])
