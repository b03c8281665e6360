"""Networks as people write them: sparse ones compute, train, report and are saved like their dense twins."""

import io

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sparse_engine as se


class Encoder(nn.Module):
    """A ViT by nn.TransformerEncoderLayer."""

    def __init__(self, batch_first=True, norm_first=False, nested=True, activation="gelu"):
        super().__init__()
        self.batch_first = batch_first
        self.patch = nn.Conv2d(3, 16, 4, stride=4)
        self.place = nn.Parameter(0.02 * torch.randn(1, 4, 16))
        layer = nn.TransformerEncoderLayer(
            16, 2, 32, dropout=0.0, batch_first=batch_first, norm_first=norm_first, activation=activation
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)
        self.head = nn.Linear(16, 5)

    def forward(self, x, pad=None, mask=None):
        x = self.patch(x).flatten(2).transpose(1, 2) + self.place
        x = self.encode(x, pad, mask)
        return self.head(x[:, 0])

    def encode(self, x, pad=None, mask=None):
        x = x if self.batch_first else x.transpose(0, 1)
        x = self.encoder(x, mask=mask, src_key_padding_mask=pad)
        return x if self.batch_first else x.transpose(0, 1)


class Attention(nn.Module):
    def __init__(self, width, heads=2):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class OwnAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch, self.norm, self.attention = nn.Conv2d(3, 16, 4, stride=4), nn.LayerNorm(16), Attention(16)
        self.token = nn.Parameter(torch.zeros(1, 1, 16))
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        return self.head((x + self.attention(self.norm(x)))[:, 0])


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.rnn = nn.Embedding(20, 12), nn.LSTM(12, 10, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(20, 5)

    def forward(self, x):
        return self.fc(self.rnn(self.words(x))[0][:, -1])


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.mix = (
            nn.Embedding(5, 12),
            nn.Sequential(nn.Linear(12, 30), nn.ReLU(), nn.Linear(30, 12)),
        )
        self.out = nn.Linear(12, 5, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x):
        return self.out(self.mix(self.words(x).mean(1)))


class Depthwise(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU6())
        self.deep = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8), nn.ReLU6())
        self.wide = nn.Sequential(nn.Conv2d(8, 16, 1), nn.BatchNorm2d(16), nn.Hardswish())
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.wide(self.deep(self.stem(x))).mean((2, 3)))


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch, self.norm = nn.Conv2d(3, 16, 4, stride=4), nn.LayerNorm(16)
        self.tokens = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
        self.channels = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return self.head((x + self.channels(self.norm(x))).mean(1))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.shortcut = nn.Conv2d(3, 8, 1)
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return self.fc(F.adaptive_avg_pool2d(F.relu(y + self.shortcut(x)), 1).flatten(1))


NETWORKS = {
    "ViT": (Encoder, {"place", "encoder.layers.0.self_attn", "encoder.layers.0.self_attn.out_proj"}),
    "ViT, own attention": (OwnAttention, {"token"}),
    "LSTM": (Text, {"words", "rnn"}),
    "tied": (Tied, {"words", "out"}),
    "depthwise": (Depthwise, {"deep.0"}),
    "mixer": (Mixer, set()),
    "residual": (Residual, {"shortcut"}),
}
pytestmark = [
    pytest.mark.filterwarnings("ignore:density .* covers"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),
    pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype"),
]


@pytest.fixture(params=NETWORKS)
def case(request):
    """The sparse network, a batch, labels, and the names that stay dense."""
    torch.manual_seed(3)
    make, dense = NETWORKS[request.param]
    words = make in (Text, Tied)
    x = torch.randint(0, 5, (6, 4)) if words else torch.randn(6, 3, 8, 8)
    return se.sparsify(make(), density=0.4), x, torch.randint(0, 5, (6,)), dense


def step(net, x, labels, masks=None):
    """One step of SGD: the loss and all gradients, packed ones on their mask."""
    opt = (
        se.SparseSGD(net, lr=0.05, momentum=0.9) if masks is None else torch.optim.SGD(net.parameters(), 0.05)
    )
    loss = F.cross_entropy(net(x), labels)
    loss.backward()
    found = {name: p.grad.clone() for name, p in net.named_parameters()}
    for name, mask in (masks or {}).items():
        net.get_parameter(name).grad.mul_(mask)
        found[name] = found[name][mask]
    opt.step()
    return loss.detach(), found


