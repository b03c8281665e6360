"""sparsefl.kernels.settings: what the environment variables may be."""

import pytest

from sparsefl.kernels import settings, use_threads
from sparsefl.kernels.errors import SettingError
from sparsefl.kernels.settings import Settings


def test_not_set_and_set_to_nothing_are_the_same():
    assert settings.read({}) == Settings(None, None, None, None, False)
    assert settings.read(dict.fromkeys(settings.VARIABLES, "")) == settings.read({})


def test_what_they_ask_for():
    found = settings.read(
        {
            "SPARSE_BACKEND": "reference",
            "SPARSE_ISA": "avx2",
            "SPARSE_THREADS": "12",
            "SPARSE_PLAN": "off",
            "TRITON_INTERPRET": "1",
        }
    )
    assert found == Settings("reference", "avx2", 12, "off", True)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "two", "1 ", "\u00b2", "\u0663", "1025", "9" * 5000])
def test_wrong_numbers_of_threads(text):
    with pytest.raises(
        SettingError, match="expected SPARSE_THREADS to be a whole number from 1 to 1024, got"
    ):
        settings.read({"SPARSE_THREADS": text})


def test_wrong_backends():
    with pytest.raises(SettingError, match="one of reference, cpu, triton, got 'gpu'$"):
        settings.read({"SPARSE_BACKEND": "gpu"})
    with pytest.raises(SettingError, match="SPARSE_ISA names the instruction set"):
        settings.read({"SPARSE_BACKEND": "cpu:avx2"})


def test_variables_are_read_once(monkeypatch):
    before = settings.current()
    monkeypatch.setenv("SPARSE_THREADS", "no number")
    assert settings.current() is before


def test_use_threads_has_the_same_bound():
    with pytest.raises(ValueError, match="at most 1024 threads, got 1025"), use_threads(1025):
        pass
