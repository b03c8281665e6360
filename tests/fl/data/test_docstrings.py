"""The examples in the docstrings of public functions run, and print what they say."""

import doctest
import sys

import pytest

import fl.data

PUBLIC = ["arrays", "dataset", "lists", "partition", "sets", "sources"]


@pytest.mark.parametrize("name", PUBLIC)
def test_examples(name):
    found = doctest.testmod(sys.modules[f"{fl.data.__name__}.{name}"])
    assert found.attempted and not found.failed
