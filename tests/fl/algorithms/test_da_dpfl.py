"""DA-DPFL: a round of three clients and four weights by hand, and the identities of algorithms.md 2.

The trainer here trains by adding a number to every stored weight, so that all can be worked out on paper.
"""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from fakes import Serial, Trainer, make_env

import sparse_engine as se
from fl.algorithms import da_dpfl
from fl.algorithms.da_dpfl import Client, Config, State
from fl.algorithms.messages import Sent
from fl.clients.memory import InMemory
from fl.rng import stream
from fl.world import topology
from sparse_engine.model.model import Entry

LAYOUT = se.Layout(("w",), ((1, 4),), (Entry("b", (1,), torch.float32),))
GAINS = (10.0, 20.0, 30.0)


def bitmap(bits):
    return LAYOUT.bitmap_of({"w": torch.tensor([[bit == "1" for bit in bits]])})


def model(bits, values, bias):
    empty = torch.empty(0, dtype=torch.int64)
    return se.Model(
        LAYOUT, bitmap(bits), torch.tensor(values, dtype=torch.float32), torch.tensor([float(bias)]), empty
    )


INITIAL = model("1111", [1, 2, 3, 4], 10)


def train(k, start, local):
    """Adds GAINS[k] to what client k starts from."""
    gain = GAINS[k % 3]
    return se.Model(LAYOUT, start.bitmap, start.values + gain, start.rest + gain, start.integers)


def mirrored(k, state, fraction):
    """RigL here gives the same mask, mirrored."""
    return bitmap(bits(state.bitmap)[::-1])


def bits(pattern):
    (mask,) = se.masks(model("1111", [0] * 4, 0).with_pattern(pattern)).values()
    return "".join("1" if bit else "0" for bit in mask.view(-1).tolist())


def env(num_clients=3, num_rounds=100, kind="full", **settings):
    cfg = Config(**({"reuse_index": "id", "max_wait": 1} | settings))
    graph = topology.make(kind, num_clients)
    given = {"initial": INITIAL, "topology": graph, "num_rounds": num_rounds}
    return make_env(cfg, num_clients, Serial(Trainer(INITIAL, train, mirrored)), **given)


@pytest.mark.parametrize(
    ("masks", "wanted"),
    [(("1100", "0110", "1111"), 0), (("1110", "0110", "1111"), 1), (("1000", "0110", "1111"), 0)],
)
def test_who_is_waited_for_is_a_matter_of_masks(masks, wanted):
    """Client 2 takes from 0 and 1 and waits for the first: whose mask is smaller, or else by reuse index."""
    clients = [client(INITIAL, mask, mask, 1.0, 1.0) for mask in masks]
    graph = topology.make("edges", 3, edges=[(2, 0), (2, 1)])
    world = replace(env(), topology=graph)
    after = da_dpfl.run_round(State(InMemory(clients)), 5, world)
    assert after.schedule.wait.of(2).tolist() == [wanted]
    assert world.executor.waves == [[0, 1], [2]]
    turns = [3 * 5 * 2 * mask.count("1") + 3 * 8 for mask in masks]  # 5 epochs of a sample; growth is dense
    assert da_dpfl.expected_flop(State(InMemory(clients)), 5, world) == turns
    seconds = 5 / 80e12 * np.array(turns)
    assert after.schedule.finish[:2] == pytest.approx(seconds[:2])
    assert after.schedule.start[2] == after.schedule.finish[wanted]


def test_random_growth_costs_nothing():
    world = env(grow="random", grow_batches=3)
    assert da_dpfl.expected_flop(three(), 5, world) == [3 * 5 * 2 * stored for stored in (2, 2, 3)]


def test_pqi_is_that_of_the_engine():
    assert da_dpfl.PQI().config == se.PQIConfig()
    assert list(da_dpfl.PQI.model_fields) == [one.name for one in fields(se.PQIConfig)]
    changed = {"p": 0.25, "q": 2.0, "eta_c": 0.5, "gamma": 0.75, "beta": 0.5, "round_up": True}
    assert da_dpfl.PQI(**changed).config == se.PQIConfig(**changed)


