# Everything starts from `make demo`; `make help` lists the rest. The Python of .venv can be chosen: make PYTHON=python3.12 demo

SHELL := /bin/bash
BIN := .venv/bin
RUN := $(BIN)/python -m
export PYTHON

.DEFAULT_GOAL := help
.PHONY: help setup demo test run lint format bench docs lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: setup ## From nothing to the result: 336,776 real flights over HTTP into Delta, read back by Spark
	@$(RUN) logstore.demo

test: lint ## Lint, types and tests
	@$(RUN) pytest

run: setup ## The store on ./data at http://127.0.0.1:8082, until Ctrl-C
	@exec $(BIN)/logstore serve --data ./data --port 8082

lint: setup ## Lint, formatting, layers and types
	@$(RUN) ruff check
	@$(RUN) ruff format --check
	@$(BIN)/lint-imports
	@$(RUN) mypy

format: setup ## Format the code and repair what lint can repair
	@$(RUN) ruff check --fix
	@$(RUN) ruff format

bench: setup ## Measure appends over HTTP on this machine
	@$(RUN) benchmarks.produce

docs: setup ## Write the pages that are made from the code
	@$(RUN) logstore.configuration_page docs/configuration.md

lock: ## Resolve requirements.lock anew from pyproject.toml (needs uv)
	@uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes \
		--no-header --no-annotate --no-emit-index-url --no-emit-find-links --quiet --output-file requirements.lock

clean: ## Remove what was made here, except ./data
	@rm -rf .venv .cache build spark-warehouse .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# The script itself knows whether anything has changed since it last installed.
setup:
	@conf/bootstrap.sh
