# Needs only python3 >= 3.12, make and pip. On Debian and Ubuntu also: apt install python3-venv.
#
# Everything runs from the wheel installed in .venv, never from the checkout's folders. Dependencies are those of the lock files in
# requirements/, and are installed again when these or pyproject.toml change, the wheel when a source file does.

PYTHON ?= python3
JOBS ?= 2
ARGS ?=

# Which releases, each in an environment of its own: `locked`, `oldest` (locked, too, with the oldest supported JAX), or `newest`
# (looked up at each run). Any target but test-targets runs on each of them: make compare RELEASES=oldest
RELEASES ?= locked
VENV ?= .venv$(patsubst %,-%,$(filter-out locked,$(RELEASES)))
LOCK := requirements/$(RELEASES).txt
$(if $(filter locked oldest newest,$(RELEASES)),,$(error RELEASES=$(RELEASES): give locked, oldest or newest))

# What the oldest and the newest releases are tested on in continuous integration: planning, emitting, policies, decorated
# functions, loops, frameworks, and each private name of JAX.
CORE := tests/test_{plan,emit,policy,remat,loops,frameworks,linen,nnx}.py $(wildcard tests/test_jax_names.py)

EXPERIMENTS := resnet-depth mlp-depth lstm-length step-time frontier predicted-vs-compiled optimality

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Only wheels: what a source distribution needs to be built would come without a lock.
INSTALL_LOCKED := $(PIP) install --require-hashes --only-binary :all: --requirement
RANGES := requirements/ranges.py
# For every Python from 3.12 on and every platform; whatever index is configured, its address stays out of the files.
RESOLVE = .venv-lock/bin/uv pip compile --quiet --python .venv-lock/bin/python --universal --python-version 3.12 --no-build \
  --generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' $(ARGS)
MAKEFLAGS += --no-print-directory
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

# Folders are listed too: their times change when a file is deleted.
PACKAGES := remat_lab solvers experiments
SOURCES := $(shell find $(PACKAGES) \( -name __pycache__ -o -name results \) -prune -o -print)

.PHONY: help install compare test test-slow test-remat3 test-oldest test-newest test-core-oldest test-core-newest test-targets \
  lock lint format smoke-experiments bench bench-experiments bench-solvers bench-thousand fuzz clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 20

%/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 12))' || { \
	  echo "remat_lab needs Python 3.12 or newer, but $(PYTHON) is $$($(PYTHON) --version 2>&1)." \
	    "Name another one: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(@D) || { \
	  echo "Could not create $(@D) with $(PYTHON). On Debian and Ubuntu: apt install python3-venv, then try again." >&2; exit 1; }
	@touch $@

ifeq ($(RELEASES),newest)
.PHONY: $(VENV)/.dependencies
$(VENV)/.dependencies: $(VENV)/.created
	$(PIP) install --upgrade packaging
	@$(BIN)/python $(RANGES) newest > $(VENV)/newest.txt
	$(PIP) install --upgrade --upgrade-strategy eager --requirement $(VENV)/newest.txt
	@$(BIN)/python $(RANGES) installed
else
$(VENV)/.dependencies: $(VENV)/.created $(LOCK) pyproject.toml $(RANGES)
	$(INSTALL_LOCKED) $(LOCK)
	@$(BIN)/python $(RANGES) check
	@touch $@
endif

$(VENV)/.wheel: $(VENV)/.dependencies $(SOURCES)
	$(PIP) install --no-index --no-deps --no-build-isolation --force-reinstall .
	@touch $@

install: $(VENV)/.wheel ## set up .venv with the locked releases and install the wheel into it

compare: install ## plan, emit and measure a ResNet-20 under every strategy (ARGS="--depth 56 ..." for more)
	$(BIN)/remat-lab compare $(ARGS)

test: install ## all tests but the slow ones, on the locked releases
	$(BIN)/pytest -n $(JOBS) --dist loadfile $(ARGS)

test-slow: install ## the slow tests
	$(BIN)/pytest -m slow $(ARGS)

test-remat3: install ## the tests of decorated functions and policies on JAX's new implementation of jax.checkpoint
	JAX_REMAT3=1 $(BIN)/pytest -n $(JOBS) --dist loadfile $(ARGS) \
	  tests/test_{faults,frameworks,linen,naming,nnx,policy,remat,segments,transforms}.py

fuzz: install ## 2,000 random programs against plain JAX; continues fuzz.jsonl where it ends (ARGS="--minutes 10" for a part)
	$(BIN)/python tests/fuzz.py $(ARGS)

test-oldest: ## `make test` on the oldest supported JAX, in an environment of its own
	$(MAKE) test RELEASES=oldest

test-newest: ## `make test` on what the package index has now, looked up at each run and printed, in an environment of its own
	$(MAKE) test RELEASES=newest

test-core-oldest: ## the core of the tests on the oldest supported JAX
	$(MAKE) test-oldest ARGS='$(CORE) $(ARGS)'

test-core-newest: ## the core of the tests on what the package index has now
	$(MAKE) test-newest ARGS='$(CORE) $(ARGS)'

test-targets: install ## compile for a GPU that is not here (installs the locked extra gpu-target, 300 MB)
	$(INSTALL_LOCKED) requirements/gpu-target.txt
	REMAT_LAB_TARGETS=1 $(BIN)/pytest -m ahead tests/test_targets_ahead.py $(ARGS)

lock: .venv-lock/.created ## resolve pyproject.toml's ranges into requirements/*.txt (ARGS="--upgrade" for newer releases)
	@.venv-lock/bin/python -m pip --disable-pip-version-check --quiet install 'uv<1' packaging
	@echo "resolving requirements/locked.txt, oldest.txt and gpu-target.txt"
	@$(RESOLVE) pyproject.toml --extra dev -o requirements/locked.txt
	@.venv-lock/bin/python $(RANGES) oldest | $(RESOLVE) - pyproject.toml --extra dev -o requirements/oldest.txt
	@.venv-lock/bin/python $(RANGES) gpu-target | $(RESOLVE) - -o requirements/gpu-target.txt
	@.venv-lock/bin/python $(RANGES) check

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
	rm -rf .venv .venv-* build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
