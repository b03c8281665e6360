"""Real devices: figures with sources, and how they get into a configuration."""

from pathlib import Path

import pytest

from fl import config
from fl.config import Devices
from fl.config.hardware import HARDWARE
from fl.errors import ConfigError
from fl.world.devices import draw

PAGE = Path(__file__).parents[3] / "docs" / "devices.md"


@pytest.mark.parametrize("name", HARDWARE)
def test_every_figure_has_a_source_that_the_page_names(name):
    page, one = PAGE.read_text(), HARDWARE[name]
    assert f"`{name}`: {one.about}" in page
    for key, figure in one.figures().items():
        told = f"{'*estimate*: ' if figure.estimate else ''}{figure.source} |"
        rows = [line for line in page.splitlines() if f"| `{key}` |" in line and line.endswith(told)]
        assert rows and figure.value >= 0 and len(figure.source) > 10


def test_figures_are_keys_and_can_be():
    for name, one in HARDWARE.items():
        model = Devices(hardware=name)
        assert {key: getattr(model, key) for key in one.values()} == one.values()
        assert draw(model, 2).flop_rate.tolist() == [one.peak_flops.value / one.over_peak.value] * 2


def test_products_are_right():
    """By hand, from what the sources say."""
    peak = {name: one.peak_flops.value for name, one in HARDWARE.items()}
    assert peak["rtx4090"] == pytest.approx(16384 * 2 * 2.52e9, rel=1e-3)
    assert peak["jetson"] == 1024 * 2 * 625e6
    assert peak["raspberry_pi"] == 4 * 1.5e9 * 8
    assert peak["phone"] == pytest.approx((2.84e9 + 3 * 2.42e9) * 16)
    assert HARDWARE["phone"].radio_watts.value == pytest.approx(0.13286 + 0.13701 * 20, abs=0.01)


def test_a_configuration_that_names_one(tiny):
    cfg = tiny("devices.hardware=jetson")
    assert cfg.devices.compute_watts == 15 and config.loads(config.dumps(cfg)) == cfg
    with pytest.raises(ConfigError, match=r"devices.bandwidth: expected a key that has an effect here"):
        tiny("devices.hardware=jetson", "devices.bandwidth=1e6")
    with pytest.raises(ConfigError, match="devices.hardware: expected 'phone'"):
        tiny("devices.hardware=toaster")
    assert tiny("devices.bandwidth=1e6").devices.bandwidth == 1e6
