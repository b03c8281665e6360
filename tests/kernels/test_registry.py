"""Which implementation runs, and that what is asked for and missing raises."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import on, randn, random_bitmap

from sparsefl.kernels import native, registry, sparse_conv, use_backend
from sparsefl.kernels.errors import NoKernel, NotBuilt
from sparsefl.kernels.pqi import pqi

ROOT = Path(__file__).parents[2]
OFFSETS = torch.tensor([0, 5])
RUN = "import torch, kernels.pqi as k; print(k.pqi(torch.ones(5), torch.tensor([0, 5])).pqi.item())"
WHICH = "from sparsefl.kernels import registry, native; print(registry.backend_for('cpu'), native.isa())"


def python(code, **variables):
    """The code in a process of its own, under these environment variables and none of ours."""
    ours = ("SPARSE_BACKEND", "SPARSE_ISA", "SPARSE_THREADS", "TRITON_INTERPRET")
    environment = {key: value for key, value in os.environ.items() if key not in ours} | variables
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("name", ["cuda", "", "CPU", "reference:avx2", "triton:avx2"])
def test_unknown_backend_raises(name):
    with pytest.raises(ValueError, match="expected a backend out of"), use_backend(name):
        pass


def test_unknown_instruction_set_raises():
    with pytest.raises(ValueError, match="'mmx' is not available here; there are"), use_backend("cpu:mmx"):
        pass
    with pytest.raises(ValueError, match="expected an instruction set out of"), native.use_isa("mmx"):
        pass


def test_native_backend_that_is_not_built_raises_and_says_how_to_build(monkeypatch):
    monkeypatch.setattr(native, "_extension", None)
    assert registry.variants() == [name for name in ("reference", "triton") if name in registry.variants()]
    with pytest.raises(NotBuilt, match=r"not built: run `pip install -e \.`"):
        pqi(randn(5), OFFSETS)
    with use_backend("reference"):
        pqi(randn(5), OFFSETS)


def test_triton_without_interpreter_or_gpu_raises(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="takes CUDA tensors, or CPU tensors under"), use_backend("triton"):
        pqi(randn(5), OFFSETS)


def test_device_without_kernels_raises():
    with pytest.raises(ValueError, match="no kernels for device 'meta'"):
        registry.backend_for("meta")


def test_native_backend_refuses_other_devices():
    with use_backend("cpu"), pytest.raises(ValueError, match="takes CPU tensors"):
        registry.backend_for("cuda")


def test_the_device_decides():
    assert registry.backend_for("cpu") == "cpu"
    assert registry.backend_for("cuda") == "triton"


def test_use_backend_nests_and_ends():
    with use_backend("reference"):
        with use_backend("cpu"):
            assert registry.backend_for("cpu") == "cpu"
        assert registry.backend_for("cpu") == "reference"
    assert registry.backend_for("cpu") == "cpu"


def test_use_backend_ends_after_an_error():
    before = native.isa()
    with pytest.raises(ZeroDivisionError), use_backend("cpu:baseline"):
        assert native.isa() == "baseline"
        _ = 1 / 0
    assert registry.backend_for("cpu") == "cpu" and native.isa() == before


def test_variants_are_the_reference_every_instruction_set_and_triton():
    assert native.isas()[0] == "baseline" and native.isa() in native.isas()
    expected = ["reference", *(f"cpu:{isa}" for isa in native.isas())]
    assert registry.variants() == [
        *expected,
        "triton",
    ]  # conftest turns the interpreter on, or there is a GPU
    for name in registry.variants():
        with use_backend(name):
            pass


def test_variants_of_an_operation_are_those_that_have_a_file_for_it():
    package = Path(registry.__file__).parent
    assert set(registry.operations()) == {path.parent.name for path in package.glob("*/_reference.py")}
    for operation in registry.operations():
        has = [name for name in registry.variants() if backend_file(package / operation, name).exists()]
        assert registry.variants(operation) == has and "reference" in has
    with pytest.raises(ValueError, match=r"expected an operation out of \['bias_gradient', .*, got 'conv'"):
        registry.variants("conv")


def backend_file(folder, variant):
    return folder / f"_{variant.split(':')[0]}.py"


@pytest.mark.parametrize("operation", registry.operations())
def test_every_operation_is_tested_on_all_its_backends(operation):
    text = (Path(__file__).parent / f"test_{operation}.py").read_text()
    assert re.search(rf'variants\("{operation}"(, without=\["reference"\])?\)', text)
    assert "variants()" not in text


def test_backend_from_the_environment():
    assert python(WHICH, SPARSE_BACKEND="reference").stdout.split()[0] == "reference"
    assert python(WHICH, SPARSE_BACKEND="cpu").stdout.split()[0] == "cpu"
    assert float(python(RUN, SPARSE_BACKEND="reference").stdout) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"SPARSE_BACKEND": "gpu"}, "expected SPARSE_BACKEND to be one of reference, cpu, triton, got 'gpu'"),
        ({"SPARSE_BACKEND": "cpu:baseline"}, "SPARSE_ISA names the instruction set"),
        ({"SPARSE_BACKEND": "triton"}, "takes CUDA tensors"),
        ({"SPARSE_ISA": "mmx"}, "expected SPARSE_ISA to be one that this machine runs (baseline, "),
        ({"SPARSE_THREADS": "none"}, "expected SPARSE_THREADS to be a whole number"),
        ({"SPARSE_THREADS": "0"}, "expected SPARSE_THREADS to be a whole number"),
    ],
)
def test_wrong_environment_raises(variables, message):
    done = python(RUN, **variables)
    assert done.returncode != 0 and done.stdout == ""
    assert "SettingError: " in done.stderr and message in done.stderr


@pytest.mark.parametrize(
    "variables", [{"SPARSE_ISA": "mmx"}, {"SPARSE_THREADS": "0"}, {"SPARSE_BACKEND": "gpu"}]
)
def test_a_wrong_environment_does_not_stop_an_import(variables):
    done = python("import sparse_engine; print('done')", **variables)
    assert done.stdout == "done\n", done.stderr


def test_a_backend_without_a_kernel_says_so():
    with on("triton") as put, pytest.raises(NoKernel, match="there is no triton kernel of sparse_conv yet"):
        conv = sparse_conv.Conv(put(random_bitmap([36], 1.0)), 2, 2, (3, 3))
        sparse_conv.forward(conv, put(randn(36)), put(randn(2 * 4 * 4 * 3).view(2, 4, 4, 3)))


def test_an_error_inside_a_kernels_file_is_not_taken_for_a_missing_one(monkeypatch):
    def broken(name):
        raise ModuleNotFoundError("no module named 'triton'", name="triton")

    monkeypatch.setattr(registry.importlib, "import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="triton"):
        registry._loaded("sparsefl.kernels.pqi", "pq_norms", "triton")


@pytest.mark.parametrize("isa", native.isas())
def test_instruction_set_from_the_environment(isa):
    assert python(WHICH, SPARSE_ISA=isa).stdout.split() == ["cpu", isa]


def test_threads_from_the_environment():
    done = python("from sparsefl import kernels; print(kernels.num_threads())", SPARSE_THREADS="3")
    assert done.stdout.strip() == "3"
