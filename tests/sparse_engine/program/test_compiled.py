"""`se.compile`: what users without `fl` see."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sparse_engine as se
from sparsefl.kernels import native

pytestmark = pytest.mark.skipif(not native.built(), reason="the native kernels are not built")


def _net(seed=0):
    torch.manual_seed(seed)
    conv, norm, fc = nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.Linear(216, 5)
    return se.sparsify(nn.Sequential(conv, norm, nn.ReLU(), nn.Flatten(), fc), density=0.4)


def _data(n=37):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 1, 8, 8, generator=generator)
    return list(zip(x.split(10), torch.randint(0, 5, (n,), generator=generator).split(10), strict=True))


@pytest.mark.parametrize(
    "how", [{}, {"momentum": 0.9, "weight_decay": 0.01, "max_norm": 0.5}], ids=["plain", "all"]
)
def test_training_is_that_of_autograd(how):
    ours, theirs, data = _net(), _net(), _data()
    program, sgd = se.compile(ours, data[0][0]), se.SparseSGD(theirs, 0.1, **how)
    for _ in range(2):  # momentum lasts from call to call
        loss, total = program.train(data, lr=0.1, **how), 0.0
        for x, y in data:
            sgd.zero_grad()
            here = F.cross_entropy(theirs(x), y)
            here.backward()
            sgd.step()
            total += here.item() * len(y)
        assert loss == pytest.approx(total / 37, rel=1e-5)
    for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6), name
    right = sum(int((theirs.eval()(x).argmax(1) == y).sum()) for x, y in data)
    assert program.evaluate(data) == right / 37


def test_a_failed_training_leaves_the_network_as_it_was():
    net, data = _net(), _data()
    program = se.compile(net, data[0][0])
    program.train(data, lr=0.1, momentum=0.9)
    before = {name: x.clone() for name, x in net.state_dict().items()}
    data[2][0][:] = float("inf")
    with pytest.raises(FloatingPointError, match="expected a finite loss, got nan in batch 2"):
        program.train(data, lr=0.1, momentum=0.9)
    assert all(torch.equal(x, before[name]) for name, x in net.state_dict().items())
    other = _net()
    again = se.compile(other, data[0][0])
    clean = _data()
    again.train(clean, lr=0.1, momentum=0.9)
    for one in (program, again):  # also its momentum
        one.train(clean, lr=0.1, momentum=0.9)
    assert torch.equal(program.model.values, again.model.values)


def test_reload_takes_over_other_weights():
    net, data = _net(), _data()
    program = se.compile(net, data[0][0])
    se.load(net, se.compress(_net(seed=3)))
    program.reload()
    other = se.compile(_net(seed=3), data[0][0])
    assert program.evaluate(data) == other.evaluate(data)
    assert torch.equal(program.model.values, other.model.values)


def test_inputs_that_do_not_lie_one_after_another():
    (x, y), *_ = _data()
    programs = [se.compile(_net(), x) for _ in range(2)]
    losses = [
        program.train([(given, y)], lr=0.1)
        for program, given in zip(programs, (x, x.transpose(2, 3).contiguous().transpose(2, 3)), strict=True)
    ]
    assert losses[0] == losses[1]


def test_wrong_batches_are_refused():
    (x, y), *_ = _data()
    program = se.compile(_net(), x)
    for wrong in ((x[:, :, :7], y), (x, y[:-1]), (x[:0], y[:0])):
        with pytest.raises(ValueError, match=r"expected x \[n, 1, 8, 8\] and n labels"):
            program.train([wrong], lr=0.1)
    for labels in (y + 5, y - 9):
        with pytest.raises(ValueError, match="expected labels from 0 to 4"):
            program.evaluate([(x, labels)])
    with pytest.raises(ValueError, match=r"expected a sample batch \[n, ...\]"):
        se.compile(_net(), x[0, 0, 0])
    with pytest.raises(se.NotCaptured, match="GELU"):
        se.compile(nn.Sequential(nn.Linear(4, 3), nn.GELU()), torch.zeros(2, 4))


def test_it_prints_layers_kernels_and_memory():
    text = str(se.compile(_net(), torch.zeros(10, 1, 8, 8)))
    for words in ("samples 1x8x8", "conv 3x3 1 > 6", "batch norm, relu", "linear 216 > 5", "native steps"):
        assert words in text
    assert "workspace for 16 samples" in text