def test_results_gradients_and_a_step_are_those_of_the_dense_twin(case):
    sparse, x, labels, _ = case
    dense, masks = se.to_dense(sparse), se.masks(sparse)
    for training in (False, True):
        torch.testing.assert_close(sparse.train(training)(x), dense.train(training)(x), rtol=1e-5, atol=1e-5)
    (loss, ours), (expected, theirs) = step(sparse, x, labels), step(dense, x, labels, masks)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-4, atol=1e-5, msg=name)
    after = se.to_dense(sparse).state_dict()
    for name, w in dense.state_dict().items():
        torch.testing.assert_close(after[name], w, rtol=1e-4, atol=1e-5, msg=name)


def test_report_lists_everything(case):
    sparse, x, _, dense = case
    found = se.report(sparse, sample=x[:1])
    kinds = {row.name: row.kind for row in found}
    assert {name for name, kind in kinds.items() if kind != "sparse" and "layers.1" not in name} == dense
    assert all(row.why for row in found if row.kind != "sparse")
    assert found.weights == sum(p.numel() for p in se.to_dense(sparse).parameters())
    assert found.stored == sum(p.numel() for p in sparse.parameters())
    assert 0 < found.flops_share <= 1 and found.flops.sparse_forward < found.flops.dense_forward


def test_saved_networks_compute_the_same(case):
    sparse, x, labels, _ = case
    file = io.BytesIO()
    torch.save(sparse, file)
    file.seek(0)
    other = torch.load(file, weights_only=False)
    assert torch.equal(other.eval()(x), sparse.eval()(x))
    (loss, _), (expected, _) = step(other.train(), x, labels), step(sparse.train(), x, labels)
    assert torch.equal(loss, expected) and torch.equal(other(x), sparse(x))
    fresh = se.load(se.to_dense(sparse), sparse.state_dict())
    torch.testing.assert_close(fresh.eval()(x), sparse.eval()(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_transformer_encoders_on_every_path(batch_first, norm_first, nested, training):
    """torch's fast path reads weights of the layers: in the network, and called from outside."""
    torch.manual_seed(1)
    net = Encoder(batch_first, norm_first, nested, "relu").train(training)
    before = {name: vars(m).copy() for name, m in net.named_modules()}
    sparse = se.sparsify(net, density=0.4)
    dense = se.to_dense(sparse)
    images, x = torch.randn(3, 3, 8, 8), torch.randn(3, 4, 16)
    pad = torch.tensor([[False] * 4, [False, False, True, True], [False] * 3 + [True]])
    mask = torch.zeros(4, 4).masked_fill(torch.ones(4, 4).triu(1) > 0, -torch.inf)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            for how in ({}, {"mask": mask}, {"pad": pad}):
                torch.testing.assert_close(sparse(images, **how), dense(images, **how), rtol=1e-5, atol=1e-5)
                ours, theirs = sparse.encode(x, **how), dense.encode(x, **how)
                torch.testing.assert_close(ours[~pad], theirs[~pad], rtol=1e-4, atol=1e-5)
    for name in ("encoder", "encoder.layers.0"):  # the dense twin has its fast path back
        after = vars(dense.get_submodule(name))
        assert after.keys() == before[name].keys()
        for switch in ("use_nested_tensor", "activation_relu_or_gelu"):
            assert after.get(switch) == before[name].get(switch)


def test_compiled_and_autocast_networks_work_and_double_is_refused():
    torch.manual_seed(0)
    sparse, x = se.sparsify(Residual(), density=0.4), torch.randn(2, 3, 8, 8)
    assert torch.equal(torch.compile(sparse, backend="eager")(x), sparse(x))
    with torch.autocast("cpu", dtype=torch.bfloat16):  # the LSTM gives half precision to a sparse layer
        assert sparse(x).dtype == torch.float32
        assert se.sparsify(Text(), density=0.4)(torch.ones(2, 4, dtype=torch.long)).dtype == torch.float32
    with pytest.raises(ValueError, match="float64"):
        sparse.double()(x.double())
