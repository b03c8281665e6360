"""Capture: what is a program, and in which words the rest is refused. What is refused still trains."""

import pytest
import torch
import torch.nn.functional as F
from programs import MODELS, ODD, Net, made
from torch import nn
from torch.nn.utils import parametrizations

import sparse_engine as se
from sparse_engine.program.capture import NotCaptured, capture
from sparse_engine.program.steps import Relu


def _conv():
    return nn.Conv2d(3, 4, 3, padding=1)


def _fc():
    return nn.Linear(4 * 36, 5)


def _net(run, **layers):
    return lambda: Net(run, **{"a": _conv(), "fc": _fc()} | layers)


def _branch_on_values(net, x):
    h = net.a(x)
    return net.fc((h if h.sum() > 0 else -h).flatten(1))


def _written_and_read(net, x):
    h = net.a(x)
    y = F.relu(h, inplace=True)
    return net.fc((y + h).flatten(1))


def _written_through_a_view(net, x):
    h = net.a(x)
    y = F.relu(h.flatten(1), inplace=True)
    return net.fc(y) + net.fc2(h.flatten(1))


def _written_through_its_result(net, x):
    h = net.a(x)
    y = net.relu(h)
    y += net.b(x)
    return net.fc(net.same(y).flatten(1) + net.late(h))


def _hooked():
    net = nn.Sequential(_conv(), nn.Flatten(), _fc())
    net[0].register_forward_hook(lambda *_: None)
    return net


def _frozen():
    net = nn.Sequential(_conv(), nn.Flatten(), _fc())
    net[0].bias.requires_grad_(False)
    return net


def _parametrized():
    return nn.Sequential(parametrizations.weight_norm(_conv()), nn.Flatten(), _fc())


def _tied():
    net = nn.Sequential(_conv(), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1))
    net.extend([nn.Flatten(), _fc()])
    net[2].weight = net[1].weight
    return net


class _InTraining(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.fc = _conv(), _fc()

    def forward(self, x):
        h = self.a(x)
        return self.fc((F.relu(h) if self.training else h).flatten(1))


class _Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.fc = _conv(), _fc()

    def forward(self, x, scale=None):
        return self.fc(self.a(x).flatten(1))


REFUSED = {
    "control flow on values": (_net(_branch_on_values), "torch.fx cannot trace it: TraceError"),
    "hooks": (_hooked, "0 has hooks"),
    "a stride per axis": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, stride=(1, 2)), nn.Flatten(), nn.Linear(32, 5)),
        "0 has a stride per axis",
    ),
    "padding by name": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding="same"), nn.Flatten(), _fc()),
        r"0 pads by 'same' \(zeros\)",
    ),
    "padding that is no zeros": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), nn.Flatten(), _fc()),
        r"0 pads by \(1, 1\) \(circular\)",
    ),
    "an unknown module": (
        lambda: nn.Sequential(_conv(), nn.GELU(), nn.Flatten(), _fc()),
        r"there is no step for GELU \(1\)",
    ),
    "an unknown function": (
        _net(lambda net, x: net.fc(torch.tanh(net.a(x)).flatten(1))),
        r"there is no step for tanh\(\)",
    ),
    "a function by keywords": (
        _net(lambda net, x: net.fc(torch.flatten(input=net.a(x), start_dim=1))),
        r"flatten\(\) takes its tensor by keyword",
    ),
    "a frozen parameter": (_frozen, "0.bias is frozen"),
    "a module called twice": (
        _net(lambda net, x: net.fc(net.b(net.b(net.a(x))).flatten(1)), b=nn.Conv2d(4, 4, 3, padding=1)),
        "b is called twice",
    ),
    "a dropout called twice": (
        _net(lambda net, x: net.fc(net.drop(net.drop(net.a(x))).flatten(1)), drop=nn.Dropout(0.2)),
        "drop is called twice",
    ),
    "a dropout that is no module": (
        _net(lambda net, x: net.fc(F.dropout(net.a(x), 0.2, training=net.training).flatten(1))),
        r"there is no step for dropout\(\)",
    ),
    "parametrization": (_parametrized, "0 computes its parameters"),
    "an unused parameter": (
        _net(lambda net, x: net.fc(net.a(x).flatten(1)), b=_conv()),
        "b.weight has no part in forward",
    ),
    "a layer whose result nobody reads": (
        _net(lambda net, x: (net.b(x), net.fc(net.a(x).flatten(1)))[1], b=_conv()),
        "b does not lead to the result",
    ),
    "in place, and read again": (_net(_written_and_read), "relu writes over a, which is read again"),
    "in place through a view": (
        _net(_written_through_a_view, fc2=_fc()),
        "relu writes over flatten, which is read again",
    ),
    "in place through a result": (
        _net(
            _written_through_its_result,
            b=_conv(),
            relu=nn.ReLU(inplace=True),
            same=nn.Identity(),
            late=nn.Flatten(),
        ),
        "writes over .*, which is read again",
    ),
    "training does something else": (_InTraining, "its forward does something else in evaluation"),
    "more than one argument": (_Two, "its forward takes more than one argument"),
    "a sum with a number": (
        _net(lambda net, x: net.fc((net.a(x) + 1).flatten(1))),
        "1 is not computed from the batch",
    ),
    "a mean over other axes": (
        _net(lambda net, x: net.fc(net.a(x).mean(1)), fc=nn.Linear(6, 5)),
        "mean is a mean over other axes",
    ),
    "the batch is not the first axis": (
        _net(lambda net, x: net.fc(net.a(x).flatten(1).t().contiguous().t())),
        "t has no batch as its first axis",
    ),
    "log-softmax in the middle": (
        _net(lambda net, x: net.out(F.log_softmax(net.fc(net.a(x).flatten(1)), 1)), out=nn.Linear(5, 5)),
        "log_softmax is a log-softmax within the network",
    ),
    "images as a result": (_net(lambda net, x: net.a(x)), r"its result is not one tensor \[batch, classes\]"),
    "a parameter of its own": (
        lambda: Net(
            lambda net, x: net.fc(F.linear(x.flatten(1), net.b.weight)), b=nn.Linear(108, 144), fc=_fc()
        ),
        "its forward reads b.weight itself",
    ),
    "a single number": (
        _net(lambda net, x: net.fc(net.a(x).flatten(1)) + x.sum()),
        "sum_1 has no batch as its first axis",
    ),
    "several tensors": (
        _net(lambda net, x: net.fc(net.a(x).chunk(2, 1)[0].flatten(1)), fc=nn.Linear(72, 5)),
        "chunk gives several tensors",
    ),
    "a pool that rounds up": (
        lambda: nn.Sequential(_conv(), nn.MaxPool2d(4, ceil_mode=True), nn.Flatten(), nn.Linear(16, 5)),
        "1 is a max pool with dilation, ceil_mode or indices",
    ),
    "an average without its border": (
        lambda: nn.Sequential(_conv(), nn.AvgPool2d(3, 1, 1, count_include_pad=False), nn.Flatten(), _fc()),
        "1 is an average pool with ceil_mode or another divisor",
    ),
    "a group norm that divides by 0": (
        lambda: nn.Sequential(_conv(), nn.GroupNorm(2, 4, eps=0), nn.Flatten(), _fc()),
        "1 has eps 0",
    ),
}

