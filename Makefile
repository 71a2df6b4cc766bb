# `make` lists the targets. Everything runs in .venv, which the first target that needs it creates.
#   make PYTHON=/path/to/python ...   choose the interpreter that .venv is created with
#   make ARGS="-k rings" test         pass arguments on to the command

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules
.DEFAULT_GOAL := help

# A pyenv shim may exist and still not run, so each candidate is tried.
PYTHON ?= $(shell for p in python3.11 python3; do \
	$$p -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
PY := $(VENV)/bin/python
ARGS ?=
comma := ,

# One torch thread per process: two OpenMP threads on a busy machine spin against each other.
ENV := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE

# $(call install,what,pip arguments). The mark .installing outlives an install that was killed or
# interrupted, but not one that pip itself gave up (no network, no such version).
define install
@echo "installing $(1) ..."
@trap 'exit 130' INT TERM; touch $(VENV)/.installing; \
  $(PY) -m pip install -qq --disable-pip-version-check -c constraints.txt $(2) \
  || { rm -f $(VENV)/.installing; exit 1; }; \
  rm -f $(VENV)/.installing
@touch $@
endef

# A package may be half written after an interrupted install, and pip would take it for whole.
ifneq ($(wildcard $(VENV)/.installing),)
.PHONY: $(VENV)/.stamp-venv
endif

.PHONY: help demo demo-lm demo-translate test test-slow lint bench docs-table clean distclean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*  ## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*  ## (.*)/make \1\t\2/' | expand -t 22

demo: $(VENV)/.stamp-core  ## grow a small network on this machine and show what happens
	@$(ENV) $(PY) -m growthring.cli.demo $(ARGS)

demo-lm: $(VENV)/.stamp-core  ## train a small GPT on Python's own sources by growing, and let it go on with "def "
	@$(ENV) $(PY) -m growthring.cli.demo_lm $(ARGS)

demo-translate: $(VENV)/.stamp-translation  ## grow a small Transformer that translates numbers, and translate some
	@$(ENV) $(PY) -m growthring.cli.demo_translate $(ARGS)

test: $(VENV)/.stamp-models  ## run the tests and the doctests (without the slow ones)
	@$(ENV) $(PY) -m pytest -q -n 2 --dist loadgroup $(ARGS)

test-slow: $(VENV)/.stamp-models  ## run the slow tests only
	@$(ENV) $(PY) -m pytest -q -n 2 --dist loadgroup -m slow $(ARGS)

lint: $(VENV)/.stamp-dev  ## ruff check, ruff format --check, mypy
	@$(PY) -m ruff check --quiet .
	@$(PY) -m ruff format --check --quiet .
	@$(PY) -m mypy --no-error-summary
	@echo "lint: ok"

bench: $(VENV)/.stamp-bench  ## run the benchmarks, each against a peer in the same run, and write docs/benchmarks.md
	@$(ENV) $(PY) -m benchmarks $(ARGS)

docs-table: $(VENV)/.stamp-models  ## rewrite the table of models in docs/
	@$(ENV) $(PY) scripts/model_table.py --jobs 2 $(ARGS)

clean:  ## remove caches and build products
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name $(VENV) -prune -o -name .git -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

distclean: clean  ## clean, and remove .venv as well
	@rm -rf $(VENV)

# Each stamp is touched last, so an interrupted step is done again.
$(VENV)/.stamp-venv:
	@[ -n "$(PYTHON)" ] || { echo "no python3.11 or newer found; try: make PYTHON=/path/to/python" >&2; exit 1; }
	@echo "creating $(VENV) with $(PYTHON) ..."
	@rm -rf $(VENV)
	@"$(PYTHON)" -m venv $(VENV)
	@touch $@

# torch first and pinned: left to itself, pip takes the newest build with CUDA, several GB.
$(VENV)/.stamp-torch: $(VENV)/.stamp-venv constraints.txt
	$(call install,torch (a minute and about 1 GB),torch)

$(VENV)/.stamp-core: $(VENV)/.stamp-torch pyproject.toml
	$(call install,growthring,-e .)

$(VENV)/.stamp-translation: $(VENV)/.stamp-core
	$(call install,the libraries of translation,-e '.[translation]')

$(VENV)/.stamp-dev: $(VENV)/.stamp-core
	$(call install,the development tools,-e '.[dev]')

# PyPI's torchvision does not import beside a CPU torch, and transformers and others break where they
# find it. So it has a folder of its own, with timm, where only tests/third_party.py looks.
$(VENV)/.stamp-vision: $(VENV)/.stamp-torch
	@$(PY) -m pip uninstall -qq -y --disable-pip-version-check torchvision timm
	@rm -rf $(VENV)/vision
	$(call install,torchvision and timm in $(VENV)/vision,--no-deps --target $(VENV)/vision torchvision timm)

$(VENV)/.stamp-models: $(VENV)/.stamp-dev $(VENV)/.stamp-vision
	$(call install,third-party models and optimizers for the tests,-e '.[dev$(comma)models$(comma)optimizers$(comma)plots$(comma)translation$(comma)lightning$(comma)transformers$(comma)accelerate]')

$(VENV)/.stamp-bench: $(VENV)/.stamp-core
	$(call install,the peers for the benchmarks,-e '.[bench]')
