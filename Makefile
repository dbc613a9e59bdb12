# `make demo` and `make test` are all that a newcomer types. Each makes .venv first.

SHELL := /bin/sh
PY := .venv/bin/python
DEPENDS := pyproject.toml requirements.lock .ci/venv

# An ordinary user in a tree that somebody else installed: leave it as it is, keep the caches elsewhere.
ifneq ($(shell test -w . && echo yes),yes)
CACHES := $(shell mktemp -d)
export RUFF_CACHE_DIR := $(CACHES)/ruff
export MYPY_CACHE_DIR := $(CACHES)/mypy
export HYPOTHESIS_STORAGE_DIRECTORY := $(CACHES)/hypothesis
export PYTHONPYCACHEPREFIX := $(CACHES)/bytecode
export PYTEST_ADDOPTS := -o cache_dir=$(CACHES)/pytest
endif

# The tests start thousands of processes: each would compile our sources anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test lint bench soak mutants bare vm lock

help:
	@echo "make demo    three agents work on one project in one sandbox (30 s after set-up)"
	@echo "make test    every test that this machine can run, linters included"
	@echo "make lint    ruff, mypy, pyright"
	@echo "make bench   figures of this machine, each beside its baseline"
	@echo "make soak    thousands of random histories, every durable act, every refused call: an hour or two"
	@echo "make mutants each single fault of tests/mutants in a copy of the packages: which tests notice it"
	@echo "make bare    make demo and make test on a machine with nothing on it, as root and as an ordinary user"
	@echo "make vm      limits, sessions and both providers on a machine with Debian's kernel and cgroups of version 2 (qemu)"
	@echo "make lock    resolve the dependencies again into requirements.lock"

.venv/runtime.stamp: $(DEPENDS)
	@.ci/venv runtime
	@touch $@

.venv/dev.stamp: $(DEPENDS)
	@.ci/venv dev
	@touch .venv/runtime.stamp $@

demo: .venv/runtime.stamp
	@.venv/bin/eos demo $(ARGS)

# Most of the tests of whole sandboxes wait, so there is one process more than processors; a file stays in one, in the order of the folders.
JOBS ?= $(shell expr $$(nproc 2>/dev/null || echo 1) + 1)

test: .venv/dev.stamp
	$(PY) -m pytest --numprocesses=$(JOBS) --dist=loadfile --no-loadscope-reorder $(ARGS)

lint: .venv/dev.stamp
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m pyright --pythonpath $(PY)

bench: .venv/dev.stamp
	$(PY) -m benchmarks $(ARGS)

soak: .venv/dev.stamp
	$(PY) -m pytest --soak --timeout=7200 -o faulthandler_timeout=7100 $(ARGS)

mutants: .venv/dev.stamp
	$(PY) -m tests.mutants $(ARGS)

bare:
	.ci/bare

vm:
	.ci/vm $(ARGS)

lock:
	.ci/lock
