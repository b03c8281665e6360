"""The meter of boards, through the real nvidia-ml-py, against a library whose power follows a script.

nvidia-ml-py keeps its library for the life of a process: a process per case.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
UUID = "GPU-00000000-0000-0000-0000-00000000000{}"
pytest.importorskip("pynvml", reason="no nvidia-ml-py here: pip install 'sparsefl[energy]'")

CASE = """
import json, os, sys
from pathlib import Path
from fl.errors import NoMeter
from fl.run.meters import nvml
from virtual_time import VirtualTime

time = VirtualTime(Path(os.environ["NVML_STUB_CLOCK"]))
lengths = json.loads(sys.argv[1])
try:
    meter = nvml.opened(sys.argv[2:], time)
except NoMeter as why:
    print(json.dumps({"missing": str(why)}))
    sys.exit()
told = {"source": meter.source, "period": meter.period_s, "windows": [], "readings": []}
for length in lengths:
    meter.start()
    time.sleep(length)
    told["readings"].append(meter.stop())
    told["windows"].append([window._asdict() for window in meter.windows])
meter.close()
print(json.dumps(told))
"""


@pytest.fixture(scope="session")
def stub(tmp_path_factory):
    """The folder of the library."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc here to compile the stub of NVML")
    folder = tmp_path_factory.mktemp("nvml")
    library = folder / "libnvidia-ml.so.1"
    source = HERE / "nvml_stub.c"
    command = ["gcc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, source]
    subprocess.run([*map(str, command)], check=True)
    return folder


def ran(program, *arguments, folder=None, **variables):
    """What a process prints last, as JSON."""
    paths = os.pathsep.join(str(HERE.parents[3 - up]) for up in (0, 1))
    library = {"LD_LIBRARY_PATH": str(folder)} if folder else {}
    environment = os.environ | {"PYTHONPATH": paths} | library | variables
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def measured(stub, tmp_path):
    def run(script, *lengths, other="", boards=(1,), folder=stub):
        variables = {"NVML_STUB_1": script, "NVML_STUB_2": other, "NVML_STUB_CLOCK": str(tmp_path / "now")}
        return ran(CASE, json.dumps(lengths), *map(UUID.format, boards), folder=folder, **variables)

    return run


def test_constant_power(measured):
    told = measured("idle=300", 10, 0.25)
    (long,), (short,) = told["windows"]
    assert long["joules"] == pytest.approx(300 * long["seconds"], rel=0.001)
    assert long["seconds"] == pytest.approx(10, abs=0.11) and long["notes"] == []
    assert short["joules"] == pytest.approx(300 * short["seconds"], rel=0.02)  # 240 to 360 W without edges
    assert "Stub 1: fewer than 20 updates in the window" in short["notes"][0]
    assert told["period"] == pytest.approx(0.1, rel=0.02)
    assert "total-energy counter, updated every 100 ms: Stub 1 GPU-" in told["source"]
    assert "driver 580.00, limit 450 W" in told["source"]
    reading = told["readings"][0]
    assert reading["energy_gpu_j"] == long["joules"]
    beside = [reading[f"gpu_{what}"] for what in ("sm_mhz", "memory_mhz", "temperature_c", "throttled")]
    assert beside == [2520, 10501, 51, 0]


@pytest.mark.parametrize("counter", [1, 0])
def test_a_step_of_power(measured, counter):
    told = measured(f"idle=25,load=350,t0=4,t1=7,counter={counter}", 10)
    (window,) = told["windows"][0]
    assert window["joules"] == pytest.approx(25 * window["seconds"] + 325 * 3, rel=0.02)
    assert window["notes"] == []


def test_without_a_counter_power_is_integrated(measured):
    told = measured("idle=300,counter=0", 4)
    (window,) = told["windows"][0]
    assert window["joules"] == pytest.approx(300 * 4, rel=0.001)
    assert "instant power, integrated at 50 Hz (the board has no energy counter)" in told["source"]


def test_a_counter_that_stands_still_from_the_first_is_not_used(measured):
    told = measured("idle=300,stuck=0", 4)
    assert told["windows"][0][0]["joules"] == pytest.approx(300 * 4, rel=0.001)
    assert "integrated at 50 Hz (its energy counter stands still or goes back)" in told["source"]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("stuck=8", "Stub 1: the energy counter stands still"),
        ("reset=8", "Stub 1: the energy counter went back: was the driver loaded anew?"),
        ("lost=8", "Stub 1: NVML stopped answering: GPU is lost"),
    ],
)
def test_what_cannot_be_trusted_has_no_joules(measured, script, said):
    told = measured(f"idle=300,{script}", 3, 10, 4)
    first, wrong, after = (window[0] for window in told["windows"])
    assert first["joules"] == pytest.approx(300 * first["seconds"], rel=0.01) and first["notes"] == []
    assert wrong["joules"] is None and wrong["notes"] == [said]
    assert told["readings"][1]["energy_gpu_j"] is None
    assert (after["joules"] is None) == (not script.startswith("reset"))


