# `make demo` and `make test` do all the setup: one to see the program, the other to work on it.
.DEFAULT_GOAL := help
.PHONY: help demo test test-all soak unit check format cases bench clean
# Without byte code, each process compiles everything again, which doubles the time of the tests.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
# Tests wait part of the time for servers and programs, so use more workers than cores.
WORKERS ?= $(shell expr $$(nproc) '*' 5 / 2)
# Options for pytest: make test ARGS='-k lease'
ARGS ?=
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist worksteal --durations 10 --durations-min 1
# How long `make soak` searches for new examples.
SOAK ?= 10m

help: ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /make \1\t/' | expand -t 16

demo: .venv/.sandbox ## install into .venv and show what there is; no account, no root
	@scripts/demo

test: .venv/.dev ## install what tests need, where allowed, and run them; options in ARGS='-k lease'
	@scripts/real-parts
	@scripts/azure-cli
	$(PYTEST) $(ARGS)

test-all: .venv/.dev ## the same, with variants and every boundary at which a program can be killed or interrupted
	@scripts/real-parts
	@scripts/azure-cli
	$(PYTEST) --exhaustive $(ARGS)

soak: .venv/.dev ## look for new failing examples of the property tests, for SOAK=10m
	@scripts/soak $(SOAK) $(ARGS)

unit: .venv/.dev ## the quick tests: no sockets, no waiting
	$(BIN)/pytest -n auto --dist worksteal tests/unit $(ARGS)

check: .venv/.dev ## lint, format, types, import direction, wheel
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/properties/test_imports.py
	$(BIN)/python -m build --wheel --no-isolation --outdir build/wheel .

format: .venv/.dev ## fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

cases: .venv/.dev ## write the expected output of every case file again, to be read in `git diff`
	$(BIN)/pytest -q tests/properties/test_spec_cases.py tests/unit/test_target_files.py tests/properties/test_lint_cases.py \
		tests/properties/test_lint_table.py --update-cases

bench: .venv/.dev ## measurements, each a ratio of two things timed in one run
	$(BIN)/python -m bench

clean: ## remove everything that a command can make again
	rm -rf .venv .venv-az build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

.venv/.sandbox: pyproject.toml scripts/environment
	@scripts/environment sandbox
	@touch $@

.venv/.dev: pyproject.toml scripts/environment
	@scripts/environment sandbox,dev
	@touch $@ .venv/.sandbox
