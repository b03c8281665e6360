"""GossipFL: two rounds of three clients by hand, groups, the shared mask, what stays as it is, bytes."""

from collections import Counter

import numpy as np
import pytest
import torch
from by_hand import INITIAL, W0, bitmap, bits, env, model, numbers, rounds

import sparse_engine as se
from fl.algorithms import dfedsam, gossipfl
from fl.algorithms.base import Peers
from fl.algorithms.gossipfl import Client, Config
from fl.algorithms.messages import Sent, send
from fl.clients.memory import InMemory
from fl.config import Messages

GAINS = np.array([[1, 2, 3, 4, 1], [2, 5, 3, 1, 2], [3, 2, 0, 4, 6]])


def group_sets(neighbours):
    return {frozenset([k, *neighbours.of(k).tolist()]) for k in range(neighbours.num_clients)}


def test_two_rounds_by_hand(monkeypatch):
    """One group of three; the masks of the three rounds are given."""
    masks = ["1100", "0110", "1001"]
    monkeypatch.setattr(gossipfl, "shared_mask", lambda env, t: bitmap(masks[t]))
    world = env(Config(), GAINS, "random")
    assert [bits(c.sent.model.bitmap) for c in gossipfl.init(world).clients] == ["1100"] * 3
    first, second = rounds(gossipfl, world, 2)
    assert numbers(first.models) == pytest.approx(W0 + GAINS)  # all started from w0
    assert [bits(c.sent.model.bitmap) for c in first.state.clients] == ["0110"] * 3
    starts = numbers(world.executor.trainer.starts[k] for k in range(3))
    # the two weights in the middle and the bias take the mean (of 4, 7, 4; of 6, 6, 3; of 11, 12, 16)
    assert starts == pytest.approx(np.array([[2, 5, 5, 8, 13], [3, 5, 5, 5, 13], [4, 5, 5, 8, 13]]))
    assert numbers(second.models) == pytest.approx(starts + GAINS)
    sent = numbers(c.sent.model for c in second.state.clients)
    assert sent == pytest.approx((starts + GAINS)[:, [0, 3, 4]])
    assert world.executor.trainer.told("max_norm") == [(10.0,)] * 6
    # 64 byte of header, no mask, two weights and a bias: 76, to two others; of 5 numbers in the dense model
    assert second.traffic.up.tolist() == second.traffic.down.tolist() == [[152, 24, 40]] * 3
    assert second.schedule.depth == 0


def test_a_message_is_read_with_the_shared_mask_alone():
    mask = bitmap("0110")
    sent = send(INITIAL.with_pattern(mask), 3, 7, Messages(), known=mask)
    blob = se.wire.encode(INITIAL.with_pattern(mask), sender=3, round=7, known=mask)
    header = se.wire.inspect(blob)
    assert (header.mask, header.mask_bytes, sent.nbytes) == ("known", 0, len(blob))
    back = se.wire.decode(blob, INITIAL, known=bitmap("0110"))
    assert back.values.tolist() == [2, 3] and back.rest.tolist() == [10]
    with pytest.raises(se.wire.WireError, match="expected the mask"):
        se.wire.decode(blob, INITIAL, known=bitmap("1100"))
    rounded = send(INITIAL.with_pattern(mask), 3, 7, Messages(values="q8"), known=mask)
    assert bits(rounded.model.bitmap) == "0110" and rounded.nbytes < sent.nbytes


@pytest.mark.parametrize("kind", ["random", "ring", "full", "star"])
def test_what_is_not_on_the_mask_stays_bit_by_bit(kind):
    draw = np.random.default_rng(0)
    old = [model(row) for row in draw.normal(size=(7, 5))]
    for x in old:
        x.values[draw.integers(4)] = -0.0
    mask = bitmap("0101")
    state = Peers(InMemory(Client(x, Sent.exact(x.with_pattern(mask))) for x in old))
    world = env(Config(), np.zeros((7, 5)), kind)
    rounds(gossipfl, world, 1, state, 3)
    neighbours = gossipfl.groups(world, 3)
    for k, x in enumerate(old):
        start = world.executor.trainer.starts[k]
        raw = start.values.view(torch.int32)
        assert raw[[0, 2]].tolist() == x.values.view(torch.int32)[[0, 2]].tolist()
        mean = numbers([x, *(old[j] for j in neighbours.of(k))]).mean(0)
        assert start.values[[1, 3]].tolist() == pytest.approx(mean[[1, 3]], abs=1e-6)
        assert start.rest.tolist() == pytest.approx(mean[4:], abs=1e-6)
        assert len(neighbours.of(k)) == 0 or raw[3] != x.values.view(torch.int32)[3]


