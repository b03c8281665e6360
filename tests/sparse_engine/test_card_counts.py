"""What the compiled kernels cost on the virtual card: bytes, sectors, launches, waits. Counts, not times.

Formulae are bytes per entry (n) or per stored value (d n): what has to be read and written once.
"""

from unittest import mock

import numpy as np
import pytest
import torch
from groups import pictures, shares, tiny_clients
from helpers import randn, random_bitmap
from programs import made

import sparse_engine as se
from sparse_engine.models import lenet5
from sparse_engine.program.batches import Batches, Data, Training
from sparse_engine.program.gpu import state as group_state
from sparse_engine.program.gpu.session import GroupSession, Grow, Prune
from sparsefl.kernels import bitmap
from sparsefl.kernels.drift import drift
from sparsefl.kernels.layout import Packed
from sparsefl.kernels.masked_average import masked_average
from sparsefl.kernels.masked_sgd import masked_sgd_
from sparsefl.kernels.pack import pack, unpack
from sparsefl.kernels.pqi import pqi
from sparsefl.kernels.select import select

virtual_card = pytest.importorskip("virtual_card", reason="no triton here", exc_type=ModuleNotFoundError)
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="counted on the virtual card")

N = 1 << 16
BITMAP = (
    8 / 64 + (5 * 8 + 8) / 1024
)  # bytes per entry: the bit; a row of the table of blocks and a rank per block


@pytest.fixture
def card():
    with virtual_card.installed() as found:
        yield found


def pattern(density):
    """Half a million bits would show no more."""
    made = random_bitmap([N], density)
    return bitmap.to(made, "cuda")


def bytes_of(launched):
    return launched.counts["dram_load_bytes"] + launched.counts["dram_store_bytes"]


def used(launched):
    """Share of the bytes in touched sectors that the lanes asked for."""
    counts = launched.counts
    asked = counts["load_bytes"] + counts["store_bytes"]
    return asked / (32 * (counts["load_sectors"] + counts["store_sectors"]))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_stream_touches_every_byte_once_by_128_bits(card, momentum):
    w, g, u = (randn(N, seed).to("cuda") for seed in range(3))
    masked_sgd_(w, g, u if momentum else None, lr=0.1, momentum=momentum)
    (launched,) = card.launches
    assert bytes_of(launched) == N * (20 if momentum else 12)
    assert used(launched) == 1.0
    lanes = launched.counts["load_bytes"] / launched.counts["load_requests"] / 32
    assert lanes == 16


@pytest.mark.parametrize("density", [0.2, 0.5, 1.0])
def test_packing_reads_and_writes_what_it_must(card, density):
    dense, stored = randn(N).to("cuda"), pattern(density)
    values = pack(dense, stored)
    packed = card.launches[-1]
    unpack(values, stored)
    unpacked = card.launches[-1]
    touched = 32 * (1 - (1 - density) ** 8)  # bytes of a sector's 8 entries if any of them is stored
    assert bytes_of(packed) == pytest.approx(N * (BITMAP + touched / 8 + 4 * density), rel=0.05)
    assert bytes_of(unpacked) == pytest.approx(N * (BITMAP + 4 * density + 4), rel=0.05)


def test_an_average_reads_each_model_once(card):
    stored = pattern(0.5)
    models = [Packed(pattern(0.5), randn(stored.nnz, j).to("cuda")) for j in range(5)]
    masked_average(stored, models)
    launched = card.launches[-1]
    assert launched.kernel == "_average_kernel"
    rank = 8 / 1024
    formula = N * (BITMAP + 4 * 0.5 + 5 * (8 / 64 + rank + 4 * 0.5))
    assert bytes_of(launched) == pytest.approx(formula, rel=0.05)


