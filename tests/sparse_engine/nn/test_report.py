"""se.report: every weight has a row, totals add up, FLOP are those of count_flops."""

import pytest
import torch
from torch import nn

import sparse_engine as se


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 4, stride=4)
        self.place = nn.Parameter(torch.zeros(1, 16, 8))
        self.scale = nn.Parameter(torch.ones(8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.rnn = nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2) + self.place
        x = self.norm(x + self.scale * self.attention(x, x, x)[0])
        return self.head(self.rnn(x)[0][:, -1])


@pytest.fixture
def sparse():
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="covers"):
        return se.sparsify(Mixed(), density=0.25)


def test_every_weight_has_a_row_and_a_reason(sparse):
    found = se.report(sparse)
    assert [(row.name, row.kind) for row in found] == [
        ("place", "torch"),
        ("patch", "sparse"),
        ("attention", "torch"),
        ("attention.out_proj", "torch"),
        ("rnn", "torch"),
        ("head", "sparse"),
    ]
    assert found[0].why == "a parameter of Mixed itself"
    assert "LSTM" not in str(found) and "no sparse kernel for GRU" in str(found)
    assert all(row.why for row in found if row.kind != "sparse")


def test_totals_add_up_to_the_parameters(sparse):
    found = se.report(sparse)
    assert found.weights == sum(p.numel() for p in Mixed().parameters())
    assert found.stored == sum(p.numel() for p in sparse.parameters())
    assert found.sparse_weights == 3 * 8 * 16 + 80
    assert found.weights_share == found.sparse_weights / found.weights
    masks = se.masks(sparse).values()
    assert found.density == sum(int(m.sum()) for m in masks) / sum(m.numel() for m in masks)
    assert found.flops_share is None


def test_flops_by_row_are_those_of_the_whole(sparse):
    found, counted = se.report(sparse, (3, 16, 16)), se.count_flops(sparse, (3, 16, 16))
    known = [row.flops for row in found if row.flops is not None]
    assert sum(dense for dense, _ in known) == counted.dense_forward
    assert sum(now for _, now in known) == counted.sparse_forward
    rows = {row.name: row for row in found}
    assert rows["place"].flops is None and any("place" in line for line in found.totals)
    assert found.flops_share == (rows["patch"].flops[0] + rows["head"].flops[0]) / counted.dense_forward
    same = se.report(sparse, sample=torch.zeros(1, 3, 16, 16))
    assert list(same) == list(found)


def test_it_prints_as_a_table_with_totals_and_stays_a_sequence(sparse):
    found = se.report(sparse, (3, 16, 16))
    lines = str(found).splitlines()
    assert repr(found) == str(found)
    assert lines[0].split() == ["name", "module", "runs", "weights", "density", "FLOP", "why"]
    assert len(lines) == 1 + len(found) + 1 + len(found.totals)
    assert f"{found.weights_share:.1%} of {found.weights:,} weights are in 2 sparse layers" in found.totals[0]
    assert f"{found.flops_share:.1%} of" in found.totals[1]
    assert "FLOP" not in str(se.report(sparse)).splitlines()[0]
    assert len(found[1:3]) == 2 and found[-1].name == "head" and found[1] in found


def test_html_is_a_table_and_escapes_names():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module("<b>", nn.Linear(2, 2))

    html = se.report(Odd())._repr_html_()
    assert html.startswith("<table>") and "&lt;b&gt;" in html and "<b>" not in html
    assert html.count("<tr>") == 2


@pytest.mark.filterwarnings("ignore")  # torch moves quantisation to another package
def test_quantised_layers_are_listed():
    quantised = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(8, 4)), {nn.Linear})
    assert [(row.name, row.weights, row.why) for row in se.report(quantised)] == [
        ("0", 32, "its weight is quantised")
    ]


def test_a_network_that_was_never_sparsified_or_is_lazy():
    dense = se.report(nn.Sequential(nn.Linear(3, 4), nn.LazyLinear(2)))
    assert [(row.kind, row.why) for row in dense] == [
        ("dense", "not made sparse"),
        ("torch", "its shape is not known before a first batch"),
    ]
    assert "0.0% of 16 weights are in sparse layers" in str(dense)
    assert len(se.report(nn.ReLU())) == 0 and "0.0% of 0 weights" in str(se.report(nn.ReLU()))
    exempt = se.sparsify(nn.Sequential(nn.Linear(9, 9), nn.Linear(9, 9)), density=0.5, exempt=["0.weight"])
    assert se.report(exempt)[0].why == "exempt"


@pytest.mark.parametrize(
    ("net", "given", "text"),
    [
        (se.models.mlp(), {"input_shape": (64,)}, "Can train as a program of 2 steps (se.compile)."),
        (se.models.mlp(), {"sample": torch.randn(1, 64)}, "Can train as a program of 2 steps (se.compile)."),
        (
            nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6), nn.Linear(6, 3)),
            {"input_shape": [8]},
            "Runs layer by layer (no program: there is no step for LayerNorm (1)).",
        ),
        (
            nn.Bilinear(4, 5, 6),
            {"sample": (torch.randn(1, 4), torch.randn(1, 5))},
            "Runs layer by layer (no program: its forward takes more than one argument).",
        ),
    ],
)
def test_below_the_table_stands_whether_it_can_be_a_program(net, given, text):
    found = se.report(net, **given)
    assert found.program == text and str(found).splitlines()[-1] == text and text in found._repr_html_()


def test_a_sparse_network_is_asked_for_its_own_layers():
    net = se.sparsify(se.models.lenet5(), density=0.3)
    assert se.report(net, (1, 28, 28)).program == se.report(se.to_dense(net), (1, 28, 28)).program


def test_without_a_sample_nothing_is_said_of_programs():
    found = se.report(se.models.mlp())
    assert found.program is None and "program" not in str(found)
