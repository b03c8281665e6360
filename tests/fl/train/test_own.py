"""Networks of the user's own: what they are given, and what is said of those that cannot be used."""

import pytest
import torch
from own_code import NETS

from fl import config
from fl.config import ConfigError, code
from fl.data import from_arrays, load
from fl.train import network, own

DIGITS = load("digits")


@pytest.fixture(autouse=True)
def nets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(NETS)
    code.allow("nets.py")
    yield
    code.forget()


def build(name, seed=0, **options):
    return network.build(config.Model(name=f"nets.py:{name}", options=options), DIGITS, seed)


def test_a_network_gets_what_it_takes_and_its_options():
    before = torch.get_rng_state()
    one, same, other = build("TinyNet", 1, hidden=6), build("TinyNet", 1, hidden=6), build("TinyNet", 2)
    assert torch.equal(before, torch.get_rng_state()) and one.training
    assert one.first.weight.shape == (6, 1, 3, 3) and one.last.weight.shape == (10, 6 * 64)
    assert other.first.out_channels == 8
    assert all(map(torch.equal, one.parameters(), same.parameters()))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "TinyNet",
            {"heads": 2},
            r"model.options.heads: expected options of nets.py:TinyNet \(\['num_classes', ",
        ),
        (
            "wrong",
            {},
            r"with 10 outputs per sample, .* of digits, got \(2, 11\) for 2 samples of nets.py:wrong",
        ),
        ("broken", {}, r"expected a network of nets.py:broken with .*, got nets.py, line 21: KeyError"),
        ("strange", {}, "expected a torch.nn.Module of nets.py:strange, got int"),
        (
            "narrow",
            {},
            r"takes samples of shape \(1, 8, 8\) of digits, got nets.py:narrow: RuntimeError: mat1",
        ),
        ("NUMBER", {}, "expected a class or a function, got nets.py:NUMBER"),
        ("Tiny", {}, r"expected a name in nets.py out of \['TinyNet', .*, got 'Tiny'"),
        ("Lazy", {}, r"knows its shapes, got nets.py:Lazy with lazy 1.weight, 1.bias: it may take them"),
        ("Late", {}, r"trains on samples of .*, got nets.py:Late: nets.py, line \d+: RuntimeError: not in"),
        ("Two", {}, "expected a network that returns a tensor, got a tuple of nets.py:Two in training"),
    ],
)
def test_what_cannot_be_used_is_refused(name, options, message):
    with pytest.raises(ConfigError, match=message):
        build(name, **options)


def test_what_a_network_needs_is_named():
    def net(num_classes, depth): ...

    with pytest.raises(
        ConfigError, match=r"model.options.depth: expected a value, which mine needs, got none"
    ):
        own.arguments(net, {}, DIGITS, "mine")
    assert own.arguments(net, {"depth": 1}, DIGITS, "mine") == {"num_classes": 10, "depth": 1}
    assert own.arguments(lambda **rest: None, {"x": 1}, DIGITS, "mine") == {"x": 1}
    flat = from_arrays(torch.randn(20, 5), torch.arange(20) % 2)
    with pytest.raises(ConfigError, match=r"expected images for mine, .* size, got samples of shape \(5,\)"):
        own.arguments(lambda size: None, {}, flat, "mine")
    assert own.arguments(lambda in_features: None, {}, flat, "mine") == {"in_features": 5}


def test_built_in_networks_are_those_of_the_engine():
    import sparse_engine as se
    from fl.config.schema import NETWORKS

    assert {*NETWORKS} == {*se.models.__all__} - {"by_name"}
    with pytest.raises(
        ConfigError, match="model.name: expected a network out of .*FILE.py:NAME .*did you mean 'mlp'"
    ):
        network.build(config.Model(name="mlpp"), DIGITS, 0)
