"""One board as NVML knows it, found by its UUID: an index of NVML is not an index of CUDA.

nvidia-ml-py (`pip install 'sparsefl[energy]'`) reaches NVML, which comes with the driver.
"""

import importlib
import os
from typing import Any, NamedTuple

from fl.errors import NoMeter

_POWER_INSTANT = 186  # NVML_FI_DEV_POWER_INSTANT: nvmlDeviceGetPowerUsage is a mean over a second on Ada
_SM, _MEMORY = 1, 2  # clocks
_CORE = 0  # sensor
_THROTTLE = {  # clocks were lowered against what was asked for; the other reasons are no complaint
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}


class State(NamedTuple):
    """What stands beside joules; None: NVML does not say."""

    sm_mhz: float | None
    memory_mhz: float | None
    temperature_c: float | None
    throttled: tuple[str, ...] | None


class Power(NamedTuple):
    watts: float
    stamp: float  # seconds since 1970 at which the driver read it; 0: it does not say


def library() -> Any:
    """nvidia-ml-py with NVML loaded. NoMeter: one of them is missing."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        raise NoMeter(
            "the package nvidia-ml-py is not installed: pip install 'sparsefl[energy]' brings it"
        ) from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError_LibraryNotFound:
        raise NoMeter("the library libnvidia-ml.so.1 of the NVIDIA driver is not on this machine") from None
    except nvml.NVMLError as wrong:
        raise NoMeter(f"NVML does not start: {wrong}") from None
    return nvml


class Board:
    def __init__(self, nvml: Any, uuid: str) -> None:
        """NoMeter: NVML knows no such board."""
        self._nvml, self.uuid = nvml, uuid
        self.lost: type[Exception] = nvml.NVMLError
        try:
            self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        except nvml.NVMLError as wrong:
            raise NoMeter(f"NVML knows no board {uuid}: {wrong}") from None
        self.name = _text(self._maybe(nvml.nvmlDeviceGetName) or "board without a name")

    def joules(self) -> float | None:
        """Since the driver was loaded; None: the board has no such counter."""
        found = self._supported(self._nvml.nvmlDeviceGetTotalEnergyConsumption)
        return None if found is None else found / 1e3

    def power(self) -> Power | None:
        """Now; None: the board does not say."""
        found = self._supported(lambda handle: self._nvml.nvmlDeviceGetFieldValues(handle, [_POWER_INSTANT]))
        if found is None or found[0].nvmlReturn != self._nvml.NVML_SUCCESS:
            return None
        return Power(found[0].value.uiVal / 1e3, found[0].timestamp / 1e6)

    def state(self) -> State:
        nvml = self._nvml
        reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        bits = self._maybe(reasons or nvml.nvmlDeviceGetCurrentClocksThrottleReasons)
        return State(
            self._maybe(nvml.nvmlDeviceGetClockInfo, _SM),
            self._maybe(nvml.nvmlDeviceGetClockInfo, _MEMORY),
            self._maybe(nvml.nvmlDeviceGetTemperature, _CORE),
            None if bits is None else tuple(name for bit, name in _THROTTLE.items() if bits & bit),
        )

    def limit_w(self) -> float | None:
        """The power limit that holds."""
        found = self._maybe(self._nvml.nvmlDeviceGetEnforcedPowerLimit)
        return None if found is None else found / 1e3

    def others(self, ours: bool) -> int | None:
        """Processes beside this one that compute on the board; None: NVML does not say. `ours`: this one does
        too. In a container it has another number than NVML knows it by."""
        found = self._maybe(self._nvml.nvmlDeviceGetComputeRunningProcesses)
        if found is None:
            return None
        own = ours or os.getpid() in [process.pid for process in found]
        return max(len(found) - own, 0)

    def driver(self) -> str:
        try:
            return _text(self._nvml.nvmlSystemGetDriverVersion())
        except self._nvml.NVMLError:
            return "unknown"

    def _supported(self, ask: Any) -> Any:
        """What the board says; None: it cannot. Any other error is one."""
        try:
            return ask(self._handle)
        except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_FunctionNotFound):
            return None

    def _maybe(self, ask: Any, *more: int) -> Any:
        """What stands beside joules: no error in it ends a measurement."""
        try:
            return ask(self._handle, *more)
        except self._nvml.NVMLError:
            return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
