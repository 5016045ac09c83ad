# Thin: each target creates .venv when it is missing, then runs one command in it. Works offline once .venv is there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help check demo test lint format bench native wheels emulators releases clean

help:
	@echo "make demo    export, prove and serve the built-in toy pair"
	@echo "make check   lint, and the tests without torch and processes"
	@echo "make test    run the tests"
	@echo "make lint    ruff, ruff format and mypy --strict"
	@echo "make format  rewrite files as ruff formats them"
	@echo "make bench   measure against peers (long; see benchmarks/README.md)"
	@echo "make native  build the C++ again"
	@echo "make wheels  a wheel for x86-64 and one for ARM64, into dist/"
	@echo "make emulators  other processors, for the tests (Debian 12 on x86-64, as root)"
	@echo "make releases  the oldest and newest packages, for the tests; RELEASES=all adds those between"

# One stamp for one installation: changed requirements install again, changed C++ builds again.
$(STAMP): pyproject.toml constraints.txt hatch_build.py $(wildcard native/*.cpp native/*.h native/*.inc native/*.py)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[cpu,export,dev]'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps truememory
	@touch $@

demo: $(STAMP)
	$(BIN)/samevec demo

test: $(STAMP)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

check: lint
	$(BIN)/python -m pytest --quiet -m "not model and not server" tests/unit tests/contract tests/property

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(STAMP)
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

native: $(STAMP)
	$(BIN)/python native/build.py

# pip fetches zig into a build environment of its own, as hatch_build.py asks.
wheels: $(STAMP)
	for target in x86_64-linux aarch64-linux; do \
	  SAMEVEC_BUILD_TARGET=$$target $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist . || exit 1; \
	done
	$(BIN)/python -m pytest tests/native/built_wheels.py

emulators: $(STAMP)
	$(BIN)/python tests/native/emulators.py

releases: $(STAMP)
	$(BIN)/python tests/native/releases.py $(RELEASES)

clean:
	rm -rf $(VENV) .emulators .releases .mypy_cache .pytest_cache .ruff_cache .hypothesis
