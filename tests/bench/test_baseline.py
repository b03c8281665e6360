"""bench/baseline.py: what counts as worse; a kind without a baseline is no failure."""

import pytest

from sparsefl.bench import baseline


def test_a_kind_is_a_file_name():
    assert baseline.kind("AMD EPYC (Zen 5)", "avx512") == "amd-epyc-zen-5-avx512"


@pytest.mark.parametrize(("ratio", "fine"), [(2.0, True), (1.71, True), (1.69, False), (5.0, True)])
def test_fifteen_per_cent(ratio, fine):
    wrong = baseline.verdict("pack", ratio, 2.0)
    assert (wrong is None) == fine
    assert fine or wrong == ("pack: expected at least 1.70 times the rival's speed (baseline 2.00), got 1.69")


def test_no_baseline(tmp_path):
    assert baseline.load(tmp_path, "other") == {}
    assert baseline.verdict("pack", 0.1, None) is None


def test_what_is_written_is_read_and_other_cases_stay(tmp_path):
    baseline.save(tmp_path, "a", {"pack": 1.5, "pqi": 3.0}, {"commit": "x"})
    baseline.save(tmp_path, "a", {"pack": 1.25}, {"commit": "y"})
    assert baseline.load(tmp_path, "a") == {"pack": 1.25, "pqi": 3.0}
