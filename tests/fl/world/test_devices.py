"""Modelled time and energy: the constants of algorithms.md 7 and small rounds by hand."""

import numpy as np
import pytest

from fl.world.devices import DeviceModel, Devices, RoundCost, plan_round, received
from fl.world.topology import make

RESNET18_FLOP = 5 * 499 * 3 * 1_110_845_450
RESNET18_BYTES = 4 * 11_173_962


def test_constants_of_the_paper():
    devices = DeviceModel().devices(3)
    assert devices.train_seconds(8.32e12) == pytest.approx([0.52] * 3)  # 5 * 8.32e12 / 80e12
    assert devices.link_seconds(125e6) == pytest.approx([1.0] * 3)  # 1 Gbit


def test_a_round_without_waiting():
    """100 clients, 10 dense ResNet18 each: T_comp 0.52 s, 426.3 MB in 3.58 s; 450 W and 1 W."""
    neighbours = make("random", 100, degree=10).neighbours(0)
    model = DeviceModel()
    schedule, cost = plan_round(
        neighbours, np.arange(100), 0, model=model, devices=model.devices(100), flop=RESNET18_FLOP,
        message_bytes=RESNET18_BYTES,
    )  # fmt: skip
    train_s, link_s = RESNET18_FLOP * 5 / 80e12, 10 * RESNET18_BYTES * 8 / 1e9
    assert train_s == pytest.approx(0.51967, rel=1e-4) and link_s == pytest.approx(3.57567, rel=1e-4)
    assert 10 * RESNET18_BYTES / 2**20 == pytest.approx(426.3, abs=0.05)
    assert schedule.depth == 0 and cost.time_s == pytest.approx(train_s + link_s)
    assert cost.compute_j == pytest.approx(100 * 450 * train_s) and cost.radio_j == pytest.approx(
        100 * link_s
    )
    assert cost.idle_j == 0 and cost.energy_j == cost.compute_j + cost.radio_j


def test_a_waiting_round_lasts_depth_and_one_trainings():
    neighbours, model = make("random", 100, degree=10).neighbours(0), DeviceModel()
    schedule, cost = plan_round(
        neighbours, np.arange(100), 10, model=model, devices=model.devices(100), flop=16e12, message_bytes=0
    )
    assert schedule.depth > 5 and cost.time_s == pytest.approx(schedule.depth + 1)


def chain(messages):
    """0 <- 1 <- 2, training 1, 2, 4 s; a message of 1 s; 0 takes from 2, of the last round."""
    neighbours = make("edges", 3, edges=[(1, 0), (2, 1), (0, 2)]).neighbours(0)
    model = DeviceModel(compute_watts=10, radio_watts=2, idle_watts=1)
    devices = Devices(np.array([1.0, 0.5, 0.25]), np.array([8.0, 8.0, 8.0]))
    return plan_round(
        neighbours, np.arange(3), 1, model=model, devices=devices, flop=1, message_bytes=1, messages=messages
    )


def test_messages_after_by_hand():
    schedule, cost = chain("after")
    assert schedule.start.tolist() == [0, 1, 3] and schedule.finish.tolist() == [1, 3, 7]
    assert cost == RoundCost(time_s=8, compute_j=70, radio_j=6, idle_j=24 - 7 - 3)


def test_messages_during_by_hand():
    schedule, cost = chain("during")
    assert schedule.start.tolist() == [1, 3, 6] and schedule.finish.tolist() == [2, 5, 10]
    assert cost == RoundCost(time_s=10, compute_j=70, radio_j=6, idle_j=30 - 7 - 3)


def test_the_two_ways_agree_without_waiting():
    neighbours, model = make("ring", 20).neighbours(0), DeviceModel()
    costs = [
        plan_round(neighbours, np.arange(20), 0, model=model, devices=model.devices(20), flop=1e12,
                   message_bytes=1e7, messages=messages)[1]
        for messages in ("after", "during")
    ]  # fmt: skip
    assert costs[0] == pytest.approx(costs[1])


def test_received_bytes():
    neighbours = make("edges", 4, edges=[(0, 1), (0, 2), (3, 2)]).neighbours(0)
    assert received(neighbours, [1, 10, 100, 1000]).tolist() == [110, 0, 0, 100]
    assert received(neighbours, 7).tolist() == [14, 0, 0, 7]


def test_dollars():
    cost = RoundCost(time_s=2, compute_j=30, radio_j=9, idle_j=1)
    assert cost.dollars(0) == 2 and cost.dollars(1) == 40 and cost.dollars(0.25) == 11.5


def slow(kind, spread, **options):
    devices = DeviceModel(kind, spread).devices(20_000, **options)
    return 16e12 / devices.flop_rate, 1e9 / devices.bandwidth


@pytest.mark.parametrize(
    ("kind", "spread", "deviation"),
    [
        ("uniform", 0.5, 0.5 / np.sqrt(3)),
        ("lognormal", 0.4, np.sqrt(np.exp(0.16) - 1)),
        ("homogeneous", 0.5, 0),
    ],
)
def test_slowdowns_have_mean_one(kind, spread, deviation):
    for drawn in slow(kind, spread):
        assert abs(drawn.mean() - 1) <= 4 * deviation / np.sqrt(20_000)
        assert drawn.std() == pytest.approx(deviation, rel=0.05) and drawn.min() > 0
    training, link = slow(kind, spread)
    if deviation:
        assert abs(np.corrcoef(training, link)[0, 1]) < 4 / np.sqrt(20_000)


def test_uniform_is_a_device_lognormal_a_mishap():
    assert np.array_equal(slow("uniform", 0.5, t=0), slow("uniform", 0.5, t=1))
    assert not np.array_equal(slow("lognormal", 0.5, t=0), slow("lognormal", 0.5, t=1))
    assert np.array_equal(slow("lognormal", 0.5, t=1), slow("lognormal", 0.5, t=1))
    assert not np.array_equal(slow("uniform", 0.5, seed=0), slow("uniform", 0.5, seed=1))


def test_uniform_bounds():
    drawn = slow("uniform", 0.9)[0]
    assert 0.1 < drawn.min() < 0.101 and 1.899 < drawn.max() < 1.9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "gaussian"}, r"expected a device model out of \['homogeneous', 'uniform', 'lognormal'\]"),
        (
            {"kind": "uniform", "spread": 1.0},
            "expected a spread from 0 to below 1 of uniform devices, got 1.0",
        ),
        ({"kind": "lognormal", "spread": -0.1}, "expected a spread >= 0 of lognormal devices, got -0.1"),
        ({"peak_flops": 0}, "expected peak_flops > 0, got 0"),
        ({"radio_watts": -1}, "expected radio_watts >= 0, got -1"),
    ],
)
def test_wrong_models_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DeviceModel(**options)


def test_wrong_messages_are_refused():
    with pytest.raises(ValueError, match=r"expected messages out of \['after', 'during'\], got 'never'"):
        chain("never")
