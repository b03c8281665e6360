"""Every public function of `se` has a docstring with an example, which runs and prints what it says."""

import inspect

import pytest
from docstrings import examples, failures

import sparse_engine as se

PLACES = {"se": se, "se.wire": se.wire, "se.models": se.models}
PUBLIC = {
    f"{place}.{name}": getattr(module, name) for place, module in PLACES.items() for name in module.__all__
}
FUNCTIONS = {name: thing for name, thing in PUBLIC.items() if inspect.isfunction(thing)}
CLASSES = {
    name: thing
    for name, thing in PUBLIC.items()
    if inspect.isclass(thing)
    and not issubclass(thing, Exception)
    and thing.__module__.startswith("sparse_engine.")
}
WITHOUT = {  # made by functions, whose examples show them
    "se.Flops",
    "se.Layout",
    "se.Report",
    "se.Row",
    "se.wire.Header",
    "se.wire.Residual",
}


@pytest.mark.parametrize("name", sorted(FUNCTIONS | CLASSES))
def test_examples(name):
    thing = PUBLIC[name]
    assert inspect.getdoc(thing)
    test = examples(name, thing)
    assert test.examples or name in WITHOUT, f"{name} has no example"
    failed, said = failures(test)
    assert not failed, said


def test_all_public_functions_are_seen():
    assert len(FUNCTIONS) > 35
    assert {"se.sparsify", "se.compress", "se.average", "se.wire.decode", "se.models.resnet18"} < set(
        FUNCTIONS
    )


def test_a_missing_or_wrong_example_is_seen():
    def silent():
        """Says nothing."""

    def wrong():
        """
        >>> 1 + 1
        3
        """

    assert not examples("silent", silent).examples
    assert failures(examples("wrong", wrong))[0] == 1
