# Everything starts from `make demo`; `make help` lists the rest. PYTHON chooses the Python of .venv: make PYTHON=python3.12 demo

SHELL := /bin/bash
BIN := .venv/bin
PORT ?= 8082
RUN := $(BIN)/python -m
export PYTHON
# Compiled modules are kept, whatever the shell sets: tests start hundreds of processes, and each would compile them again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: simulate help setup setup-run setup-airflow demo demo-cluster checked collected test test-quick test-all test-airflow test-wheel torture torture-cluster run cluster lint format bench docs lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: setup-run ## From nothing to the result: 336,776 real flights over HTTP into Delta, back through Spark, compacted and cut
	@$(RUN) docs.demo

demo-cluster: setup-run ## Three brokers, whose leader is killed while flights are sent: no record is lost or doubled
	@$(RUN) docs.demo.cluster

# In a fresh clone pytest has to compile the test modules. One process does it while the types are checked; otherwise
# each worker would, for 20 seconds. An error here is ignored, because the test run then shows it.
collected: setup
	@$(RUN) pytest --collect-only -qq >/dev/null 2>&1 || true

checked: setup
	@$(MAKE) --no-print-directory --jobs 2 lint collected

test: checked ## Run what continuous integration runs: lint, types, quick tests, each capability once on real processes and Spark; fourteen minutes
	@$(RUN) pytest --numprocesses 4

test-quick: setup ## Run the tests that start no process and no JVM; six minutes
	@$(RUN) pytest --numprocesses 4 -m "not system and not spark and not long and not airflow and not wheel"

test-all: checked setup-airflow ## Run all tests, with documentation, notebook, demo, wheel, Airflow and three minutes of simulation, before an issue is done; an hour and a half
	@$(RUN) pytest --numprocesses 4 --hypothesis-profile many -m "not airflow and not wheel"
	@$(RUN) pytest -m wheel tests/install
	@$(RUN) pytest -m airflow tests/airflow
	@$(RUN) tests.simulation --seconds 120
	@$(RUN) tests.simulation --seconds 60 --brokers 1

test-airflow: setup setup-airflow ## Run the DAGs in a real Airflow on a real store
	@$(RUN) pytest -m airflow tests/airflow

test-wheel: setup ## Build and install the wheel as the Dockerfile does, and run a store from it
	@$(RUN) pytest -m wheel tests/install

simulate: setup ## Run a simulated store under faults, by a seed: make simulate SEED=7 SECONDS=600 (of wall time, 60) BROKERS=1 (3); default: a random seed
	@$(RUN) tests.simulation $(if $(SEED),--seed $(SEED)) --brokers $(or $(BROKERS),3) --seconds $(or $(SECONDS),60)

torture: setup ## Test under faults for a long time: make torture SEED=7 DURATION=600 (seconds, 120 at least; 1800 for all); default: a random seed
	@$(RUN) tests.faults.bench.torture $(if $(SEED),--seed $(SEED)) --duration $(or $(DURATION),600)

torture-cluster: setup ## Test a cluster of three brokers under faults: make torture-cluster SEED=7 DURATION=300 (seconds); default: a random seed
	@$(RUN) tests.faults.cluster.torture $(if $(SEED),--seed $(SEED)) --duration $(or $(DURATION),300)

run: setup-run ## Run the store on ./data at http://127.0.0.1:8082, for Kafka's clients at port 9092, until Ctrl-C; make run PORT=8083 KAFKA_PORT=9093 for other ports (0: a free one)
	@exec $(BIN)/logstore serve --data ./data --port $(PORT) $(if $(KAFKA_PORT),--kafka-port $(KAFKA_PORT))

cluster: setup-run ## Run three brokers and a ZooKeeper on ./data-cluster, until Ctrl-C; make cluster BROKERS=5 for more, KAFKA_PORT=0 for free ports
	@exec $(BIN)/logstore cluster start --brokers $(or $(BROKERS),3) --data ./data-cluster $(if $(KAFKA_PORT),--kafka-port $(KAFKA_PORT))

lint: setup ## Check lint, formatting, layers and types
	@$(RUN) ruff check
	@$(RUN) ruff format --check
	@$(BIN)/lint-imports
	@$(RUN) mypy

format: setup ## Format the code and repair what lint can repair
	@$(RUN) ruff check --fix
	@$(RUN) ruff format

bench: setup ## Measure beside a real Kafka: make bench CASES=produce-json-100,fetch-* PAIRS=3 SECONDS=4; LIST=1 names the cases, FULL=1 takes all; BEFORE=../other takes that checkout's store instead
	@$(if $(LIST),,conf/bootstrap.sh bench || true)
	@$(RUN) benchmarks --pairs $(or $(PAIRS),3) --seconds $(or $(SECONDS),4) --cases '$(CASES)' $(if $(BEFORE),--before '$(BEFORE)') $(if $(FULL),--full) $(if $(LIST),--list)

docs: setup ## Write the pages and the types of Kafka's messages that are made from the code
	@$(RUN) conf.configuration_page docs/configuration.md
	@$(RUN) conf.kafka_messages_stub
	@$(RUN) conf.kafka_api_table

lock: ## Resolve the pinned requirements again (needs uv)
	@uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes \
		--no-header --no-annotate --no-emit-index-url --no-emit-find-links --quiet --output-file requirements.lock
	@uv pip compile pyproject.toml --extra demo --constraints requirements.lock --universal --python-version 3.11 \
		--generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links --quiet \
		--output-file conf/demo.lock
	@uv pip compile pyproject.toml --extra cluster --constraints requirements.lock --universal --python-version 3.11 \
		--generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links --quiet \
		--output-file conf/server.lock
	@uv pip compile airflow_dags/requirements.in --universal --python-version 3.11 --generate-hashes \
		--no-header --no-annotate --no-emit-index-url --no-emit-find-links --quiet \
		--output-file airflow_dags/requirements.lock
	@uv pip compile benchmarks/requirements.in --universal --python-version 3.11 --generate-hashes \
		--no-header --no-annotate --no-emit-index-url --no-emit-find-links --quiet \
		--output-file benchmarks/requirements.txt

clean: ## Remove everything that was made here, except ./data
	@rm -rf .venv .venv-airflow .venv-bench .cache build spark-warehouse .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# The script itself checks whether anything has changed since its last installation.
setup:
	@conf/bootstrap.sh

# This installs no development tools.
setup-run:
	@conf/bootstrap.sh run

setup-airflow:
	@conf/bootstrap.sh airflow
