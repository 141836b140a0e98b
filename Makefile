# Everything below works on a machine with Python 3.11, make and a package registry; nothing else set up.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: help setup demo test lint format bench mutants interop soak lock clean integration
help:            ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(READY)  ## a virtual environment with the locked dependencies
$(READY): requirements/lock.txt pyproject.toml hatch_build.py src/tracecore/signals/compiled/lines.c
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tracecore needs Python 3.11 or newer; set PYTHON=")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the locked dependencies (first time only)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/lock.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q src
	@touch $@

demo: $(READY)   ## diagnose a real recorded incident
	@$(BIN)/tracecore diagnose examples/incidents/nccl_hang_one_rank_missing

test: $(READY)   ## lint, types, layers, and every test this machine can run
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@$(BIN)/mypy
	@$(BIN)/pytest -n 3 -m "not interop and not integration and not heavy"

integration: $(READY) $(VENV)/.ray  ## the tests that start PostgreSQL, a browser, Ray, object stores, or processes to be killed
	@$(BIN)/pytest -n 2 -m "integration or heavy"

# Ray is large, so only these tests install it.
$(VENV)/.ray: $(READY) requirements/ray.txt
	@echo "installing Ray (first time only)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/ray.txt
	@touch $@

lint: $(READY)   ## ruff, mypy --strict, import-linter, the lints of patterns and recipes
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@$(BIN)/mypy
	@$(BIN)/tracecore patterns lint
	@$(BIN)/python -m tracecore.recipes.lint

format: $(READY)
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

bench: $(READY)  ## measure, print the table, fail above a committed ceiling
	@$(BIN)/python -m bench

mutants: $(READY) ## change the code at random (MUTANTS, MUTANTS_SEED) and fail if tests notice too few
	@$(BIN)/python -m tests.mutants

interop: $(READY) ## compare with other people's programs where the machine has them
	@$(BIN)/pytest -m interop tests/interop tests/notify

soak: $(READY)   ## torture the agent for hours (SOAK_SECONDS, SOAK_SEED): no line may be lost
	@$(BIN)/python tests/torture/soak.py

lock: $(READY)   ## rewrite requirements/lock.txt, ray.txt and stores.txt
	@$(BIN)/python -m pip install --quiet uv
	@$(BIN)/uv pip compile --quiet --no-header --no-annotate --no-emit-index-url --generate-hashes --python-version 3.11 \
	  --extra server --extra mcp --extra postgres --extra useragent --extra gpu --extra kafka --extra archive --group dev pyproject.toml requirements/build.in --output-file requirements/lock.txt
	@sed -E 's/ *\\$$//; /--hash/d' requirements/lock.txt > $(VENV)/constraints.txt
	@$(BIN)/uv pip compile --quiet --no-header --no-annotate --no-emit-index-url --generate-hashes --python-version 3.11 \
	  --constraint $(VENV)/constraints.txt requirements/ray.in --output-file requirements/ray.txt
	@$(BIN)/uv pip compile --quiet --no-header --no-annotate --no-emit-index-url --generate-hashes --python-version 3.11 \
	  --constraint $(VENV)/constraints.txt requirements/stores.in --output-file requirements/stores.txt

clean:
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