@pytest.mark.parametrize("num_clients", [6, 7, 8])
def test_groups_keep_the_mean(num_clients):
    old = np.random.default_rng(1).normal(size=(num_clients, 5))
    mask = bitmap("1100")
    state = Peers(InMemory(Client(model(x), Sent.exact(model(x).with_pattern(mask))) for x in old))
    (done,) = rounds(gossipfl, env(Config(), 0 * old, "random"), 1, state)
    assert numbers(done.models).mean(0) == pytest.approx(old.mean(0), abs=1e-6)


@pytest.mark.parametrize(
    ("num_clients", "degree", "sizes"),
    [(12, 3, [4, 4, 4]), (10, 3, [2, 4, 4]), (9, 3, [1, 4, 4]), (5, 4, [5]), (4, 1, [2, 2])],
)
def test_groups(num_clients, degree, sizes):
    world = env(Config(), np.zeros((num_clients, 5)), "random", degree=degree)
    seen = []
    for t in range(5):
        neighbours = gossipfl.groups(world, t)
        found = group_sets(neighbours)
        assert sorted(map(len, found)) == sizes and sum(sizes) == num_clients  # disjoint, everybody in one
        assert neighbours.degrees.max() == degree
        seen.append(found)
    assert len({frozenset(found) for found in seen}) > 1 or len(sizes) == 1
    fixed = env(Config(), np.zeros((num_clients, 5)), "random", degree=degree, redraw=False)
    assert group_sets(gossipfl.groups(fixed, 0)) == group_sets(gossipfl.groups(fixed, 3)) == seen[0]


def test_any_two_meet_equally_often():
    """Each of the 15 pairs of 6 in groups of 3 with probability 2/5."""
    world = env(Config(), np.zeros((6, 5)), "random")
    met = Counter()
    for t in range(1000):
        neighbours = gossipfl.groups(world, t)
        met.update(zip(neighbours.takers().tolist(), neighbours.indices.tolist(), strict=True))
    assert len(met) == 30 and max(abs(n - 400) for n in met.values()) < 5 * (1000 * 0.4 * 0.6) ** 0.5


def test_who_is_left_alone_goes_on_with_its_own_model():
    old = np.random.default_rng(2).normal(size=(7, 5))
    state = Peers(InMemory(Client(model(x), Sent.exact(model(x).with_pattern(bitmap("1111")))) for x in old))
    world = env(Config(), 0 * old, "random")
    (done,) = rounds(gossipfl, world, 1, state)
    (alone,) = np.flatnonzero(gossipfl.groups(world, 0).degrees == 0)
    assert torch.equal(done.models[alone].values, model(old[alone]).values)
    assert done.traffic.up[alone].tolist() == [0, 0, 0]


def test_in_other_topologies_a_group_is_the_neighbourhood():
    for kind in ("ring", "line", "star", "grid", "full", "regular"):
        world = env(Config(), np.zeros((6, 5)), kind)
        ours, graph = gossipfl.groups(world, 2), world.topology.neighbours(2)
        assert [ours.of(k).tolist() for k in range(6)] == [graph.of(k).tolist() for k in range(6)]


def test_the_mask_is_a_new_half_of_every_layer():
    layout = se.Layout(("a", "b"), ((5, 7), (64, 3)))
    empty = torch.empty(0)
    initial = se.Model(layout, layout.bitmap_of({"a": torch.ones(5, 7) > 0, "b": torch.ones(64, 3) > 0}),
                       torch.zeros(227), empty, empty.long())  # fmt: skip
    world = env(Config(), np.zeros((3, 5)))
    world = type(world)(**(vars(world) | {"initial": initial}))
    masks = [gossipfl.shared_mask(world, t) for t in range(200)]
    assert all(mask.counts.tolist() == [17, 96] for mask in masks)
    assert torch.equal(masks[3].words, gossipfl.shared_mask(world, 3).words)
    often = sum(torch.cat([m.view(-1) for m in se.masks(initial.with_pattern(mask)).values()]).int()
                for mask in masks)  # fmt: skip
    assert 60 < often.min() and often.max() < 140
    whole = type(world)(**(vars(world) | {"config": Config(share=1.0)}))
    assert gossipfl.shared_mask(whole, 0).nnz == 227


def test_all_of_it_on_a_graph_is_plain_gossip():
    """share = 1 mixes as DFedSAM does."""
    gains = np.random.default_rng(3).normal(size=(5, 5))
    ours = rounds(gossipfl, env(Config(share=1.0), gains, "ring"), 3)[-1]
    theirs = rounds(dfedsam, env(dfedsam.Config(), gains, "ring"), 3)[-1]
    assert numbers(ours.models).tolist() == numbers(theirs.models).tolist()
