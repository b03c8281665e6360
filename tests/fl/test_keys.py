import doctest

import pytest

from fl import keys
from fl.keys import summed


def test_the_example_of_the_docstring():
    assert doctest.testmod(keys).failed == 0


@pytest.mark.parametrize(
    ("sums", "values", "expected"),
    [
        ("sum", [True, False, True], 2),
        ("sum", [1.5, 2], 3.5),
        ("sum", [1.5, None], None),  # never 0 for what nobody knows
        ("max", [1, 3, 2], 3),
        ("max", [1, None], None),
        ("mean", [True, None, False], 0.5),
        ("mean", [], None),
        ("mean", [None], None),
        ("last", [1, None], None),
    ],
)
def test_sums(sums, values, expected):
    assert summed(sums, values) == expected
