"""Real devices, as figures of the section `devices`: each with where it is from. What follows from them is
modelled, never measured.

An `estimate` is ours: nobody published it for this device, or it depends on more than the device.
"""

from typing import Literal, NamedTuple, get_args

Name = Literal["phone", "raspberry_pi", "jetson", "rtx4090"]


class Figure(NamedTuple):
    value: float
    source: str
    estimate: bool = False


class Hardware(NamedTuple):
    """A device. Figures are keys of the section `devices`, in their units."""

    about: str
    peak_flops: Figure
    over_peak: Figure
    bandwidth: Figure
    compute_watts: Figure
    radio_watts: Figure
    idle_watts: Figure

    def figures(self) -> dict[str, Figure]:
        """By key."""
        return {key: figure for key, figure in self._asdict().items() if key != "about"}

    def values(self) -> dict[str, float]:
        return {key: figure.value for key, figure in self.figures().items()}


_PAPER = "DA-DPFL's constant for a GPU (docs/algorithms.md, 7)"
_OVER_PEAK = Figure(5.0, f"{_PAPER}, taken over", estimate=True)
_WIRE = Figure(1.0, f"{_PAPER}, taken over", estimate=True)

HARDWARE: dict[str, Hardware] = {
    "phone": Hardware(
        about="smartphone of 2020 (Snapdragon 865), its four large CPU cores, on Wi-Fi",
        peak_flops=Figure(
            161.6e9,
            "(2.84 + 3 x 2.42) GHz (Qualcomm, Snapdragon 865 product brief) x 16 FLOP per cycle: two 128-bit "
            "FMA of a Cortex-A77 (Arm, Cortex-A77 Software Optimization Guide)",
        ),
        over_peak=_OVER_PEAK,
        bandwidth=Figure(20e6, "home or mobile network, either way; links differ widely: take a trace", True),
        compute_watts=Figure(5.0, "what a phone can give off for minutes, all large cores busy", True),
        radio_watts=Figure(
            2.87,
            "132.86 mW + 137.01 mW per Mbit/s received, at 20 Mbit/s on Wi-Fi: Huang, Qian, Gerber, Mao, "
            "Sen, Spatscheck, A Close Examination of Performance and Power Characteristics of 4G LTE "
            "Networks, MobiSys 2012 (a phone of 2011)",
            estimate=True,
        ),
        idle_watts=Figure(0.5, "awake, screen off", True),
    ),
    "raspberry_pi": Hardware(
        about="Raspberry Pi 4 Model B, its CPU, on Ethernet",
        peak_flops=Figure(
            48e9,
            "4 cores x 1.5 GHz (Raspberry Pi 4 Model B product brief) x 8 FLOP per cycle: one 128-bit FMA of "
            "a Cortex-A72 (Arm, Cortex-A72 Software Optimization Guide)",
        ),
        over_peak=_OVER_PEAK,
        bandwidth=Figure(1e9, "Gigabit Ethernet (Raspberry Pi 4 Model B product brief)"),
        compute_watts=Figure(
            6.4,
            "stress --cpu 4: J. Geerling, Power Consumption Benchmarks, Raspberry Pi Dramble (pidramble.com)",
        ),
        radio_watts=_WIRE,
        idle_watts=Figure(
            2.7, "idle: J. Geerling, Power Consumption Benchmarks, Raspberry Pi Dramble (pidramble.com)"
        ),
    ),
    "jetson": Hardware(
        about="NVIDIA Jetson Orin Nano 8GB, its GPU at 15 W, on Ethernet",
        peak_flops=Figure(
            1.28e12,
            "1024 CUDA cores x 625 MHz (NVIDIA, Jetson Orin Nano Series data sheet) x 2 FLOP per cycle",
        ),
        over_peak=_OVER_PEAK,
        bandwidth=Figure(1e9, "Gigabit Ethernet (NVIDIA, Jetson Orin Nano Series data sheet)"),
        compute_watts=Figure(15.0, "power mode of the module (NVIDIA, Jetson Orin Nano Series data sheet)"),
        radio_watts=_WIRE,
        idle_watts=Figure(5.0, "below the lowest power mode of the module, 7 W", True),
    ),
    "rtx4090": Hardware(
        about="NVIDIA GeForce RTX 4090, the card alone, in a machine on Ethernet",
        peak_flops=Figure(
            82.6e12,
            "16384 CUDA cores x 2.52 GHz x 2 FLOP per cycle (NVIDIA, Ada GPU Architecture whitepaper)",
        ),
        over_peak=Figure(5.0, _PAPER),
        bandwidth=Figure(1e9, f"{_PAPER}: Gigabit Ethernet"),
        compute_watts=Figure(450.0, "total graphics power (NVIDIA, Ada GPU Architecture whitepaper)"),
        radio_watts=Figure(1.0, _PAPER),
        idle_watts=Figure(20.0, "a card that drives no screen", True),
    ),
}
assert set(HARDWARE) == set(get_args(Name))
