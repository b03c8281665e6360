"""The kernels that matter, each against its rival in the same run: `make bench-regress`."""

import pytest
import torch

from sparsefl.bench import clients, layers, models, ops
from sparsefl.bench.timing import take_turns
from sparsefl.kernels import use_threads

DENSITY = 0.2


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with use_threads(1):
        yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("op", ["masked_sgd_", "masked_average", "pqi", "select", "pack", "unpack"])
def test_operation(op, held):
    ((_, _, contestants),) = ops.contests(DENSITY, op)

    def ratio():
        timings = take_turns(contestants, repeats=5)
        ours = timings.pop("sparsefl").best
        return min(rival.best for rival in timings.values()) / ours

    held(f"{op}, density {DENSITY}", ratio)


@pytest.mark.parametrize("family", ["conv3x3", "conv3x3 stride 2", "linear"])
def test_layer(family, held):
    def ratio():
        rows = list(layers.run((32,), (0.8,), threads=1, repeats=3, family=family))
        return layers.summarise(rows)[f"{family}, batch 32"]["0.8"]["vs_dense"]

    held(f"{family}, batch 32, density {DENSITY}", ratio)


def test_training_step(held):
    def ratio():
        how = {"threads": 1, "repeats": 3, "memory": False, "compiled": False}
        rows = list(models.run(("resnet18",), (32,), (DENSITY,), **how))
        return models.summarise(rows)["resnet18, batch 32"][str(DENSITY)]["vs_dense"]

    held(f"training step of resnet18, batch 32, density {DENSITY}", ratio)


def test_client_round(held):
    def ratio():
        rows = list(clients.run(("lenet5",), (DENSITY,), repeats=3))
        return clients.summarise(rows)["lenet5"][str(DENSITY)]["vs_loop"]

    held(f"client-round of lenet5, density {DENSITY}", ratio)
