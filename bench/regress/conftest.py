"""`pytest bench/regress`: compare with the baseline of this processor, or write one (--write-baseline)."""

import pytest

from sparse_engine.hardware import cpu_model
from sparsefl.bench import baseline
from sparsefl.bench.meta import meta
from sparsefl.kernels import native

KIND = baseline.kind(cpu_model(), native.isa())
_measured: dict[str, float] = {}
_unknown: list[str] = []


def pytest_addoption(parser):
    parser.addoption("--write-baseline", action="store_true", help="store the ratios of this run")


@pytest.fixture
def held(request, benchmark):
    """held(case, measure): `measure` returns a ratio, up to three times while it is low; the best counts."""

    def hold(case, measure):
        known = baseline.load(baseline.FOLDER, KIND).get(case)
        ratio = benchmark.pedantic(measure, rounds=1, iterations=1)
        for _ in range(2):
            if baseline.verdict(case, ratio, known):  # noise passes, a slower kernel stays slower
                ratio = max(ratio, measure())
        benchmark.extra_info |= {"case": case, "ratio": ratio, "baseline": known}
        _measured[case] = ratio
        if known is None:
            _unknown.append(case)
        if not request.config.getoption("--write-baseline"):
            assert (wrong := baseline.verdict(case, ratio, known)) is None, wrong

    return hold


def pytest_terminal_summary(terminalreporter, config):
    say = terminalreporter.write_line
    for case, ratio in _measured.items():
        known = baseline.load(baseline.FOLDER, KIND).get(case)
        say(f"{case}: {ratio:.2f} times the rival's speed, baseline {f'{known:.2f}' if known else 'none'}")
    if config.getoption("--write-baseline") and _measured:
        say(f"written: {baseline.save(baseline.FOLDER, KIND, _measured, meta(1))}")
    elif _unknown:
        say(f"no baseline for {KIND}: {', '.join(_unknown)} compared with nothing")
        say("make bench-regress REGRESS_OPTIONS=--write-baseline writes one, on a quiet machine")
