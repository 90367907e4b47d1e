# Every target sets up its own virtual environment; only Python >= 3.11 is needed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= 2
DEMO ?= outputs/demo
# Idle threads sleep: on a machine that others use too, spinning ones make training several
# times slower.
export OMP_WAIT_POLICY ?= PASSIVE

.DEFAULT_GOAL := help
.PHONY: help demo test lint format docs bench studies validation clean

help: ## List the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 10

demo: $(READY) ## Roll out shipped weights, train and compare small models, write the report
	$(BIN)/pibert demo --out $(DEMO)

test: $(READY) ## Run the tests (fast ones; WORKERS=4 for more processes)
	$(BIN)/pytest -q -n $(WORKERS) --dist worksteal

lint: $(READY) ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.docs-ready ## Build the documentation as static pages: outputs/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

bench: $(VENV)/.bench-ready ## Time PIBERT against a Fourier neural operator
	$(BIN)/python benchmarks/against_fno.py

validation: $(READY) ## Validate the solver against theory and publications; writes docs/solver.md
	$(BIN)/python -m validation

studies: $(READY) ## Measure the effect of pretraining; writes docs/pretraining.md (for a GPU)
	$(BIN)/python -m studies

clean: ## Remove caches and outputs, keep the environment
	rm -rf outputs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find pibert tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	@touch $@

$(VENV)/.bench-ready: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[bench]' -c constraints.txt
	@touch $@

$(VENV)/.docs-ready: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]' -c constraints.txt
	@touch $@