@pytest.mark.parametrize(
    "wrong", [{"p": 0.0}, {"eta_c": -1.0}, {"gamma": math.inf}, {"beta": 1.5}, {"q": math.nan}]
)
def test_pqi_that_the_engine_refuses_is_refused(wrong):
    with pytest.raises(ValueError, match="expected") as ours:
        da_dpfl.PQI(**wrong)
    with pytest.raises(ValueError, match="expected") as theirs:
        se.PQIConfig(**wrong)
    assert str(theirs.value) in str(ours.value)


def client(state, mask, first_mask, *drifts):
    return Client(state, bitmap(mask), bitmap(first_mask), Sent.exact(state), *drifts)


def three(t_star=None):
    """Three clients in the middle of a run: masks, models of the last round, first masks, drifts."""
    return State(
        InMemory(
            [
                client(model("1010", [2, 6], 1), "1100", "1100", 23.0, 10.0),
                client(model("1100", [4, 8], 4), "0110", "0110", 40.0, 10.0),
                client(model("0011", [1, 3], 7), "1011", "1001", 10.0, 10.0),
            ]
        ),
        t_star,
    )


def test_a_round_by_hand():
    world = env(delta_pr=0.2, alpha0=0.5)
    after = da_dpfl.run_round(three(), 50, world)
    starts = world.executor.trainer.starts

    # client 0 waits for nobody: 1 and 2 give their models of the last round
    assert bits(starts[0].bitmap) == "1100"
    assert starts[0].values.tolist() == [(2 + 4) / 2, 8.0]  # the second entry: only client 1 stores it
    assert starts[0].rest.tolist() == [(1 + 4 + 7) / 3]
    # client 1 waits for 0, whose model is now [13, 18] with bias 14; its own is of the last round
    assert bits(starts[1].bitmap) == "0110"
    assert starts[1].values.tolist() == [(8 + 18) / 2, 1.0]
    assert starts[1].rest.tolist() == pytest.approx([(4 + 14 + 7) / 3])
    # client 2 could wait for 0 or 1 and takes 0, which finishes first; 1 gives its model of the last round
    assert bits(starts[2].bitmap) == "1011"
    assert starts[2].values.tolist() == [(13 + 4) / 2, 1.0, 3.0]
    assert starts[2].rest.tolist() == pytest.approx([(7 + 14 + 4) / 3])

    new = after.state.clients
    assert new[0].model.values.tolist() == [13, 18] and new[0].model.rest.tolist() == [14]
    assert new[1].model.values.tolist() == [33, 21]
    assert new[2].model.values.tolist() == [38.5, 31, 33]
    assert [bits(client.model.bitmap) for client in new] == ["1100", "0110", "1011"]
    assert [bits(client.mask) for client in new] == ["0011", "0110", "1101"]
    assert [bits(client.first_mask) for client in new] == ["1100", "0110", "1001"]
    growths = world.executor.trainer.growths
    assert [one.fraction for one in growths] == pytest.approx([0.25] * 3)  # half way, the cosine is 0
    assert [(one.k, one.t, one.batches) for one in growths] == [(k, 50, 1) for k in range(3)]
    assert {k: report.flop for k, report in after.reports.items()} == dict.fromkeys(range(3), 100 + 7)

    bias = 25 / 3 + 20 - 10, 25 / 3 + 30 - 10
    drifts = [
        math.hypot(13 - 1, 18 - 2) + 4,  # from w0 under the first mask: 20 + 4
        math.hypot(33 - 2, 21 - 3) + bias[0],
        math.hypot(38.5 - 1, 31, 33 - 4) + bias[1],  # the third entry was not in the first mask
    ]
    assert [client.drift for client in new] == pytest.approx(drifts)
    assert [client.first_drift for client in new] == [10, 10, 10]
    ratios = [(24 - 23) / 10, abs(drifts[1] - 40) / 10, abs(drifts[2] - 10) / 10]
    assert after.columns["drift_ratio"] == pytest.approx(ratios)
    assert after.columns["vote"] == [True, False, False]
    assert after.state.t_star is None and after.facts == {"t_star": None, "max_wait": 1}
    assert after.columns["pruned"] == [False, False, False]
    assert [m is client.model for m, client in zip(after.models, new, strict=True)] == [True] * 3

    assert world.executor.waves == [[0], [1, 2]]
    assert (after.schedule.depth, after.schedule.parallelism) == (1, pytest.approx(1 / 3))
    # a message: 64 byte of header, 8 of mask, 4 a value, 4 of bias: 84. 0 sends its new one twice, the others
    # their old ones
    assert after.traffic.up[:, 0].tolist() == after.traffic.down[:, 0].tolist() == [168] * 3
    assert after.traffic.up[:, 1].tolist() == [24] * 3 and after.traffic.down[:, 2].tolist() == [40] * 3


