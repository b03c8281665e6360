"""The paper's volumes."""

import json

import pytest

from bench import __main__ as command
from bench import cost

ENTRIES = {"alexnet": 23_259_975 + 3 * 4097, "resnet18": 11_173_962, "vgg11": 9_277_284}


@pytest.mark.parametrize("printed", cost.PAPER, ids=lambda printed: printed.data)
def test_the_papers_column_is_reproduced(printed):
    """Dense volumes follow from the number of entries (VGG11's but for 0.2 %), sparse ones from the sparsity,
    which is printed with two digits: the one that a volume says rounds to it."""
    row = cost.counted(printed, ENTRIES[printed.model])
    rounding = 0.005 * row["printed"] / (1 - row["sparsity"]) if row["sparsity"] else 0.05
    allowed = 0.6 if row["data"] == "CIFAR100, dense" else rounding
    assert row["paper"] == pytest.approx(row["printed"], abs=allowed + 0.05)
    assert round(row["implied"], 2) == row["sparsity"]


def test_real_messages_stand_beside_it():
    whole, sparse = cost.run((cost.PAPER[6], cost.PAPER[8]))
    for row in (whole, sparse):
        assert row["real_bf16"] < row["real_packed"] < row["real"]
    assert whole["real"] == pytest.approx(whole["paper"], rel=1e-3)
    assert sparse["printed"] < sparse["real"] < 1.15 * sparse["printed"]  # the mask costs something


def test_the_command(tmp_path, capsys):
    path = tmp_path / "cost.json"
    assert command.main(["cost", "--quick", "--json", str(path)]) == 0
    assert json.loads(path.read_text())["summary"]["vgg11"]["0.73"]["printed"] == 94.8
    assert "| vgg11 |" in capsys.readouterr().out
