# `make demo` and `make test` set themselves up; a second call needs no network.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# threads that spin while they wait stall each other on busy cores
export OMP_WAIT_POLICY ?= passive
export KMP_BLOCKTIME ?= 0

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

.PHONY: help setup demo test format clean
help: ## list the targets
	@awk -F ': .*## ' '/^[a-z]+:.*## /{printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## the virtual environment, with everything installed

demo: $(READY) ## watch one layer learn chains of 15 hops, and ordinary attention fail to
	$(BIN)/chacal demo

test: $(READY) ## format, lint, types and tests
	$(BIN)/ruff format --check chacal tests
	$(BIN)/ruff check chacal tests
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

format: $(READY) ## rewrite the code in the house format
	$(BIN)/ruff format chacal tests
	$(BIN)/ruff check --fix chacal tests

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build *.egg-info