def test_bytes_of_models_of_different_rounds():
    """In a line 0 - 1 - 2 with N = 1: 1 receives 0's new model and 2's old one, 2 receives 1's new one."""
    after = da_dpfl.run_round(three(), 1, env(kind="line"))
    assert [bits(c.model.bitmap) for c in after.state.clients] == ["1100", "0110", "1011"]
    assert after.traffic.down[:, 0].tolist() == [84, 84 + 84, 84]
    assert after.traffic.up[:, 0].tolist() == [84, 84 + 84, 84]
    again = da_dpfl.run_round(after.state, 2, env(kind="line"))  # 2 sends three values now
    assert again.traffic.down[:, 0].tolist() == [84, 84 + 88, 84]
    assert again.traffic.up[:, 1].tolist() == [12, 24, 16]


def test_squared_drift_is_one_norm():
    after = da_dpfl.run_round(three(), 50, env(drift="squared"))
    assert after.state.clients[0].drift == pytest.approx(12**2 + 16**2 + 4**2)


def test_the_first_round_has_no_votes():
    fresh = State(InMemory(Client(c.model, c.mask, c.first_mask, c.sent) for c in three().clients))
    after = da_dpfl.run_round(fresh, 0, env(delta_pr=1e9))
    assert after.columns["vote"] == [None] * 3 and after.columns["drift_ratio"] == [None] * 3
    assert after.state.t_star is None
    assert [client.first_drift for client in after.state.clients] == [c.drift for c in after.state.clients]


@pytest.mark.parametrize(
    ("delta_v", "min_first_prune", "t_star"), [(0.3, 0, 50), (0.34, 0, None), (0.3, 51, None)]
)
def test_a_share_of_votes_starts_pruning(delta_v, min_first_prune, t_star):
    settings = {"delta_pr": 0.2, "delta_v": delta_v, "min_first_prune": min_first_prune}
    assert da_dpfl.run_round(three(), 50, env(**settings)).state.t_star == t_star


def test_pruning_is_of_the_trained_weights_and_rigl_follows():
    world = env(pqi={"eta_c": 1.0}, target_sparsity=0.75)
    due = da_dpfl.run_round(three(t_star=10), 11, world)  # t_1 + 1 = 11
    not_due = da_dpfl.run_round(three(t_star=10), 12, env(pqi={"eta_c": 1.0}))
    client, trained = due.state.clients[0], not_due.state.clients[0].model
    wanted = se.prune_pqi(trained, se.PQIConfig(eta_c=1.0), target_density=0.25)
    assert bits(client.model.bitmap) == bits(wanted.bitmap) == "0100"
    assert client.model.values.tolist() == [18] and client.drift == 24  # of the unpruned weights
    assert bits(client.mask) == "0010"
    assert due.columns["pruned"] == [True, True, True] and not_due.columns["pruned"] == [False] * 3
    # this round's pruned model is what those who wait for client 0 receive
    assert bits(world.executor.trainer.starts[1].bitmap) == "0110"
    assert world.executor.trainer.starts[1].values.tolist() == [(8 + 18) / 2, 1.0]


def test_unpruned_weights_are_kept_and_sent_as_in_the_authors_code():
    """Pruning then shows in the mask of the next round alone."""
    settings = {"pqi": {"eta_c": 1.0}, "target_sparsity": 0.75}
    pruned = da_dpfl.run_round(three(t_star=10), 11, env(**settings))
    world = env(**settings, send="unpruned")
    due = da_dpfl.run_round(three(t_star=10), 11, world)
    client = due.state.clients[0]
    assert bits(client.model.bitmap) == "1100" and client.model.values.tolist() == [13, 18]
    assert bits(client.mask) == "0010" == bits(pruned.state.clients[0].mask)  # RigL of the pruned weights
    assert due.columns["pruned"] == [True] * 3 and due.columns["drift"][0] == client.drift == 24
    # client 1 waits for 0 and gets both of its weights
    assert torch.equal(client.sent.model.values, client.model.values)
    assert world.executor.trainer.starts[2].values.tolist()[0] == (13 + 4) / 2  # pruned: client 1's alone
    later = env(**settings, send="unpruned")
    da_dpfl.run_round(due.state, 12, later)
    assert bits(later.executor.trainer.starts[0].bitmap) == "0010"


