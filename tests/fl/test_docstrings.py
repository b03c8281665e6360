"""Everything that `fl` offers has a docstring with an example, which runs and prints what it says; packages
that are not installed have stand-ins."""

import importlib
import inspect
import sys

import pytest
from docstrings import examples, failures

import fl
from fl.run.simulation import run

PLACES = {"fl": fl, "fl.data": fl.data}
PUBLIC = {
    f"{place}.{name}": getattr(module, name) for place, module in PLACES.items() for name in module.__all__
} | {"fl.run": run}
WITHOUT = {  # made by functions, whose examples show them
    "fl.data.Part",
    "fl.data.Partition",
    "fl.data.Samples",
}


class Anything:
    """Has everything, does nothing."""

    def __getattr__(self, name):
        return self

    def __call__(self, *args, **options):
        return self


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    for name in ("wandb", "mlflow", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, Anything())


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_examples(name):
    thing = PUBLIC[name]
    assert inspect.getdoc(thing)
    test = examples(name, thing, dict(vars(sys.modules[thing.__module__])))
    assert test.examples or name in WITHOUT, f"{name} has no example"
    failed, said = failures(test)
    assert not failed, said


@pytest.mark.parametrize("name", ["Result", "Simulation"])
def test_methods_say_what_they_return(name):
    methods = {key: one for key, one in vars(PUBLIC[f"fl.{name}"]).items() if inspect.isfunction(one)}
    assert not [key for key, one in methods.items() if not key.startswith("_") and not inspect.getdoc(one)]


def test_what_is_offered_is_there():
    assert {"fl.run", "fl.Simulation", "fl.Listener", "fl.CSV", "fl.data.as_dataset"} < set(PUBLIC)
    for name in fl.__all__:
        assert getattr(importlib.import_module("fl"), name) is not None
    with pytest.raises(AttributeError, match="module 'fl' has no attribute 'nothing'"):
        _ = fl.nothing
