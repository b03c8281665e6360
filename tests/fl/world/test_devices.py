"""The devices: the constants of algorithms.md 7, and how clients differ."""

import numpy as np
import pytest

from fl import config
from fl.world.devices import draw


def test_constants_of_the_paper():
    devices = draw(config.Devices(), 3)
    assert devices.train_seconds(8.32e12) == pytest.approx([0.52] * 3)  # 5 * 8.32e12 / 80e12
    assert devices.link_seconds(125e6) == pytest.approx([1.0] * 3)  # 1 Gbit


def slow(kind, spread, **options):
    devices = draw(config.Devices(kind=kind, spread=spread), 20_000, **options)
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
