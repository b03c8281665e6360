"""The examples in docstrings run, and print what they say."""

import doctest
import sys

import pytest

import sparse_engine.nn.convert  # noqa: F401

MODULES = ["nn.convert", "nn.report", "nn.bridge", "flops"]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    found = doctest.testmod(sys.modules[f"sparse_engine.{name}"])
    assert found.attempted and not found.failed