def test_results_do_not_depend_on_what_nobody_wrote(card):
    results = []
    for card.seed in (0, 1):
        stored = bitmap.to(random_bitmap((700, 1100, 3000), 0.3), "cuda")
        w = randn(stored.nnz).to("cuda")
        models = [Packed(stored, w), Packed(stored, w * 2)]
        chosen = select(w, stored, stored.counts // 3).words
        found = [
            unpack(w, stored),
            chosen,
            masked_average(stored, models),
            *bitmap.transpose(pattern(0.1), 64),
        ]
        results.append([x.cpu() for x in found] + [drift(*models), pqi(w, stored.offsets, p=1.0, q=2.0).pqi])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


# Launches and waits, by Triton and by torch, on LeNet5 (5 layers): at most these. Lower them when they fall.
MOST = {"to": (0, 4), "average": (14, 0), "prune": (32, 6), "drift": (1, 3), "grow": (78, 16)}


@pytest.mark.parametrize("what", MOST)
def test_launches_and_waits_of_the_host(card, what):
    model = se.compress(se.sparsify(lenet5(), density=0.5))
    there = model.to("cuda")
    others = [there.with_values(there.values * j) for j in range(10)]
    shapes = dict(zip(model.layout.names, model.layout.shapes, strict=True))
    gradients = {name: torch.ones(shape).to("cuda") for name, shape in shapes.items()}
    work = {
        "to": lambda: model.to("cuda"),
        "average": lambda: se.average(there, others),
        "prune": lambda: se.prune_pqi(there),
        "drift": lambda: se.drift(there, others[2]),
        "grow": lambda: se.rigl(there, gradients, 0.3),
    }[what]
    se.average(there, others), se.drift(there, others[2])  # tables and ranks are kept
    card.events.clear()
    work()
    found = card.events["launch"], card.syncs
    assert found[0] <= MOST[what][0] and found[1] <= MOST[what][1], (found, card.events)


# ---- groups: many clients in one launch ----


def lenets(clients):
    """LeNet5 with masks of their own, a data set of bytes, and two batches of 16 each."""
    found = [made("lenet5", density=0.2, seed=seed) for seed in range(clients)]
    graph, rng = found[0][0], np.random.default_rng(0)
    data = Data(rng.integers(0, 256, (64, 1, 28, 28)).astype(np.uint8), rng.integers(0, 10, 64))
    batches = [Batches(data, rng.permutation(64)[:32], 16) for _ in found]
    return graph, [model.clone() for _, model in found], batches


def counted(card, work):
    card.events.clear()
    work()
    return card.events["launch"], card.syncs


def test_a_step_of_a_group_of_lenets_is_14_launches_and_no_wait(card):
    graph, models, batches = lenets(2)
    session = GroupSession(graph, "cuda")
    steps = []
    with mock.patch.object(
        group_state,
        "repeat",
        lambda step, times, *_: steps.extend(counted(card, step) for _ in range(times)),
    ):
        session.train(models, batches, Training(lr=0.1))
    assert len(steps) == 2 and all(found == (14, 0) for found in steps[1:]), steps


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("prune", [None, Prune(se.PQIConfig(), 0.1)])
def test_a_round_waits_twice_whatever_the_group_and_once_more_where_it_prunes(card, clients, prune):
    """Tests, training, tests, pruning and growth of every client."""
    graph, models = tiny_clients(clients)
    batches = shares(pictures(graph), epochs=1)[:clients]
    session, grow = GroupSession(graph, "cuda"), Grow(0.3, batches)

    def a_round():
        how = Training(lr=0.1, max_norm=1.0)
        session.visit([m.clone() for m in models], batches, how, batches, prune=prune, grow=grow)

    with mock.patch.object(group_state, "repeat", lambda step, times, *_: step() or 1):
        a_round()  # the data set and tables of the network are kept
        _, syncs = counted(card, a_round)
    assert syncs == (2 if prune is None else 3), card.events


def test_pruning_and_growth_of_a_group(card):
    """RigL, and the pruning before it, of 4 layers; means over neighbours are the CPU's. The passes of growth
    and the index of the pruned group are those of a training, and not counted."""
    found = []
    for clients in (1, 3):
        graph, models = tiny_clients(clients)
        batches = shares(pictures(graph), epochs=1)[:clients]
        session = GroupSession(graph, "cuda")
        state, feed = session._state(models), session._feed(batches, 5, first_only=True)
        nothing = mock.patch.object(group_state.Feed, "backward", lambda *_: None)
        index = mock.patch.object(group_state.group_conv, "make", lambda *_, state=state: state.group)
        gradient = mock.patch.object(
            group_state.group_conv, "dense_gradient", lambda *given: given[-1].fill_(1)
        )
        state.pruned(se.PQIConfig(), 0.1)  # tables are kept
        with nothing, gradient:
            state.moved(feed, 0.3)
            moved = counted(card, lambda: state.moved(feed, 0.3))  # noqa: B023
            with index:
                pruned = counted(card, lambda: state.pruned(se.PQIConfig(), 0.1))  # noqa: B023
        assert (moved[1] - card.events["sync:cpu->cuda"], pruned[1]) == (0, 1), (moved, pruned, card.events)
        found.append((moved[0], pruned[0]))
    assert found[0] == found[1] and sum(found[0]) <= 60, found


def test_growth_of_a_group_takes_as_many_launches_as_that_of_one_client(card):
    """Batches, layers, dense gradients, index: 4 layers. Dropping and growing: one selection each."""
    found = []
    for clients in (1, 3):
        graph, models = tiny_clients(clients)
        batches = shares(pictures(graph), epochs=1)[:clients]
        session = GroupSession(graph, "cuda")
        session.grow(models, 0.3, batches)  # tables are kept
        found.append(counted(card, lambda: session.grow(models, 0.3, batches)))  # noqa: B023
    assert found[0] == found[1] and found[0][0] <= 92, found
