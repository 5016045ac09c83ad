# Thin: each target creates .venv when it is missing, then runs one command in it. Works offline once .venv is there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test lint format bench clean

help:
	@echo "make demo    export, prove and serve the built-in toy pair"
	@echo "make test    run the tests"
	@echo "make lint    ruff, ruff format and mypy --strict"
	@echo "make format  rewrite files as ruff formats them"
	@echo "make bench   measure against peers (long; see benchmarks/README.md)"

# One stamp for one installation: changed requirements install again.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[cpu,export,dev]'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps truememory
	@touch $@

demo: $(STAMP)
	$(BIN)/samevec demo

test: $(STAMP)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(STAMP)
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