def test_no_pruning_past_the_target():
    after = da_dpfl.run_round(three(t_star=10), 11, env(pqi={"eta_c": 1.0}, target_sparsity=0.5))
    assert [client.model.density for client in after.state.clients] == [0.5, 0.5, 0.5]
    assert after.columns["pruned"] == [False, False, True]


def test_without_waiting_a_round_is_parallel():
    world = env(max_wait=0)
    after = da_dpfl.run_round(three(), 5, world)
    assert (
        world.executor.waves == [[0, 1, 2]] and after.schedule.depth == 0 and after.schedule.parallelism == 1
    )
    old = [client.model for client in three().clients]
    for k, start in world.executor.trainer.starts.items():
        others = [old[j] for j in range(3) if j != k]
        wanted = se.average(old[k], others, mask=three().clients[k].mask)
        assert torch.equal(start.values, wanted.values) and torch.equal(start.rest, wanted.rest)


def test_waiting_for_everybody_is_sequential():
    world = env(5, max_wait=4, reuse_index="random")
    after = da_dpfl.run_round(da_dpfl.init(world), 7, world)
    init, *waves = world.executor.waves
    assert [len(wave) for wave in waves] == [1] * 5 and after.schedule.depth == 4
    order = [k for (k,) in waves]
    assert order == np.argsort(stream(0, "reuse", 7).permutation(5)).tolist() != sorted(order)
    models = [client.model for client in da_dpfl.init(env(5)).clients]
    for k in order:
        start = se.average(models[k], [models[j] for j in range(5) if j != k])
        assert torch.allclose(world.executor.trainer.starts[k].values, start.values)
        models[k] = train(k, start, None)
    for client, wanted in zip(after.state.clients, models, strict=True):
        assert torch.allclose(client.model.values, wanted.values)


def test_full_graph_with_full_masks_is_a_plain_mean():
    everything = bitmap("1111")
    values = torch.arange(12.0).view(3, 4) ** 2
    old = [model("1111", row.tolist(), k) for k, row in enumerate(values)]
    world = env(max_wait=0)
    clients = InMemory(Client(m, everything, everything, Sent.exact(m)) for m in old)
    da_dpfl.run_round(State(clients), 0, world)
    for start in world.executor.trainer.starts.values():
        assert torch.allclose(start.values, values.mean(0)) and start.rest.tolist() == [1.0]


def test_first_masks():
    own = da_dpfl.init(env(6, density=0.5)).clients
    assert all(
        client.model.bitmap.nnz == 2 and client.model.bitmap is client.mask is client.first_mask
        for client in own
    )
    assert len({bits(client.mask) for client in own}) > 1
    assert own[0].model.tensor("w").to_dense().tolist() == [
        [w if bit == "1" else 0 for w, bit in zip([1, 2, 3, 4], bits(own[0].mask), strict=True)]
    ]
    shared = da_dpfl.init(env(6, density=0.5, shared_initial_mask=True)).clients
    assert all(client.mask is shared[0].mask for client in shared)
    assert bits(shared[0].mask) == bits(own[0].mask)
    uniform = da_dpfl.init(env(2, density=0.75, distribution="uniform")).clients
    assert uniform[0].mask.nnz == 3


def test_random_growth_keeps_the_number_and_follows_the_seed():
    a, b = (da_dpfl.run_round(three(), 3, env(grow="random")).state.clients for _ in range(2))
    assert [client.mask.nnz for client in a] == [2, 2, 3]
    assert [bits(client.mask) for client in a] == [bits(client.mask) for client in b]


def test_the_bound_falls_like_a_staircase():
    waits = [
        da_dpfl.run_round(three(), t, env(num_rounds=9, max_wait=2, max_wait_schedule="staircase")).facts[
            "max_wait"
        ]
        for t in range(9)
    ]
    assert waits == [2, 2, 2, 1, 1, 1, 0, 0, 0]
