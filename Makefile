# Every target does its own set-up, so each works as the first command on a fresh machine.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
STAMP := $(VENV)/.installed

MINUTES ?= 30

.DEFAULT_GOAL := help
.PHONY: help setup check test soak simulate faults demo bench bench-spark clean

help: ## Show this list.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## Create .venv with the package and every extra; warm the numba cache.

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	  --editable '.[spark,zookeeper,console,dev]'
	$(BIN)/python -m compileall -q src
	$(BIN)/python -m tidemill.wire.kernels
	touch $(STAMP)

check: setup ## Format, lint, types, layers.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test: check ## The checks, then all tests in their short form.
	$(PYTEST) -n 2 --dist loadgroup -m "not soak"

soak: setup ## The long forms: the counts and durations that a release must show.
	$(PYTEST) -m "soak or hypothesis" --timeout 7200 --hypothesis-profile soak

SEEDS ?= 1000
FIRST ?= 0
JOBS ?= 2
simulate: setup ## Whole clusters in virtual time, everything failing: SEEDS=1000 FIRST=0 JOBS=2.
	$(BIN)/python -m tidemill.testing.simulate --seeds $(SEEDS) --first $(FIRST) --jobs $(JOBS)

# On each store for so long, whatever came of the other: one that fails must not hide the next.
faults: setup ## Brokers killed, cut off and filled up under load, on both stores: MINUTES=30 STORE=... SEED=...
	@failed=; for store in $(or $(STORE),sqlite zookeeper); do \
	  $(BIN)/python -m tidemill.testing.faults --minutes $(MINUTES) --store $$store \
	    $(if $(SEED),--seed $(SEED)) --load "$(BIN)/python -m tests.faults.librdkafka_load" \
	    && outcome=good || { outcome=BAD; failed=yes; }; \
	  outcomes="$$outcomes $$store: $$outcome;"; \
	done; echo "faults, $(MINUTES) minutes each:$$outcomes"; test -z "$$failed"

demo: setup ## Three brokers, clicks, a Spark pipeline, and what came through; ends by itself.
	$(BIN)/python -m tidemill.cli.main demo

bench: setup ## Tidemill beside Apache Kafka: ratios with spread, and a plot in bench/out.
	$(BIN)/python -m bench.timers
	$(BIN)/python -m bench.run
	$(BIN)/python -m bench.columnar
	$(BIN)/python -m bench.scale

bench-spark: setup ## Topics into Spark and back, beside Spark's own Kafka connector.
	$(BIN)/python -m bench.spark

clean: ## Remove what the other targets made.
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis bench/out tidemill-demo.html
