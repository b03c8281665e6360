"""sparsefl.kernels.group_step against float64, torch and the native gather."""

import numpy as np
import pytest
import torch
from groups import LAYERS, network, patterns
from helpers import assert_close, host, on, randn, variants

from sparsefl.kernels import gather as native
from sparsefl.kernels import use_backend
from sparsefl.kernels.group import runs
from sparsefl.kernels.group_step import gather, hits, loss, sgd_, squares

OURS = variants("group_step", without=["reference"])


def order_of(steps, clients, batch, samples, seed=0):
    """Batches with empty lanes at their end; client 1 has none in the last step."""
    rng = np.random.default_rng(seed)
    order = torch.from_numpy(rng.integers(0, samples, (steps, clients, batch)).astype(np.int32))
    order[:, :, batch - 5 :] = -1
    order[-1, 1] = -1
    return order


def clock_at(t):
    return torch.tensor([t, t], dtype=torch.int64)


@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("batch", [16, 32])
@pytest.mark.parametrize("moved", [False, True])
def test_a_batch_is_the_one_of_the_native_gather(variant, dtype, batch, moved):
    shape, padding = (2, 4, 5), 2
    rng = np.random.default_rng(1)
    data = rng.integers(0, 256, (9, *shape)).astype(np.uint8 if dtype is torch.uint8 else np.float32)
    order = order_of(2, 2, batch, 9)
    scale = torch.tensor([[100.0, 30.0], [50.0, 7.0]])
    starts = rng.integers(0, 2 * padding + 1, (2, 2, batch, 2))
    mirrored = rng.integers(0, 2, (2, 2, batch))
    moves = np.concatenate([starts - padding, mirrored[..., None]], -1).astype(np.int32)
    with on(variant) as put:
        x = torch.full((2, *shape, batch), torch.nan, device=put.device)
        clock = put(clock_at(1))
        gather(
            *put((torch.from_numpy(data), scale, order)),
            clock,
            x,
            put(torch.from_numpy(moves)) if moved else None,
        )
        x, clock = host((x, clock))
    assert clock.tolist() == [1, 1]
    assert (x[1] == 0).all(), "it has no batch"
    there = batch - 5
    how = native.Moves(*starts[1, 0, :there].T.copy(), mirrored[1, 0, :there].astype(bool), padding)
    with use_backend("cpu"):
        wanted = native.gather(
            data, order[1, 0, :there].numpy().astype(np.int64), *scale.numpy(), how if moved else None
        )
    assert torch.equal(x[0][..., :there], wanted)
    assert (x[0][..., there:] == 0).all()


@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize(("classes", "batch"), [(10, 16), (3, 64)])
def test_loss_and_its_gradient(variant, classes, batch):
    clients, samples = 3, 20
    order, labels = order_of(2, clients, batch, samples), torch.arange(samples).int() % classes
    logits = 5 * randn(clients * classes * batch).view(clients, classes, 1, 1, batch)
    logits[..., -1] = torch.nan  # an empty lane
    found = []
    for each, dtype in ((variant, torch.float32), ("reference", torch.float64)):
        with on(each) as put:
            there = put((logits.to(dtype), labels, order, clock_at(1)))
            losses = torch.zeros(2, clients, dtype=dtype, device=put.device)
            dz = torch.full(logits.shape, torch.nan, dtype=dtype, device=put.device)
            loss(*there, losses, dz)
            right = torch.zeros(2, clients, dtype=torch.int32, device=put.device)
            hits(*there, right)
            found.append(host((losses, dz, right, there[3])))
    ours, theirs = found
    assert_close(ours[0], theirs[0], terms=batch)
    assert_close(ours[1], theirs[1], terms=8)
    assert (
        torch.equal(ours[2], theirs[2])
        and theirs[2].any()
        and ours[3].tolist() == theirs[3].tolist() == [1, 2]
    )
    assert ours[0][1, 1] == 0 and (ours[1][1] == 0).all()


