"""DisPFL: two rounds of three clients by hand, and that it is DA-DPFL without waiting and pruning."""

import pytest
import torch
from by_hand import bitmap, bits, env, model, rounds

import sparse_engine as se
from fl.algorithms import da_dpfl, dispfl
from fl.algorithms.base import Peers
from fl.algorithms.dispfl import Client, Config
from fl.algorithms.messages import Sent
from fl.clients.memory import InMemory
from fl.run import models, runs
from fl.run.rundir import CLIENTS, METRICS, read_jsonl
from fl.run.runs import Options

GAINS = [[10.0] * 5, [20.0] * 5, [30.0] * 5]


def three():
    """Three clients in the middle of a run: models of the last round with their masks, masks of this one."""
    models = model([2, 6, 1], "1010"), model([4, 8, 4], "1100"), model([1, 3, 7], "0011")
    masks = "1100", "0110", "1011"
    return Peers(InMemory(Client(x, bitmap(m), Sent.exact(x)) for x, m in zip(models, masks, strict=True)))


def test_two_rounds_by_hand():
    world = env(Config(alpha0=0.5), GAINS, "full")
    first, second = rounds(dispfl, world, 2, three(), 50)
    # entry 0: of 0 and 1; entry 1: only client 1 stores it; 2: of 0 and 2; 3: only client 2. Bias: of 1, 4, 7
    assert [x.values.tolist() for x in first.models] == [
        [3 + 10, 8 + 10],
        [8 + 20, (6 + 1) / 2 + 20],
        [3 + 30, 3.5 + 30, 3 + 30],
    ]
    assert [x.rest.tolist() for x in first.models] == [[14], [24], [34]]
    assert [bits(x.bitmap) for x in first.models] == ["1100", "0110", "1011"]
    assert [bits(c.mask) for c in first.state.clients] == ["0011", "0110", "1101"]  # mirrored
    # now 0 has [13, 18, -, -], 1 has [-, 28, 23.5, -], 2 has [33, -, 33.5, 33]
    assert [x.values.tolist() for x in second.models] == [
        [28.5 + 10, 33 + 10],
        [23 + 20, 28.5 + 20],
        [23 + 30, 23 + 30, 33 + 30],
    ]
    assert [x.rest.tolist() for x in second.models] == [[34], [44], [54]]
    assert [bits(c.mask) for c in second.state.clients] == ["1100", "0110", "1011"]
    trainer = world.executor.trainer
    assert trainer.told("max_norm") == [(10.0,)] * 6 and {one.batches for one in trainer.growths} == {1}
    assert trainer.growths[-1].fraction == pytest.approx(se.rigl_fraction(51, 100, 0.5))
    # 64 byte of header, 8 of mask, 4 a value and the bias: messages of the round before
    assert first.traffic.up[:, 0].tolist() == [2 * 84] * 3
    assert second.traffic.up[:, 0].tolist() == [2 * 84, 2 * 84, 2 * 88]
    assert second.traffic.down[:, 1].tolist() == [12 + 16, 12 + 16, 12 + 12]


def test_first_masks_are_those_of_da_dpfl():
    for shared in (False, True):
        ours = dispfl.init(env(Config(shared_initial_mask=shared), [[0.0] * 5] * 6)).clients
        theirs = da_dpfl.init(env(da_dpfl.Config(shared_initial_mask=shared), [[0.0] * 5] * 6)).clients
        assert [bits(c.mask) for c in ours] == [bits(c.mask) for c in theirs]
        assert [bits(c.model.bitmap) for c in ours] == [bits(c.mask) for c in ours]
        assert len({bits(c.mask) for c in ours}) == 1 or not shared


def test_random_growth():
    (done,) = rounds(dispfl, env(Config(grow="random"), GAINS, "full"), 1, three())
    assert [client.mask.nnz for client in done.state.clients] == [2, 2, 3]
    alike = Peers(InMemory([three().clients[0]] * 6))
    (done,) = rounds(dispfl, env(Config(grow="random", alpha0=0.5), [[1.0] * 5] * 6, "full"), 1, alike)
    assert len({bits(client.mask) for client in done.state.clients}) > 1  # everybody draws for itself


@pytest.mark.parametrize("grow", ["gradient", "random"])
def test_da_dpfl_without_waiting_and_pruning_is_dispfl_bit_by_bit(tiny, tmp_path, grow):
    same = ["num_rounds=3"]
    ours, theirs = tmp_path / "dispfl", tmp_path / "da_dpfl"
    changes = ["algorithm=dispfl", "dispfl.max_norm=0.5", f"dispfl.grow={grow}", *same]
    runs.start(tiny(*changes), ours, Options(workers=1))
    changes = ["da_dpfl.max_wait=0", "da_dpfl.min_first_prune=3", "training.max_norm=0.5"]
    changes += [f"da_dpfl.grow={grow}", *same]
    runs.start(tiny(*changes), theirs, Options(workers=1))
    a, b = models.read(ours).state, models.read(theirs).state
    for x, y in zip(a.clients, b.clients, strict=True):
        for name, tensor in x.model.tensors().items():
            assert torch.equal(tensor, y.model.tensors()[name])
        assert torch.equal(x.mask.words, y.mask.words)
    for file in (METRICS, CLIENTS):
        for mine, other in zip(read_jsonl(ours / file), read_jsonl(theirs / file), strict=True):
            differing = {key for key in mine if mine[key] != other.get(key)}
            assert differing <= {"wall_s", "rss_bytes", "train_s", "votes", "drift_mean", "drift_ratio_mean"}


def test_density_stays(tiny, tmp_path):
    runs.start(tiny("algorithm=dispfl", "num_rounds=3"), tmp_path / "run", Options(workers=1))
    lines = read_jsonl(tmp_path / "run" / METRICS)
    assert len({str(line["layer_density"]) for line in lines}) == 1
    assert lines[0]["density_min"] == lines[0]["density_max"] == pytest.approx(0.5, abs=0.01)
