# `make demo` and `make test` need python3 (3.11 or later), java, mvn and the package registries; nothing else.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
STAMP := $(VENV)/.headrace-installed
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
SOURCES := headrace state streams connectors api

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: venv ## run every example to its end, with a worker killed midway
	$(BIN)/python examples/demo.py

.PHONY: test
test: lint console-check ## everything CI runs: lint, types, the console, all tests on real services, in JOBS=2 processes
	$(BIN)/python -m pytest tests -q -n $(or $(JOBS),2) --dist loadfile

.PHONY: check
check: lint ## what needs no service: format, lint, imports, types, unit tests
	$(BIN)/python -m pytest tests/unit -q

.PHONY: lint
lint: venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/pyright

.PHONY: format
format: venv ## format, and fix what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: bench
bench: venv ## steps per second, latency, CPU per step: make bench, or make bench QUICK=1 within 50 s
	$(BIN)/python -m benchmarks $(if $(QUICK),--quick)

.PHONY: guard
guard: venv ## did the Python of a step get more expensive than in the commit before: CPU, not time
	$(BIN)/python -m benchmarks.guard

.PHONY: bench-peers
bench-peers: venv ## the same work on what users would pick instead: make bench-peers PEERS=restate,dbos WORKLOADS=w1 ROUNDS=1
	$(BIN)/python -m benchmarks.peers $(if $(PEERS),--peers $(PEERS)) $(if $(WORKLOADS),--workloads $(WORKLOADS)) \
		$(if $(ROUNDS),--rounds $(ROUNDS))

.PHONY: chaos
chaos: venv ## random faults on every part: make chaos SECONDS=600 SEED=1, and KINDS=F01,F20 for some only
	$(BIN)/python -m tests.chaos --seconds $(or $(SECONDS),600) --seed $(or $(SEED),1) $(if $(KINDS),--kinds "$(KINDS)")

# The console's bundle is committed, so nobody needs Node to run Headrace; who changes it, or the API's schemas, builds it.
DASHBOARD := api/dashboard
MODULES := $(DASHBOARD)/node_modules/.installed

.PHONY: console
console: venv $(MODULES) ## build the console: types from the API's document, then the bundle
	@mkdir -p build
	$(BIN)/python -m api.document > build/openapi.json
	cd $(DASHBOARD) && npm run -s types && npm run -s check && npm run -s build

.PHONY: console-check
console-check: venv $(MODULES) ## is the committed console what its sources and the API's document make
	@mkdir -p build
	$(BIN)/python -m api.document > build/openapi.json
	cd $(DASHBOARD) && TYPES=../../build/schema.d.ts npm run -s types >/dev/null && npm run -s check
	@diff -q build/schema.d.ts $(DASHBOARD)/src/api/schema.d.ts || { echo "the console's types are out of date: make console" >&2; exit 1; }
	cd $(DASHBOARD) && npm run -s build -- --outDir ../../build/console --emptyOutDir --logLevel warn
	@diff -r build/console $(DASHBOARD)/dist >/dev/null || { echo "the console's bundle is out of date: make console" >&2; exit 1; }

$(MODULES): $(DASHBOARD)/package-lock.json
	cd $(DASHBOARD) && npm ci --silent --no-audit --no-fund
	@touch $@

.PHONY: venv
venv: $(STAMP) ## create .venv from the lock; at once when nothing changed

$(STAMP): requirements/build.txt requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "headrace needs Python 3.11 or later")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -q --require-hashes --no-deps -r requirements/build.txt
	$(PIP) install -q --require-hashes --no-deps --no-build-isolation -r requirements/dev.txt
	$(PIP) install -q --no-deps --no-build-isolation -e .
	@touch $@

# No address of a registry goes into a lock, so it installs from whichever one pip is set up for. A release is
# taken a week after it appeared, when a bad one has usually been withdrawn.
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--exclude-newer '1 week' --custom-compile-command 'make lock' $(LOCK_FLAGS)

.PHONY: lock
lock: venv ## resolve the dependencies anew: make lock LOCK_FLAGS=--upgrade
	$(COMPILE) pyproject.toml --extra engine --group dev -o requirements/dev.txt
	$(COMPILE) pyproject.toml --extra engine -c requirements/dev.txt -o requirements/engine.txt
	$(COMPILE) --group pyproject.toml:build -c requirements/dev.txt -o requirements/build.txt
	@if grep -HnE '://|/[hr]o[mo][et]/' requirements/*.txt; then echo "a lock names an address or a path" >&2; exit 1; fi

.PHONY: clean
clean: ## remove what the tools left; keeps .venv
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find $(SOURCES) tests -name __pycache__ -type d -prune -exec rm -rf {} +