@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("t", [0, 1])
@pytest.mark.parametrize("max_norm", [None, 3.0, 1e9])
def test_a_step_of_sgd(variant, momentum, t, max_norm):
    """In step 1, client 1 has no batch and stays where it is. A norm of 3 clips, one of 1e9 does not."""
    net, clients = network(LAYERS["linear"]), 3
    bitmap = patterns(net, clients, 0.4)
    table = runs(bitmap, clients, net.num_rest)
    n = bitmap.nnz + clients * net.num_rest
    order, numbers = order_of(2, clients, 16, 9), torch.tensor([0.1, momentum, 0.05, max_norm or 0.0])
    found = []
    for each, dtype in ((variant, torch.float32), ("reference", torch.float64)):
        w, g, u = (randn(n, seed).to(dtype) for seed in range(3))
        with on(each) as put:
            w, g, u = put((w, g, u if momentum else None))
            given = put((table, order, clock_at(t)))
            sums = put(torch.zeros(len(table), dtype=torch.float64))
            squares(g, given[0], sums)
            sgd_(w, g, u, *given, put(numbers.to(dtype)), sums if max_norm else None)
            found.append(host((w, u, given[2])))
    ours, theirs = found
    assert_close(ours[0], theirs[0], terms=2)
    if momentum:
        assert_close(ours[1], theirs[1], terms=2)
    assert ours[2].tolist() == theirs[2].tolist() == [t, t + 1]
    first, end = bitmap.offsets[1:3].tolist()
    assert torch.equal(ours[0][first:end], randn(n, 0)[first:end]) == (t == 1)


@pytest.mark.parametrize("variant", OURS)
def test_squares_of_a_client_are_those_of_its_runs(variant):
    """A client of more than one run, whose sum is that of float64, also where float32 would overflow."""
    net = network(LAYERS["linear"], LAYERS["3x3, pool"])
    bitmap = patterns(net, 2, 1.0)
    table, n = runs(bitmap, 2, net.num_rest), bitmap.nnz + 2 * net.num_rest
    g = randn(n) * 1e25
    with on(variant) as put:
        sums = put(torch.zeros(len(table), dtype=torch.float64))
        squares(put(g), put(table), sums)
        found = host(sums)
    for k in (0, 1):
        mine = table[table[:, 2] == k]
        assert mine[:, 3:].tolist() == [[k * len(mine), (k + 1) * len(mine)]] * len(mine)
        wanted = sum(g[lo:hi].double().square().sum() for lo, hi, *_ in mine.tolist())
        assert found[k * len(mine) : (k + 1) * len(mine)].sum() == pytest.approx(float(wanted), rel=1e-12)


def test_runs_cover_the_arena_once():
    net = network(LAYERS["linear"], LAYERS["3x3, pool"])
    bitmap = patterns(net, 3, 1.0)
    table = runs(bitmap, 3, net.num_rest)
    seen = torch.cat([torch.arange(lo, hi) for lo, hi, *_ in table.tolist()])
    assert sorted(seen.tolist()) == list(range(bitmap.nnz + 3 * net.num_rest))
    assert (table[:, 1] - table[:, 0]).max() <= 2048


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"order": torch.zeros(1, 2, 15, dtype=torch.int32)}, "expected order"),
        ({"clock": torch.zeros(1, dtype=torch.int64)}, "this step and the next"),
        ({"scale": torch.ones(2, 3)}, "expected mean and std of 1 channels"),
        ({"data": torch.zeros(4, 1, 3, 2)}, "samples of the shape of x"),
        ({"moves": torch.zeros(1, 2, 16, 2, dtype=torch.int32)}, "expected moves"),
    ],
)
def test_bad_batches_are_refused(change, message):
    given = {
        "data": torch.zeros(4, 1, 2, 2),
        "scale": torch.ones(2, 1),
        "order": torch.zeros(1, 2, 16, dtype=torch.int32),
        "clock": clock_at(0),
        "x": torch.zeros(2, 1, 2, 2, 16),
    }
    with use_backend("reference"), pytest.raises(ValueError, match=message):
        gather(**(given | change))
