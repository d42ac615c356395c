# Two commands matter: `make demo` and `make test`. Everything lives in .venv; nothing is global.
PYTHON ?= python3
BIN := .venv/bin
LIBRARY := pyproject.toml setup.py $(wildcard csrc/*) src/statetrack/kernels/interface.h

.PHONY: demo test test-lm test-lowest test-peers test-gpu docs notebooks wheel sanitize cross browser fuzz peers format clean
.NOTPARALLEL: # the environments share the native library in src/

demo: .venv/installed
	$(BIN)/statetrack demo

test: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2 --durations 10

# The tests of language models, in the environment with the extra `lm`.
test-lm: .venv-peers-hf/installed
	.venv-peers-hf/bin/python -m pytest -n 2 --durations 10 tests/lm

# The documentation site, in .site/html. Warnings are errors, dead links among them; nothing is
# downloaded.
docs: .venv/installed-docs
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -c docs -d .site/doctrees . .site/html

# Run the notebooks of docs/ and store their outputs.
notebooks: .venv/installed-docs
	$(BIN)/python docs/run_notebooks.py

# The tests with the lowest versions that pyproject.toml admits.
test-lowest: .venv-lowest/installed
	.venv-lowest/bin/python -m pytest -n 2

.venv-lowest/installed: requirements/lowest.txt $(LIBRARY)
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --constraint $< --editable ".[dev]"
	touch $@

# What other packages compute, from the same weights and inputs, in the environments of `make peers`.
test-peers: peers
	.venv-peers-hf/bin/python -m pytest tests/peers/hf
	.venv-peers-fla/bin/python -m pytest tests/peers/fla

# The Triton kernels, without a GPU: run by Triton's interpreter against the definitions, and compiled
# for real GPUs.
test-gpu: .venv-peers-fla/installed
	TRITON_INTERPRET=1 .venv-peers-fla/bin/python -m pytest -n 2 --durations 5 tests/gpu/interpreted
	.venv-peers-fla/bin/python -m pytest -n 2 --durations 5 tests/gpu/compiled

# The wheel, with a compiler and without, in environments of its own.
wheel: .venv/installed-dev
	$(BIN)/pytest -n 2 -m wheel tests/test_packaging.py

# The native kernels under the address and undefined-behaviour sanitizers, over their test grid.
# The avx512 kernels are compiled for AVX2 here: right, if slow, so that every machine can check them.
# libstdc++ is loaded early so that exceptions pass through the sanitizer.
SANITIZE := -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined
sanitize: .venv/installed-dev
	rm -rf .sanitize
	STATETRACK_CFLAGS="$(SANITIZE)" STATETRACK_EMULATE_AVX512=1 $(BIN)/python setup.py --quiet build --build-base .sanitize --build-lib .sanitize/lib
	PYTHONPATH=.sanitize/lib LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 sh -c '\
	$(BIN)/python tests/sanitized.py && \
	$(BIN)/pytest -n 2 -m native tests/ops tests/layers/test_decoder*.py'

# The kernels as clang compiles them, and for ARM under qemu, against the library here. Where a tool is
# missing it says which Debian packages to install, and fails if the variable CI is set.
cross: .venv/installed-dev
	tests/cross/run.sh $(BIN)/python

# Pages of reports in a real Chromium. Where it is missing it says which Debian packages to install,
# and fails if the variable CI is set.
browser: .venv/installed-dev
	tests/browser/run.sh $(BIN)/python

# Bad inputs of every kind: command lines, damaged files, calls. `make fuzz CASES=500 SEED=7` for
# fewer or others.
CASES ?= 10000
SEED ?= 0
fuzz: .venv/installed-dev
	$(BIN)/python -m benchmarks fuzz --cases $(CASES) --seed $(SEED)

format: .venv/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What `python -m benchmarks` and `make test-peers` compare with: two environments, since Triton must
# be importable for the one package and must not be for the other, which has the extra `lm` as well.
# First this package with what it needs, at the pinned versions, then the rest as it is listed. For a
# torch without CUDA packages, let PIP_EXTRA_INDEX_URL name an index of its CPU builds.
peers: .venv-peers-hf/installed .venv-peers-fla/installed

.venv-peers-hf/installed: EXTRAS := [lm]
.venv-peers-%/installed: requirements/peers-%.txt $(LIBRARY)
	$(PYTHON) -m venv .venv-peers-$*
	.venv-peers-$*/bin/python -m pip install --constraint $< --editable ".$(EXTRAS)"
	.venv-peers-$*/bin/python -m pip install --no-deps --requirement $<
	touch $@

.venv/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "statetrack needs Python 3.11 or newer; choose one: make PYTHON=python3.12 ..." >&2; exit 2; }
	$(PYTHON) -m venv .venv
	touch $@

# Installed anew only when what is to be installed changes.
.venv/installed: .venv/python $(LIBRARY)
	$(BIN)/python -m pip install --editable .
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/python -m pip install --editable ".[dev]"
	touch $@

.venv/installed-docs: .venv/installed
	$(BIN)/python -m pip install --editable ".[docs]"
	touch $@

clean:
	rm -rf .venv .venv-lowest .venv-peers-* .sanitize .site docs/api/generated build src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
