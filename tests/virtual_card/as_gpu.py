"""Tests as on a machine with a GPU: `PYTHONPATH=tests python -m virtual_card.as_gpu tests/kernels` is
pytest with a card.

Triton's interpreter is off, `torch.cuda.is_available()` is true, and the variant `triton` puts its tensors
on cuda:0 and launches through Triton's run time. The card is the virtual one.
"""

import os
import sys

os.environ.pop("TRITON_INTERPRET", None)

import pytest  # noqa: E402  (kernels must not see the variable)

from virtual_card import installed  # noqa: E402


def main() -> int:
    with installed(jit=True):
        return pytest.main(["-p", "no:cacheprovider", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
