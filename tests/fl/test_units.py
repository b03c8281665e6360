"""fl/units.py: numbers as people read them."""

import pytest

from fl import units


@pytest.mark.parametrize(("count", "text"), [(0, "0 rounds"), (1, "1 round"), (2, "2 rounds")])
def test_one_has_no_plural(count, text):
    assert units.counted(count, "round") == text
