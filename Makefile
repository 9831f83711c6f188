# Two commands set everything up: `make demo` and `make test`. PYTHON names the interpreter to build .venv with.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
JOBS ?= 2

.PHONY: help demo quick test check fix docs bench kills clean
help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

# torch first and pinned: a plain request for it may bring gigabytes of GPU libraries this machine has no use for.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "seqmlm needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(READY)  ## install, train a small protein model on the built-in sample, score with it (under 3 minutes)
	@$(BIN)/seqmlm demo --out $(or $(SEQMLM_DEMO),demo)

# Layers, names, and for every task its formats, JSON, Python, shards, kills and resumption.
QUICK := tests/test_layering.py tests/test_names.py tests/test_every_task.py
QUICK_CASES := not test_every_task or formats or json or terminal or python or stopped or dies or shard

quick: $(READY)  ## lint, types and a part of the suite that finds most mistakes (at most 3 CPU minutes)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 -m "not slow and not kills" -k "$(QUICK_CASES)" $(QUICK)

test: $(READY)  ## the whole test suite
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

check: $(READY) docs  ## lint, format, spelling, types, layering, and the site of the documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layering.py

fix: $(READY)  ## let ruff repair what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)  ## build the documentation as a site in site/; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

bench: $(READY)  ## every benchmark, on the real data where it is at hand (DATA=folder)
	$(BIN)/python benchmarks/pretrain_throughput.py --data $(or $(DATA),../shared/data)
	$(BIN)/python benchmarks/pretrain_real.py --data $(or $(DATA),../shared/data)
	$(BIN)/python benchmarks/ingest.py --data $(or $(DATA),../shared/data)
	$(BIN)/python benchmarks/alarms.py --data $(or $(DATA),../shared/data)

kills: $(READY)  ## the long version of the kill tests
	SEQMLM_KILLS=200 $(BIN)/python -m pytest -m kills -o faulthandler_timeout=0

clean:  ## remove what the targets above made; a demo's folder keeps all files that the demo did not make
	@for folder in $(or $(SEQMLM_DEMO),demo) seqmlm-demo; do \
		if [ -d "$$folder" ] && [ -x $(BIN)/seqmlm ]; then $(BIN)/seqmlm demo --remove --out "$$folder" || true; fi; \
	done
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis
