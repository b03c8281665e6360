"""Without memory there is a MemoryError with a sentence, not the end of the process; the next call works."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sparse_engine.doctor import selfcheck
from sparsefl.kernels import memory, native

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs a limit of the address space"),
    pytest.mark.skipif(
        not (native.isas() and native.extension().pooled()),
        reason="not built, or built for the sanitizer, which takes the address space for itself",
    ),
]
# What has to be met on the way to enough memory, of all that an operation needs.
LARGE = {
    "choice": ["the histogram of a selection", "the values near the border of a selection"],
    "winograd": [
        "a tensor",
        "the transformed weights of a convolution",
        "the transformed images of a convolution",
    ],
    "sparse": ["a tensor"],
    "dense": ["a tensor"],
}
SMALL = {
    "bitmap": ["the rows of a transposed pattern"],
    "mask_code": ["what became of a mask's entries"],
    "masked_average": ["the parts of an average"],
    "norm": ["the parts of a norm's gradients"],
    "number_code": ["a block of numbers to encode"],
    "pool": ["the windows of a pooling layer"],
    "select": ["the histogram of a selection"],
    "sparse_conv": ["the number of weights of each visit of a convolution"],
}


def starved(threads: int, *cases: str) -> list[str]:
    """The errors of tests/scarce.py. Large pieces of memory go back at once, so that the limit decides."""
    small = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_TOP_PAD_": "0"}
    environment = os.environ | small | {"PYTHONPATH": str(ROOT), "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, str(ROOT / "tests" / "scarce.py"), str(threads), *cases]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return done.stdout.splitlines()


def met(errors: list[str], case: str, what: str = ".*") -> bool:
    sentence = f"{case}: MemoryError: expected [0-9]+ bytes of memory for {what}, got none"
    return any(re.fullmatch(sentence, error) for error in errors)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_training_step_without_memory_is_a_memory_error_and_the_next_one_works(threads):
    errors = starved(threads, "step")
    assert met(errors, "step"), errors


@pytest.mark.parametrize("threads", [1, 2])
def test_large_scratch_memory_that_is_missing_is_a_memory_error(threads):
    errors = starved(threads, *LARGE)
    for case, wanted in LARGE.items():
        for what in wanted:
            assert met(errors, case, what), (case, what, errors)


def test_every_operation_without_memory_is_a_memory_error_and_the_next_call_works():
    errors = starved(2, *selfcheck.OPERATIONS)
    for case, wanted in SMALL.items():
        for what in wanted:
            assert met(errors, case, what), (case, what, errors)


def test_the_pool_says_how_much_was_wanted():
    with pytest.raises(MemoryError, match=f"expected {1 << 48} bytes of memory for a tensor, got none"):
        memory.empty((1 << 28, 1 << 18), torch.zeros(()))
    with pytest.raises(MemoryError, match="a size beyond all machines"):
        memory.empty((1 << 62, 1 << 62), torch.zeros(()))


def test_memory_of_torch_is_a_memory_error_too():
    with pytest.raises(MemoryError, match=f"expected {1 << 49} bytes of memory for a tensor, got none"):
        memory.empty((1 << 46,), torch.zeros((), dtype=torch.float64))


def test_other_errors_are_not_taken_for_a_lack_of_memory():
    assert memory.exhausted(RuntimeError("shapes differ")) is None
    assert memory.exhausted(ValueError("std::bad_alloc")) is None
    assert memory.exhausted(RuntimeError("std::bad_alloc")) == "expected more memory, got none"
    assert memory.exhausted(MemoryError("no")) == "no"
