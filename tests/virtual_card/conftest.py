"""A virtual card for the tests of the card, and a way to launch the kernels of `planted` on it."""

import pytest
import torch

import virtual_card
from virtual_card import compiled
from virtual_card.launch import launch


@pytest.fixture
def card():
    if torch.cuda.is_available():
        pytest.skip("a real card is here")
    with virtual_card.installed() as found:
        yield found


@pytest.fixture
def run(card):
    """run(config, programs, *args): launch a planted kernel, its PTX changed by `change`; the counts."""

    def launched(config, programs, *args, change=lambda ptx: ptx):
        binary = compiled.binaries("virtual_card.planted")[compiled.key(config)]
        launch(card, binary._replace(ptx=change(binary.ptx)), (programs,), config.types.split(), args)
        return card.launches[-1].counts

    return launched


@pytest.fixture(scope="session")
def ptx():
    """The text of a planted kernel."""
    return lambda config: compiled.binaries("virtual_card.planted")[compiled.key(config)].ptx