NOT_SPARSE = (
    "in place through a result",  # autograd needs what was written over
    "a parameter of its own",  # a sparse weight is its layer's alone
)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_program_is_refused_in_words_and_still_trains(name):
    make, words = REFUSED[name]
    net = make()
    with pytest.raises(NotCaptured, match=words):
        capture(net, (3, 6, 6), se.compress(net).layout)
    if name in NOT_SPARSE:
        return
    sparse = se.sparsify(make(), density=0.5)
    sparse(torch.randn(2, 3, 6, 6)).square().sum().backward()
    assert any(p.grad is not None and p.grad.any() for p in sparse.parameters())


def test_tied_weights_have_no_model():
    with pytest.raises(ValueError, match="got tied ones"):
        se.compile(_tied(), torch.zeros(2, 3, 6, 6))


def test_samples_that_do_not_fit_are_refused():
    net = nn.Sequential(_conv(), nn.Flatten(), _fc())
    with pytest.raises(NotCaptured, match=r"it cannot take samples \(3, 7, 7\): RuntimeError"):
        capture(net, (3, 7, 7), se.compress(net).layout)


def test_capture_leaves_the_network_as_it_was():
    net = nn.Sequential(_conv(), nn.BatchNorm2d(4), nn.Flatten(), _fc()).eval()
    before = {name: x.clone() for name, x in net.state_dict().items()}
    capture(net, (3, 6, 6), se.compress(net).layout)
    assert not net.training and not net[1].training
    assert all(torch.equal(x, before[name]) for name, x in net.state_dict().items())


@pytest.mark.parametrize("name", [*ODD, *MODELS])
def test_every_parameter_has_one_place_and_all_values_are_made_before_they_are_read(name):
    graph, model = made(name)
    known, weights = {0}, []
    for step in graph.steps:
        assert known.issuperset(step.inputs) and step.y not in known
        known.add(step.y)
        weights += [step.weight.segment] if hasattr(step, "weight") else []
    weights = [segment for segment in weights if segment is not None]  # those of groups are not pruned
    assert sorted(weights) == list(range(len(model.layout.names)))
    taken = [i for first, length in graph.trained for i in range(first, first + length)]
    assert len(taken) == len(set(taken)) and set(taken) <= set(range(len(model.rest)))
    text = str(graph)
    assert all(step.name in text for step in graph.steps)


def test_relu_goes_into_the_step_before_it_or_past_a_pool():
    graph, _ = made("pools")
    kinds = [(type(step).__name__, getattr(step, "relu", None)) for step in graph.steps]
    assert kinds[:4] == [("Conv", False), ("MaxPool", True), ("Conv", False), ("AveragePool", None)]
    assert ("Relu", None) in kinds  # an average pool takes none
    shared, _ = made("shared gradients")
    assert sum(isinstance(step, Relu) for step in shared.steps) == 1  # of a value that others read