def test_a_counter_that_disagrees_with_power_is_said(measured):
    told = measured("idle=300,scale=1.06", 10)
    assert told["windows"][0][0]["notes"][0].endswith("more than 5% apart")
    assert measured("idle=300,scale=1.04", 10)["windows"][0][0]["notes"] == []


def test_what_else_is_said(measured):
    told = measured("idle=300,reasons=100,others=2", 4)
    heat, shared = told["windows"][0][0]["notes"]
    assert heat == "Stub 1: clocks were lowered: power cap, heat (software), heat (hardware)"
    assert shared == "Stub 1: other processes compute on it too, and nobody can tell their joules from ours"
    assert told["readings"][0]["gpu_throttled"] == 1


def test_two_boards(measured):
    told = measured("idle=100", 4, other="idle=300", boards=(2, 1))
    two, one = told["windows"][0]
    assert two["joules"] == pytest.approx(300 * two["seconds"], rel=0.01)
    assert one["joules"] == pytest.approx(100 * one["seconds"], rel=0.01)
    assert told["readings"][0]["energy_gpu_j"] == two["joules"] + one["joules"]
    assert told["readings"][0]["gpu_temperature_c"] == 52


def test_nothing_is_supported(measured):
    told = measured("counter=0,power=0")
    assert told["missing"] == "Stub 1: the board has no energy counter, and NVML tells no instant power of it"


def test_a_board_that_is_lost_from_the_first(measured):
    assert measured("lost=-1")["missing"] == "NVML does not answer: GPU is lost"


def test_an_unknown_board(measured):
    assert measured("", boards=(7,))["missing"].startswith(f"NVML knows no board {UUID.format(7)}")


def test_no_library(measured, tmp_path):
    told = measured("", folder=tmp_path)
    assert told["missing"] == "the library libnvidia-ml.so.1 of the NVIDIA driver is not on this machine"


def test_the_command_names_the_source(stub):
    command = [sys.executable, "-m", "fl", "energy", "meters", "--gpu", UUID.format(2)]
    environment = os.environ | {"LD_LIBRARY_PATH": str(stub), "NVML_STUB_2": "counter=0,period=0.02"}
    done = subprocess.run(command, cwd=HERE.parents[3], env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    source = "instant power, integrated at 50 Hz (the board has no energy counter): Stub 2 GPU-"
    assert f"energy of GPU: NVML, {source}" in done.stdout


REORDERED = """
import json, os, time
from types import SimpleNamespace
import torch
from fl.run.meters import nvml

visible = os.environ["CUDA_VISIBLE_DEVICES"].split(",")  # as the driver of CUDA reads it
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: len(visible)
torch.cuda.get_device_properties = lambda i: SimpleNamespace(uuid=visible[i].removeprefix("GPU-"))
contexts, settled = [], []
torch.empty = lambda *size, device: contexts.append(device)
torch.cuda.synchronize = settled.append
meter = nvml.opened()
meter.start()
time.sleep(0.3)
meter.stop()
meter.close()
names = [one.board.name for one in meter.boards]
watts = [window.watts for window in meter.windows]
shared = ["other processes" in " ".join(window.notes) for window in meter.windows]
told = {"names": names, "watts": watts, "contexts": contexts, "settled": settled, "shared": shared}
print(json.dumps(told))
"""


def test_boards_are_those_of_torch_in_its_order(stub):
    """In real time, with the thread that polls."""
    scripts = {"NVML_STUB_1": "idle=100,period=0.02,others=2", "NVML_STUB_2": "idle=300,period=0.02,others=1"}
    visible = ",".join(map(UUID.format, (2, 1)))
    told = ran(REORDERED, folder=stub, CUDA_VISIBLE_DEVICES=visible, **scripts)
    assert told["names"] == ["Stub 2", "Stub 1"]
    assert told["watts"] == pytest.approx([300, 100], rel=0.4)  # a busy machine sees edges late
    assert told["contexts"] == ["cuda:0", "cuda:1"] and told["settled"] == [0, 1, 1, 0]
    assert told["shared"] == [False, True]  # the one process on the first is this one, by another number
