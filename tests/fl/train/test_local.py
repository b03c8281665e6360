"""Local: made of the section `training` and a round."""

import math

import pytest

from fl.config import Training
from fl.train.local import Local

GIVEN = Training(
    epochs=3, batch_size=7, lr=0.1, lr_decay=0.998, momentum=0.25, weight_decay=0.5, max_norm=2.0
)


def test_the_section_in_a_round():
    lr = pytest.approx(0.1 * 0.998**500)
    own = {"epochs": 3, "batch_size": 7, "momentum": 0.25, "weight_decay": 0.5, "max_norm": 2.0}
    assert Local.of(GIVEN, 500) == Local(lr=Local.of(GIVEN, 500).lr, **own) and Local.of(GIVEN, 500).lr == lr
    assert Local.of(GIVEN, 0).lr == 0.1


def test_changes_come_before_the_decay():
    local = Local.of(GIVEN, 2, lr=1.0, max_norm=None, rho=0.5, stream=" own")
    assert math.isclose(local.lr, 0.998**2) and local.epochs == 3
    assert (local.max_norm, local.rho, local.stream) == (None, 0.5, " own")


def test_unknown_changes_are_refused():
    with pytest.raises(ValueError, match=r"expected keys of training, got \['moment'\]"):
        Local.of(GIVEN, 0, moment=0.9)
