# Needs only python3 >= 3.12, make and pip. On Debian and Ubuntu also: apt install python3-venv.
#
# Everything runs from the wheel installed in .venv, never from the checkout's folders. Dependencies are installed again when
# pyproject.toml changes, the wheel when a source file does.

PYTHON ?= python3
VENV ?= .venv
PINS ?=
JOBS ?= 2
ARGS ?=

EXPERIMENTS := resnet-depth mlp-depth lstm-length step-time frontier predicted-vs-compiled optimality

OLDEST := jax==0.11.2 jaxlib==0.11.2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

# Folders are listed too: their times change when a file is deleted.
PACKAGES := remat_lab solvers experiments
SOURCES := $(shell find $(PACKAGES) \( -name __pycache__ -o -name results \) -prune -o -print)

.PHONY: help install compare test test-slow test-remat3 test-oldest test-targets test-both lint format bench bench-solvers bench-thousand fuzz clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 12))' || { \
	  echo "remat_lab needs Python 3.12 or newer, but $(PYTHON) is $$($(PYTHON) --version 2>&1)." \
	    "Name another one: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "Could not create $(VENV) with $(PYTHON). On Debian and Ubuntu: apt install python3-venv, then try again." >&2; exit 1; }
	@touch $@

$(VENV)/.dependencies: $(VENV)/.created pyproject.toml
	$(PIP) install --quiet '.[dev]' $(PINS)
	@touch $@

$(VENV)/.wheel: $(VENV)/.dependencies $(SOURCES)
	$(PIP) install --quiet --no-deps --no-build-isolation --force-reinstall .
	@touch $@

install: $(VENV)/.wheel ## set up .venv and install the wheel into it

compare: install ## plan, emit and measure a ResNet-20 under every strategy (ARGS="--depth 56 ..." for more)
	$(BIN)/remat-lab compare $(ARGS)

test: install ## all tests but the slow ones
	$(BIN)/pytest -n $(JOBS) --dist loadfile $(ARGS)

test-slow: install ## the slow tests
	$(BIN)/pytest -m slow $(ARGS)

test-remat3: install ## the tests of decorated functions and policies on JAX's new implementation of jax.checkpoint
	JAX_REMAT3=1 $(BIN)/pytest -n $(JOBS) --dist loadfile $(ARGS) \
	  tests/test_{faults,frameworks,linen,naming,nnx,policy,remat,segments,transforms}.py

fuzz: install ## 2,000 random programs against plain JAX; continues fuzz.jsonl where it ends (ARGS="--minutes 10" for a part)
	$(BIN)/python tests/fuzz.py $(ARGS)

test-oldest: ## the tests on the oldest supported JAX, in an environment of its own
	$(MAKE) test VENV=.venv-oldest PINS='$(OLDEST)'

test-targets: install ## compile for a GPU that is not here (installs the extra gpu-target, 300 MB)
	$(PIP) install --quiet '.[gpu-target]' "jax-cuda12-pjrt==$$($(BIN)/python -c 'from importlib.metadata import version; print(version("jaxlib"))')"
	REMAT_LAB_TARGETS=1 $(BIN)/pytest -m ahead tests/test_targets_ahead.py $(ARGS)

test-both: test test-oldest ## the tests on the newest and on the oldest JAX

lint: install ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: install ## rewrite the sources as ruff would have them
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

smoke-experiments: install ## every experiment in its smallest form, into a folder of its own: points, tables and pictures
	@out=$$(mktemp -d); trap 'rm -rf "$$out"' EXIT; for name in $(EXPERIMENTS); do echo "== $$name"; \
	  $(BIN)/remat-lab experiment $$name --preset smoke --out "$$out" $(ARGS); done

bench-experiments: install ## the cpu preset of every experiment, into experiments/results; goes on where it was stopped
	@for name in $(EXPERIMENTS); do echo "== $$name"; \
	  $(BIN)/remat-lab experiment $$name --preset cpu --out experiments/results $(ARGS); done

bench: install ## every benchmark; results go to benchmarks/results
	@shopt -s nullglob; scripts=(benchmarks/bench_*.py); \
	  [ $${#scripts[@]} -gt 0 ] || { echo "no benchmarks/bench_*.py found" >&2; exit 1; }; \
	  for script in "$${scripts[@]}"; do echo "== $$script"; $(BIN)/python "$$script"; done

bench-solvers: install ## the solvers on planning graphs
	$(BIN)/python benchmarks/bench_solvers.py $(ARGS)

bench-thousand: install ## compile the plans of a 1,001-layer ResNet: minutes a point (ARGS="--at 3.3" for one)
	$(BIN)/python benchmarks/bench_hierarchical.py --parts compiled $(ARGS)

clean: ## remove environments, caches and builds
	rm -rf .venv .venv-oldest build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
