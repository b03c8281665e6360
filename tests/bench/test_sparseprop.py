"""SparseProp as a rival, with a stand-in for it: used and checked where it is installed, else no row."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sparsefl.bench import layers, sparseprop
from sparsefl.bench.timing import Timing


class SparseLayer(nn.Module):
    """Stored weights in row-major order, under the names of SparseProp's modules."""

    def __init__(self, dense_weight):
        super().__init__()
        self.mask = dense_weight != 0
        self.W_val = nn.Parameter(dense_weight[self.mask])

    @property
    def weight(self):
        return self.W_val

    def dense(self):
        return torch.zeros(self.mask.shape).masked_scatter(self.mask, self.W_val)


class SparseLinear(SparseLayer):
    def forward(self, x):
        assert x.is_contiguous()
        return x @ self.dense().t()


class SparseConv2d(SparseLayer):
    wrong_by = 1.0

    def __init__(self, dense_weight, bias=None, padding=0, stride=1, vectorizing_over_on=False):
        super().__init__(dense_weight)
        self.how = {"padding": padding, "stride": stride}
        self.over_width = vectorizing_over_on

    def forward(self, x):
        assert (x if self.over_width else x.permute(1, 2, 3, 0)).is_contiguous()
        return F.conv2d(x, self.wrong_by * self.dense(), **self.how)


@pytest.fixture
def threads(monkeypatch):
    """(file, number) of every time that a library's threads were set."""
    calls, before = [], torch.get_num_threads()

    def load(file):
        return SimpleNamespace(omp_set_num_threads=lambda number: calls.append((file, number)))

    monkeypatch.setattr(sparseprop.ctypes, "CDLL", load)
    yield calls
    torch.set_num_threads(before)


@pytest.fixture
def library(monkeypatch, threads):
    """A fresh stand-in: what a test changes on its classes is gone afterwards."""
    package, modules, backend = map(ModuleType, ("sparseprop", "sparseprop.modules", "backend"))
    modules.SparseConv2d, modules.SparseLinear = type("Conv", (SparseConv2d,), {}), SparseLinear
    backend.__file__ = "backend.so"
    package.modules, package.backend = modules, backend
    monkeypatch.setitem(sys.modules, "sparseprop", package)
    monkeypatch.setitem(sys.modules, "sparseprop.modules", modules)
    return modules


def layer(*, stride=1, kernel=3):
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(6, 4, kernel, kernel, generator=draw)
    weight *= torch.rand(weight.shape, generator=draw) < 0.5
    images = torch.randn(3, 4, 8, 8, generator=draw)
    gradient = torch.randn(3, 6, 8 // stride, 8 // stride, generator=draw)
    return (weight, images, gradient), {"stride": stride, "padding": kernel // 2}


def test_rows_and_summary(library, monkeypatch):
    small = (layers.Shape("conv3x3", 8, 8, 6), layers.Shape("linear", 40, 30, 1, 1))
    monkeypatch.setattr(layers, "SHAPES", small)
    rows = list(layers.run((8,), (0.5,), threads=1, repeats=1, family=None))
    theirs = {
        family: [row["times_ours"] for row in rows if row["family"] == family and "Prop" in row["name"]]
        for family in ("conv3x3", "linear")
    }
    summary = layers.summarise(rows)
    for family, times in theirs.items():
        cell = summary[f"{family}, batch 8"]["0.5"]
        assert cell["vs_sparseprop"] == pytest.approx(min(times))
        dense = [row for row in rows if row["family"] == family and row["name"].startswith("torch")]
        dense = [row["times_ours"] for row in dense if "CSR" not in row["name"]]
        assert cell["vs_dense"] == pytest.approx(min(dense))


def test_no_rows_where_it_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "sparseprop", None)
    tensors, how = layer()
    assert sparseprop.conv(*tensors, **how) == {}
    assert sparseprop.linear(torch.ones(2, 3), torch.ones(4, 3), torch.ones(4, 2)) == {}


def test_installed_but_not_compiled_is_an_error(library, monkeypatch, tmp_path):
    (tmp_path / "sparseprop").mkdir()
    (tmp_path / "sparseprop" / "__init__.py").write_text("import backend_that_was_not_built\n")
    for name in ("sparseprop", "sparseprop.modules"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    tensors, how = layer()
    with pytest.raises(ModuleNotFoundError, match="backend_that_was_not_built"):
        sparseprop.conv(*tensors, **how)


def test_the_kernel_over_the_width_runs_with_stride_1_only(library, monkeypatch):
    monkeypatch.setattr(sparseprop, "_fast", lambda steps: steps)
    for stride, names in (
        (1, {"SparseProp over batch", "SparseProp over width"}),
        (2, {"SparseProp over batch"}),
    ):
        tensors, how = layer(stride=stride)
        assert set(sparseprop.conv(*tensors, **how)) == names


@pytest.mark.parametrize(
    ("batch", "width", "kept"),
    [(2.0, 2.9, {"batch", "width"}), (2.0, 3.1, {"batch"}), (3.1, 2.0, {"width"})],
)
def test_a_much_slower_kernel_gets_no_row(library, monkeypatch, batch, width, kept):
    seconds = {"SparseProp over batch": batch, "SparseProp over width": width}
    monkeypatch.setattr(
        sparseprop, "take_turns", lambda steps, **_: {name: Timing((seconds[name], 9.0)) for name in steps}
    )
    tensors, how = layer()
    assert set(sparseprop.conv(*tensors, **how)) == {f"SparseProp over {name}" for name in kept}


def test_a_wrong_convolution_gets_no_time(library):
    library.SparseConv2d.wrong_by = 1.001
    tensors, how = layer()
    with pytest.raises(AssertionError, match=r"SparseProp over .*: y is off by 0.001"):
        sparseprop.conv(*tensors, **how)


@pytest.mark.parametrize(("what", "which"), [("dx", 1), ("dv", 2)])
def test_a_wrong_gradient_gets_no_time(library, monkeypatch, what, which):
    step = sparseprop._step

    def spoilt(*arguments):
        run = step(*arguments)
        return lambda: tuple(t + 0.5 * (i == which) for i, t in enumerate(run()))

    monkeypatch.setattr(sparseprop, "_step", spoilt)
    tensors, how = layer()
    with pytest.raises(AssertionError, match=f"{what} is off"):
        sparseprop.conv(*tensors, **how)
    with pytest.raises(AssertionError, match=f"SparseProp: {what} is off"):
        sparseprop.linear(*(torch.randn(size) for size in ((2, 3), (4, 3), (4, 2))))


def test_the_linear_layer_gets_contiguous_tensors(library):
    weight, x, dy = (torch.randn(size).t() for size in ((3, 2), (3, 4), (2, 4)))
    assert set(sparseprop.linear(weight, x, dy)) == {"SparseProp"}


@pytest.mark.parametrize("number", [1, 2])
def test_it_runs_on_as_many_threads_as_torch(library, threads, number):
    torch.set_num_threads(number)
    tensors, how = layer()
    sparseprop.conv(*tensors, **how)
    assert threads == [("backend.so", number)]
