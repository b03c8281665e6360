"""Thousands of hostile run directories: none may touch anything outside, end in a traceback, or hang.

python tests/fuzz_rundir.py 2000 [seed]
"""

import sys
import tempfile
import time
from pathlib import Path

import hostile

if __name__ == "__main__":
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
        result = hostile.go(int(sys.argv[1]), seed, Path(place).resolve())
    for what, number in result.most_common():
        print(f"{number:>8,}  {what}")
    print(f"{time.monotonic() - started:.0f} s")
