"""Builds the native kernels: setuptools asks CMake (with ninja) for the extension `kernels._native`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class CMakeExtension(Extension):
    """An extension that CMakeLists.txt describes."""

    def __init__(self, name: str) -> None:
        super().__init__(name, sources=[])


class CMakeBuild(build_ext):
    def build_extension(self, extension: Extension) -> None:
        target = Path(self.get_ext_fullpath(extension.name)).resolve()
        work = Path(self.build_temp).resolve()
        work.mkdir(parents=True, exist_ok=True)
        configure = [
            "cmake", "-S", str(Path(__file__).parent.resolve()), "-B", str(work), "-G", "Ninja",
            f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=Release",
            *os.environ.get("CMAKE_ARGS", "").split(),
        ]  # fmt: skip
        subprocess.run(configure, check=True)
        subprocess.run(["cmake", "--build", str(work)], check=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_suffix(".new")  # a running process may have the old one mapped: replace it
        shutil.copyfile(next(work.glob("_native*.so")), fresh)
        os.replace(fresh, target)


OPERATIONS = (
    "add_relu",
    "bitmap",
    "checksum",
    "drift",
    "mask_code",
    "masked_average",
    "masked_sgd",
    "norm",
    "number_code",
    "pack",
    "pool",
    "pqi",
    "select",
    "sparse_conv",
)

setup(
    packages=[
        "kernels",
        *(f"kernels.{op}" for op in OPERATIONS),
        "sparse_engine",
        "sparse_engine.models",
        "sparse_engine.nn",
        "fl",
        "fl.algorithms",
        "fl.data",
        "bench",
    ],
    package_data={"fl": ["presets/*.toml"], "fl.data": ["digits.npz"]},
    include_package_data=False,  # MANIFEST.in is for the sdist: no C++ sources in a wheel
    ext_modules=[CMakeExtension("kernels._native")],
    cmdclass={"build_ext": CMakeBuild},
)
