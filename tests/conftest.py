"""Set-up for all tests. Without a GPU, Triton's interpreter is turned on before any kernel is imported."""

import os

import pytest
import torch

from sparsefl.kernels import settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def variables_are_read_again() -> None:
    """A test may set environment variables before it asks for anything of ours."""
    settings.current.cache_clear()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no GPU here"))
