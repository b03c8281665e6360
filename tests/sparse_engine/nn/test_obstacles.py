"""What stays dense, and why: nothing is replaced whose replacement would compute something else."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune, spectral_norm

import sparse_engine as se
from sparse_engine.nn import SparseLinear
from sparse_engine.nn.bridge import prunable


def two(change):
    """Two linear layers, after `change(first, second)`."""
    net = nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 12))
    change(*net)
    return net


class Standardised(nn.Conv2d):
    def forward(self, x):
        w = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, w, self.bias)


class Bent(nn.Conv2d):
    def _conv_forward(self, x, weight, bias):
        return super()._conv_forward(x, weight.abs(), bias)


def with_forward(layer, _):
    layer.forward = lambda x: F.linear(x, layer.weight.abs(), layer.bias)


def tie(first, second):
    second.weight = first.weight


def tie_biases(first, second):
    second.bias = first.bias


CASES = {
    "weight_norm": (two(lambda a, b: parametrizations.weight_norm(a)), "0", "computed (WeightNorm)"),
    "spectral_norm": (two(lambda a, b: spectral_norm(a)), "0", "its weight is computed"),
    "own forward": (
        nn.Sequential(Standardised(3, 4, 3), nn.Conv2d(4, 4, 1)),
        "0",
        "Standardised has a forward",
    ),
    "own conv forward": (
        nn.Sequential(Bent(3, 4, 3), nn.Conv2d(4, 4, 1)),
        "0",
        "Bent has a forward of its own",
    ),
    "forward of an instance": (two(with_forward), "0", "forward of its own"),
    "own tensors": (two(lambda a, b: a.register_buffer("s", torch.ones(1))), "0", "tensors of its own"),
    "tied": (two(tie), "0", "its weight is shared with 1.weight"),
    "tied, other": (two(tie), "1", "its weight is shared with 0.weight"),
    "tied biases": (two(tie_biases), "1", "its bias is shared with 0.bias"),
    "depthwise": (
        nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 9, 3)),
        "0",
        "grouped convolution",
    ),
    "1-d": (nn.Sequential(nn.Conv1d(4, 4, 3)), "0", "no sparse kernel for Conv1d"),
    "3-d": (nn.Sequential(nn.Conv3d(2, 2, 3)), "0", "no sparse kernel for Conv3d"),
    "transposed": (nn.Sequential(nn.ConvTranspose2d(4, 4, 3)), "0", "no sparse kernel for ConvTranspose2d"),
    "bilinear": (nn.ModuleDict({"0": nn.Bilinear(3, 4, 5)}), "0", "no sparse kernel for Bilinear"),
    "recurrent": (nn.ModuleDict({"0": nn.GRU(3, 4)}), "0", "no sparse kernel for GRU"),
    "embedding": (nn.Sequential(nn.Embedding(3, 4)), "0", "no sparse kernel for Embedding"),
    "empty": (nn.Sequential(nn.utils.skip_init(nn.Linear, 4, 0)), "0", "has no entries"),
    "in attention": (
        nn.ModuleDict({"0": nn.MultiheadAttention(8, 2)}),
        "0.out_proj",
        "nn.MultiheadAttention '0' reads its weight as a matrix",
    ),
}


@pytest.mark.filterwarnings("ignore:density 0.5 covers")
@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_sparse_stays_the_users_own_module_and_says_why(name):
    net, path, why = CASES[name]
    sparse = se.sparsify(copy.deepcopy(net), density=0.5)
    assert type(sparse.get_submodule(path)) is type(net.get_submodule(path)) or name == "weight_norm"
    row = {row.name: row for row in se.report(sparse)}[path]
    assert row.kind == "torch" and why in row.why
    assert f"{path}.weight" not in prunable(net)  # what is not sparse in a network is not pruned in its state


@pytest.mark.parametrize("name", ["weight_norm", "spectral_norm", "forward of an instance", "tied"])
def test_computed_and_tied_weights_compute_the_same_afterwards(name):
    net = CASES[name][0].eval()
    x = torch.randn(5, 12, generator=torch.Generator().manual_seed(0))
    chosen = {"masks": {}} if name.startswith("tied") else {"masks": {"1.weight": torch.ones(12, 12) > 0}}
    torch.testing.assert_close(se.sparsify(copy.deepcopy(net), **chosen)(x), net(x), rtol=1e-4, atol=1e-5)


def test_tied_weights_stay_tied():
    class Language(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.mix, self.out = (
                nn.Embedding(30, 8),
                nn.Linear(8, 8),
                nn.Linear(8, 30, bias=False),
            )
            self.out.weight = self.words.weight

        def forward(self, x):
            return self.out(self.mix(self.words(x)))

    with pytest.warns(UserWarning, match="covers 21.1% of the weights"):
        sparse = se.sparsify(Language(), density=0.5)
    assert sparse.out.weight is sparse.words.weight and isinstance(sparse.mix, SparseLinear)
    found = se.report(sparse)
    assert [(row.name, row.weights) for row in found] == [("words", 240), ("mix", 64), ("out", 0)]
    assert "shared with out.weight" in found[0].why and "shared with words.weight" in found[2].why
    assert found.weights == sum(p.numel() for p in Language().parameters())


def test_a_layer_that_serves_twice_still_does():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(6, 6)
            self.again = nn.ModuleList([self.first])

        def forward(self, x):
            return self.again[0](self.first(x))

    torch.manual_seed(0)
    sparse = se.sparsify(Twice(), density=0.4)
    dense = se.to_dense(sparse)
    assert sparse.first is sparse.again[0] and dense.first is dense.again[0]
    x = torch.randn(3, 6)
    torch.testing.assert_close(sparse(x), dense(x), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="tied ones"):
        se.compress(sparse)


def test_frozen_layers_and_hooks_stay():
    net, seen = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)), []
    net[0].requires_grad_(False)
    net[1].register_forward_hook(lambda module, args, output: seen.append(type(module).__name__))
    sparse = se.sparsify(net, density=0.4)
    for one in (sparse, copy.deepcopy(sparse), se.to_dense(sparse)):
        one(torch.ones(1, 6))
        assert [p.requires_grad for p in one.parameters()] == [False, False, True, True]
    assert seen == ["SparseLinear", "SparseLinear", "Linear"]


def test_what_users_ask_a_layer_about_is_still_there():
    conv, linear = nn.Conv2d(3, 5, (3, 1), stride=2, padding=(1, 0), dilation=(2, 1)), nn.Linear(4, 6)
    names = ["in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups"]
    names = {conv: [*names, "padding_mode"], linear: ["in_features", "out_features"]}
    for layer, asked in names.items():
        sparse = se.sparsify(layer, density=0.5)
        assert all(getattr(sparse, name) == getattr(layer, name) for name in asked)


class Reads(nn.Module):
    """Uses the weight of `inner` itself, by `how`."""

    def __init__(self, how):
        super().__init__()
        self.inner, self.outer, self.how = nn.Linear(8, 8), nn.Linear(8, 8), how

    def forward(self, x):
        return self.outer(self.how(x, self.inner))


@pytest.mark.parametrize(
    "how",
    [
        lambda x, layer: F.linear(x, layer.weight, layer.bias),
        lambda x, layer: x @ layer.weight.T,
        lambda x, layer: x @ layer.weight.transpose(0, 1),
        lambda x, layer: torch.einsum("ni,oi->no", x, layer.weight),
        lambda x, layer: torch.addmm(layer.bias, x, layer.weight),
    ],
)
@pytest.mark.filterwarnings("ignore:The use of `x.T`")
@pytest.mark.parametrize(
    "density", [0.5, 0.125]
)  # 0.125: 8 values, a vector that F.linear takes without a word
def test_reading_the_weight_of_a_sparse_layer_names_the_layer_and_the_way_out(how, density):
    net, x = Reads(how), torch.randn(3, 8)
    with pytest.raises(ValueError, match=r"inner\.weight .*exempt=\['inner.weight'\]"):
        se.sparsify(net, density=density, distribution="uniform")(x)
    sparse = se.sparsify(net, density=density, exempt=["inner.weight"])
    torch.testing.assert_close(sparse(x), se.to_dense(sparse)(x), rtol=1e-4, atol=1e-5)


def test_other_errors_of_a_network_are_its_own():
    with pytest.raises(RuntimeError, match="size of tensor a"):
        se.sparsify(Reads(lambda x, layer: x + torch.ones(3, 5)), density=0.5)(torch.ones(3, 8))


def test_weights_that_a_hook_computes_are_refused_with_the_way_out():
    net = two(lambda a, b: prune.random_unstructured(b, "weight", 0.5))
    with pytest.raises(
        ValueError, match=r"in \['1'\]: make them parameters first .torch.nn.utils.prune.remove"
    ):
        se.sparsify(net, density=0.5)
    kept = net[1].weight_mask.bool()
    prune.remove(net[1], "weight")
    assert torch.equal(se.masks(se.sparsify(net, masks={"1.weight": kept}))["1.weight"], kept)


def test_lazy_scripted_and_sparse_networks_are_refused():
    scripted = torch.jit.ScriptModule()
    with pytest.raises(ValueError, match=r"scripted modules \['1'\]"):
        se.sparsify(nn.Sequential(nn.Linear(4, 4), scripted), density=0.5)
    with pytest.raises(ValueError, match=r"lazy layers \['1'\]: run a batch through it first"):
        se.sparsify(nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(3)), density=0.5)
    sparse = se.sparsify(nn.Sequential(nn.Linear(4, 4)), density=0.5)
    with pytest.raises(ValueError, match=r"sparse already .*give se.to_dense\(net\)"):
        se.sparsify(sparse, density=0.2)


def test_masks_of_what_stays_dense_are_refused_with_the_reason():
    net = nn.ModuleDict({"a": nn.MultiheadAttention(8, 2)})
    with pytest.raises(ValueError, match="a.out_proj.weight.*reads its weight as a matrix"):
        se.sparsify(net, masks={"a.out_proj.weight": torch.ones(8, 8) > 0})
    se.sparsify(net, masks={}, exempt=["a.out_proj.weight"])  # dense anyway: no mistake


def test_density_0_is_refused_and_layers_that_get_nothing_are_named():
    net = nn.Sequential(nn.Linear(30, 30), nn.Linear(30, 2), nn.Linear(2, 1))
    for density in (0, 0.0, -0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="expected a density above 0"):
            se.sparsify(net, density=density)
    with pytest.warns(
        UserWarning, match="density 0.01 stores nothing of 1.weight, 2.weight: .*exempt"
    ) as found:
        sparse = se.sparsify(net, density=0.01, distribution="uniform")
    assert len(found) == 1
    assert [row.why.startswith("stores nothing") for row in se.report(sparse)] == [False, True, True]


def test_a_density_that_covers_few_weights_is_said():
    net = nn.ModuleDict({"rnn": nn.LSTM(16, 16), "fc": nn.Linear(16, 16)})
    with pytest.warns(
        UserWarning, match="density 0.1 covers 11.1% of the weights.* rnn .2,048.: no sparse kernel"
    ):
        se.sparsify(net, density=0.1)


@pytest.mark.filterwarnings("error")
def test_no_word_where_most_is_sparse_or_exempt_by_choice():
    net = nn.ModuleDict({"rnn": nn.LSTM(4, 4), "fc": nn.Linear(64, 64), "last": nn.Linear(64, 640)})
    se.sparsify(net, density=0.1)
    se.sparsify(net, density=0.1, exempt="last*")
    se.sparsify(nn.ModuleDict({"rnn": nn.LSTM(4, 4)}), masks={})  # no density was asked for
