# Two commands do all the set-up: `make demo` to see it, `make test` to work on it.
.DEFAULT_GOAL := help
.PHONY: help demo test unit check format cases bench clean

BIN := .venv/bin
# Killed, interrupted and racing programs: what comes of them must not hang on what runs beside them.
RACES := $(patsubst %,tests/integration/provision/test_%.py,interrupt kill throttling two_at_once)

help: ## list the commands
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /make \1\t/' | expand -t 16

demo: .venv/.sandbox ## install into .venv and show what there is; no account, no root
	@scripts/demo

test: .venv/.dev ## install into .venv, fetch the real parts where allowed, run every test
	@scripts/real-parts
	@scripts/azure-cli
	$(BIN)/pytest -n auto --dist worksteal tests/unit
	$(BIN)/pytest -n auto --dist worksteal tests/properties
	$(BIN)/pytest -n auto --dist loadfile -m 'not alone' $(patsubst %,--ignore %,$(RACES)) tests/integration tests/e2e
	$(BIN)/pytest $(RACES)
	$(BIN)/pytest -m alone tests/integration tests/e2e

unit: .venv/.dev ## the quick tests: no sockets, no waiting
	$(BIN)/pytest -n auto --dist worksteal tests/unit

check: .venv/.dev ## lint, format, types, import direction, wheel
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/properties/test_imports.py
	$(BIN)/python -m build --wheel --no-isolation --outdir build/wheel .

format: .venv/.dev ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

cases: .venv/.dev ## write the expected output of every case file anew, to be read in `git diff`
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
