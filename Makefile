# Everything runs in .venv. `make setup` fills it; every other target does so by itself when it is needed.
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip
WORKERS ?= 2
PYTEST_ARGS ?=
BENCHMARKS := $(sort $(wildcard benchmarks/bench_*.py)) benchmarks/compare.py

# One BLAS thread per process: the tests run in parallel already. Two Numba threads, so that the tests which compare
# one thread with several have several.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1
export NUMBA_NUM_THREADS ?= 2
export MPLBACKEND ?= Agg

.PHONY: help setup demo test test-plain test-gpu coverage mutants lint format types bench-smoke fuzz paper-quick docs docs-figures prose clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 18

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "regbayes needs Python 3.11 or later; name one with make PYTHON=..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { echo "no ensurepip here: pip comes from $(PYTHON)'s own"; \
		rm -rf $(VENV) && $(PYTHON) -m venv --without-pip $(VENV) && \
		$(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }

# The stamps remember what was installed; a changed pyproject.toml installs again.
$(VENV)/.installed-demo: pyproject.toml | $(BIN)/python
	$(PIP) install --quiet -e '.[cli,plot]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml paper/pyproject.toml | $(BIN)/python
	$(PIP) install --quiet -e '.[dev]' -e ./paper
	@touch $@ $(VENV)/.installed-demo

setup: $(VENV)/.installed-dev  ## create .venv and install the package with everything development needs

demo: $(VENV)/.installed-demo  ## fit a model to handwritten digits and write a page about it
	$(BIN)/regbayes demo

test: setup  ## run the tests (PYTEST_ARGS adds options, WORKERS sets the processes)
	$(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

# Last bits differ between processors, and no test may stand on them. This is the suite as on a machine without AVX-512,
# and for NumPy without AVX2 too: NumPy, OpenBLAS and Numba (which has a cache of its own here) round differently there.
# NumPy is asked what it could do without, because it complains of names that this machine does not have and ignores
# those of other versions; and then whether it does without.
PLAIN := OPENBLAS_CORETYPE=Haswell NUMBA_CPU_NAME=generic NUMBA_CACHE_DIR=$(CURDIR)/build/numba-plain
CPU_FEATURES_ON := from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__; \
	on = [name for name in __cpu_dispatch__ if __cpu_features__[name]]

test-plain: setup  ## run the tests as on a plainer processor, without AVX-512
	@set -e; export $(PLAIN); \
	export NPY_DISABLE_CPU_FEATURES="$$($(BIN)/python -c '$(CPU_FEATURES_ON); print(*on)')"; \
	$(BIN)/python -c '$(CPU_FEATURES_ON); assert not on, on; print("NumPy does without", *__cpu_dispatch__)'; \
	$(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

# On a machine with a graphics card; GPU_PYTHON names an interpreter there that has PyTorch or CuPy for it. The tests of
# array operations run on every library and device that is found.
GPU_PYTHON ?= $(BIN)/python
DEVICE_TESTS := tests/backends tests/kernels/test_arrays.py tests/kernels/meanfield $(wildcard tests/*/test_device*.py tests/*/*/test_device*.py)
test-gpu:  ## run the tests of arrays on devices, where there is a graphics card
	SCIPY_ARRAY_API=1 PYTHONPATH=src:paper/src:$$PYTHONPATH $(GPU_PYTHON) -m pytest $(DEVICE_TESTS) tests/adapters/test_torch.py $(PYTEST_ARGS)

coverage: setup  ## run the tests and print the lines and branches of each package that they cover
	rm -rf build/coverage && mkdir -p build/coverage
	$(BIN)/python -m coverage run -m pytest -n $(WORKERS) $(PYTEST_ARGS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage json --quiet -o build/coverage/report.json
	$(BIN)/python tools/coverage_table.py build/coverage/report.json

mutants: setup  ## print the share of 100 seeded mutants that the tests detect (an hour)
	$(BIN)/python tools/mutants.py --jobs $(WORKERS) --json build/mutants.json

lint: setup  ## check style, formatting and imports between packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --cache-dir build/import-linter

format: setup  ## rewrite files to the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup  ## check types
	$(BIN)/mypy

bench-smoke: setup  ## run every benchmark on a problem small enough to take seconds
	@set -e; for script in $(BENCHMARKS); do echo "== $$script --smoke"; $(BIN)/python $$script --smoke; done

FUZZ_ARGS ?= --count 20000 --seed 1
fuzz: setup  ## give the package wrong files, arrays, tables and commands (FUZZ_ARGS; hours by default)
	$(BIN)/python tools/fuzz.py $(FUZZ_ARGS)

paper-quick: setup  ## run the quick form of every experiment of the paper, into build/paper
	$(BIN)/python -m regbayes_paper all --quick --fresh --jobs 2 --output build/paper

# The site has an environment of its own: an import of the package must not need the development tools.
$(VENV)-docs/.installed: pyproject.toml
	@$(PYTHON) -m venv $(VENV)-docs >/dev/null 2>&1 || { rm -rf $(VENV)-docs && $(PYTHON) -m venv --without-pip $(VENV)-docs && \
		$(PYTHON) -m pip --python $(VENV)-docs/bin/python install --quiet pip; }
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(VENV)-docs/bin/python -m pip install --quiet -e '.[docs]'
	@touch $@

docs: $(VENV)-docs/.installed  ## build the site into build/site; warnings are errors
	$(VENV)-docs/bin/python -m sphinx -q -W --keep-going -b html -d build/doctrees docs build/site

prose: $(BIN)/python  ## count words that the style guide replaces
	$(BIN)/python tools/prose_lint.py . --max 27

docs-figures: setup  ## draw the figure of the page on iLSVM again
	$(BIN)/python examples/models/ilsvm_digits.py --figure docs/figures/ilsvm_digits.png

clean:  ## remove caches and build products (not .venv)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src paper tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
