"""Builds and loads guard.cpp, once per version of torch: without it torch refuses to handle tensors of a
CUDA device.
"""

import ctypes
import hashlib
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch
from torch.utils import cpp_extension

SOURCE = Path(__file__).with_name("guard.cpp")
FOLDER = Path(__file__).parents[2] / "build" / "virtual_card"


@cache
def load() -> None:
    """A device guard for cuda:0 from here on in this process; it takes ten seconds the first time."""
    key = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    library = FOLDER / f"guard-{key}.so"
    if not library.exists():
        _build(library)
    ctypes.CDLL(str(library))


def _build(library: Path) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    includes = [f"-I{path}" for path in cpp_extension.include_paths()]
    libraries = [f"-L{path}" for path in cpp_extension.library_paths()]
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:  # two workers may build it at once
        made = Path(folder) / library.name
        command = [
            os.environ.get("CXX", "c++"),
            "-std=c++20",
            "-O1",
            "-shared",
            "-fPIC",
            *includes,
            str(SOURCE),
        ]
        subprocess.run([*command, "-o", str(made), *libraries, "-lc10"], check=True)
        made.replace(library)
