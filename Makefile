# A newcomer needs `make demo` and `make test`. Each makes .venv first; if the checkout cannot be written, or EOS_VENV names a
# folder, the environment is elsewhere (.ci/venv).

SHELL := /bin/sh
PY = "$(shell .ci/venv where dev)/bin/python"
DEPENDS := pyproject.toml requirements.lock .ci/venv

# Leave a read-only tree as it is: keep the caches beside the environment, or, if another user made that, in a new temporary folder.
ifneq ($(shell test -w . && echo yes),yes)
CACHES := $(shell .ci/venv caches)
export RUFF_CACHE_DIR := $(CACHES)/ruff
export MYPY_CACHE_DIR := $(CACHES)/mypy
export HYPOTHESIS_STORAGE_DIRECTORY := $(CACHES)/hypothesis
export PYTHONPYCACHEPREFIX := $(CACHES)/bytecode
export PYTEST_ADDOPTS := -o cache_dir=$(CACHES)/pytest
endif

# The tests start thousands of processes: each would compile our sources again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test lint docs bench soak mutants tasks clients bare vm lock

# .ci/venv checks whether an environment elsewhere is complete; make cannot.
ifneq ($(EOS_VENV),)
.PHONY: .venv/runtime.stamp .venv/dev.stamp
endif

help:
	@echo "make demo    three agents work on one project in one sandbox (30 s after set-up)"
	@echo "make test    every test that this machine can run, linters included"
	@echo "make lint    ruff, mypy, pyright"
	@echo "make docs    the documentation as a site in build/site (installs mkdocs-material into the environment)"
	@echo "make bench   figures of this machine, each beside its baseline"
	@echo "make soak    thousands of random histories, every durable act, every refused call: an hour or two"
	@echo "make mutants each single fault of tests/mutants in a copy of the packages: which tests notice it"
	@echo "make tasks   sixteen tasks of a coding agent by the texts of the tools alone: calls and tokens of each"
	@echo "make clients other people's MCP clients, fetched from their registries, against a real server"
	@echo "make bare    make demo and make test on a machine with nothing on it, as root and as an ordinary user"
	@echo "make vm      limits, sessions and both providers on a machine with Debian's kernel and cgroups of version 2 (qemu)"
	@echo "make lock    resolve the dependencies again into requirements.lock"

.venv/runtime.stamp: $(DEPENDS)
	@.ci/venv runtime

.venv/dev.stamp: $(DEPENDS)
	@.ci/venv dev

demo: .venv/runtime.stamp
	@"$$(.ci/venv where runtime)/bin/eos" demo $(ARGS)

# Tests wait for much of their time, for engines, mounts and disks, so there are more processes than processors (tests/schedule.py).
JOBS ?= $(shell expr $$(nproc 2>/dev/null || echo 1) + 2)

test: .venv/dev.stamp
	$(PY) -m pytest --numprocesses=$(JOBS) --dist=loadfile --no-loadscope-reorder $(ARGS)

lint: .venv/dev.stamp
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m pyright --pythonpath $(PY)

# mkdocs and its theme are installed when they are asked for.
docs: .venv/dev.stamp
	$(PY) docs/make_pictures.py
	$(PY) -m pip --disable-pip-version-check --no-input install --quiet --require-hashes --no-deps -r docs/requirements.lock
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict $(ARGS)

bench: .venv/dev.stamp
	$(PY) -m benchmarks $(ARGS)

soak: .venv/dev.stamp
	$(PY) -m pytest --soak --timeout=7200 -o faulthandler_timeout=7100 $(ARGS)

mutants: .venv/dev.stamp
	$(PY) -m tests.mutants $(ARGS)

tasks: .venv/dev.stamp
	$(PY) -m tests.tasks $(ARGS)

clients: .venv/dev.stamp
	$(PY) -m pytest --clients -v -rA -o faulthandler_timeout=0 tests/clients $(ARGS)

bare:
	.ci/bare

vm:
	.ci/vm $(ARGS)

lock:
	.ci/lock
