"""Peak memory of a training step: `python -m sparsefl.bench.peaks`, a process for each contestant."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import sparse_engine as se
from sparsefl.bench import models, networks
from sparsefl.kernels import use_threads


def peak_memory(
    name: str, batch: int, density: float, kinds: tuple[str, ...] = models.KINDS, precision: str = "fp32"
) -> dict[str, float]:
    """Peak resident bytes that three steps add to a process that has made the network, of each kind."""
    command = [sys.executable, "-m", "sparsefl.bench.peaks"]
    return {
        who: float(
            subprocess.run(
                [*command, who, name, str(batch), str(density), precision],
                capture_output=True, text=True, check=True,
            ).stdout
        )
        for who in kinds
    }  # fmt: skip


def _measure_peak(who: str, name: str, batch: str, density: str, number: str) -> None:
    classes, shape = models.known(name)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = networks.build(name, classes)
    if who != "dense":
        net = se.sparsify(net, density=float(density), precision=number)
    images, labels = torch.randn(int(batch), *shape), torch.randint(0, classes, (int(batch),))
    step = _steps(who, net, images, labels, number)
    Path("/proc/self/clear_refs").write_text("5")  # what making the network took does not count
    before = _status("VmRSS")
    with use_threads(1):
        for _ in range(3):
            step()
    print(_status("VmHWM") - before)


def _steps(who: str, net: nn.Module, images: Tensor, labels: Tensor, number: str) -> Callable[[], object]:
    if who == "program":
        return models.program_step(net, images, labels)[0]
    if who == "layers":
        return models.layers_step(net, images, labels)
    step = models.dense_step(net, images, labels, None)

    def half() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            step()

    return half if number == "bf16" else step


def _status(key: str) -> int:
    """Bytes, from the kernel's account of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(key + ":")).split()[1])


if __name__ == "__main__":
    _measure_peak(*sys.argv[1:])
