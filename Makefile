# Two commands do everything: `make demo` and `make test`. Both build .venv first and write only inside this folder.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LAB := $(VENV)/.lab
DEV := $(VENV)/.dev

export XDG_CACHE_HOME := $(CURDIR)/.cache
export PIP_CACHE_DIR := $(CURDIR)/.cache/pip
export PYTHONPYCACHEPREFIX := $(CURDIR)/.cache/pycache
# A hundred processes import torch in the tests; each would compile our files anew. They are kept in .cache.
unexport PYTHONDONTWRITEBYTECODE
export MPLCONFIGDIR := $(CURDIR)/.cache/matplotlib
# torch keeps compiled code whatever instructions it was made for: each ATEN_CPU_CAPABILITY has its own folder.
export TORCHINDUCTOR_CACHE_DIR := $(CURDIR)/.cache/inductor$(addprefix -,$(ATEN_CPU_CAPABILITY))
export TORCH_HOME := $(CURDIR)/.cache/torch
export HF_HOME := $(CURDIR)/.cache/huggingface
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-quick lint types tests docs format clean
.DEFAULT_GOAL := demo

# $(1): the extra to install
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "spaceform needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-cache-dir -c constraints.txt -e '.[$(1)]'
	@touch $@
endef

$(LAB): pyproject.toml constraints.txt
	$(call install,lab)

$(DEV): pyproject.toml constraints.txt
	$(call install,dev)
	@touch $(LAB)

demo: $(LAB)
	@$(BIN)/python -m spaceform compare digits

test: lint types tests

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo

types: $(DEV)
	$(BIN)/mypy --cache-dir .cache/mypy

# One thread a process: the sums come out the same on every machine. A process for each core, two to eight: each takes
# about a gigabyte, and on two cores a third process only takes time from the others.
WORKERS = $(shell $(PYTHON) -c 'import os; print(max(2, min(8, len(getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0)))))')

tests: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -o cache_dir=.cache/pytest

# Under a minute, for the working day: lint, and the tests that neither train nor start processes.
test-quick: $(DEV)
	$(BIN)/ruff check .
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -o cache_dir=.cache/pytest \
	  -m 'not slow and not compiled and not real_data'

format: $(DEV)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .cache .hypothesis

# The documentation, as pages in .cache/site; a broken link or a missing page stops it.
docs: $(DEV)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
