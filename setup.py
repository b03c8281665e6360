"""Builds the native kernels: setuptools asks CMake (with ninja) for `sparsefl.kernels._native`."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

PACKAGES = ("sparsefl", "sparse_engine", "fl")  # sparsefl/ links to kernels/ and bench/


class CMakeExtension(Extension):
    """An extension that CMakeLists.txt describes."""

    def __init__(self, name: str) -> None:
        super().__init__(name, sources=[])


class CMakeBuild(build_ext):
    def build_extension(self, extension: Extension) -> None:
        target = Path(self.get_ext_fullpath(extension.name)).resolve()
        work = Path(self.build_temp).resolve()
        work.mkdir(parents=True, exist_ok=True)
        (work / "CMakeCache.txt").unlink(missing_ok=True)  # may name tools of an isolated build that is gone
        configure = [
            "cmake", "-S", str(Path(__file__).parent.resolve()), "-B", str(work), "-G", "Ninja",
            f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=Release",
            *os.environ.get("CMAKE_ARGS", "").split(),
        ]  # fmt: skip
        subprocess.run(configure, check=True)
        subprocess.run(["cmake", "--build", str(work)], check=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_suffix(".new")  # a running process may have the old one mapped: replace it
        shutil.copyfile(built(work, target.name), fresh)
        os.replace(fresh, target)


def built(work: Path, name: str) -> Path:
    """The extension that CMake made in `work` for this interpreter."""
    if not (work / name).is_file():
        made = sorted(path.name for path in work.glob("_native*")) or "no file _native*"
        raise SystemExit(f"expected {name} from CMake in {work}, got {made}: see what it printed above")
    return work / name


def refuse_other_systems() -> None:
    """Before pip has fetched anything large."""
    if (system := platform.system()) != "Linux":
        raise SystemExit(
            f"sparsefl builds on Linux (x86-64; arm64 with baseline kernels only), got {system}: "
            "use a Linux machine, a container or, on Windows, WSL"
        )


refuse_other_systems()
setup(
    packages=find_packages(include=[pattern for name in PACKAGES for pattern in (name, f"{name}.*")]),
    package_data={
        "fl.config": ["presets/*.toml"],
        "fl.data": ["digits.npz"],
        "sparse_engine.choice": ["*.json"],
        **{name: ["py.typed"] for name in PACKAGES},  # their types are for users too
    },
    include_package_data=False,  # MANIFEST.in is for the sdist: no C++ sources in a wheel
    ext_modules=[CMakeExtension("sparsefl.kernels._native")],
    cmdclass={"build_ext": CMakeBuild},
)
