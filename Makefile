# Everything a newcomer or CI runs. Needs Python 3.11 or 3.12 and make; `make` alone lists targets.
#   CONFIG=serve_configs/...   the pool that `make serve` starts
#   PORT=8080                  another port than the file's, for quick, demo and serve
#   TORCH_INDEX=URL            an extra package index, where pip does not find torch 2.13.0+cpu
#   PYTHON=python3.12          another interpreter;  VENV=DIR  another environment
.DEFAULT_GOAL := help
.PHONY: help install install-dev install-vllm models demo quick serve test check bench bench-overhead \
  bench-gateway bench-recovery install-bench install-rl tables tables-quick clean
.DELETE_ON_ERROR:

VENV ?= .venv
PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3,$(shell command -v $(p) 2>/dev/null)))
CONFIG ?= serve_configs/local.yaml
TORCH_INDEX ?=
PORT ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
LOCK := requirements-vllm.txt
PORT_FLAG = $(if $(PORT),--port $(PORT))
MUST_NOT_STAY := torchvision torchaudio torchcodec

help:
	@echo "make quick         fake models: first answer within a minute. Install: 0.7 GB, 1-2 minutes"
	@echo "make demo          two real models on this CPU, eight questions. First: 5.3 GB, 10 minutes"
	@echo "make serve         serve CONFIG (default $(CONFIG)) until Ctrl-C"
	@echo "make test          install all of it and run the whole suite. First: 5.4 GB, 20 minutes"
	@echo "make check         ruff, mypy, import-linter. Seconds, after install-dev"
	@echo "make bench         benchmarks of the core. One minute, after install"
	@echo "make tables        every table and figure, simulated, to benchmarks/results. An hour"
	@echo "make tables-quick  the same commands as a try, to /tmp. Minutes"
	@echo "make bench-overhead, bench-recovery, bench-gateway    of the running pool. Minutes each"
	@echo
	@echo "make install       Ray Serve and the fake engine, no torch: 0.7 GB, 1-2 minutes"
	@echo "make install-dev   the same, with the tools of tests and checks: 0.8 GB, 2 minutes"
	@echo "make install-vllm  vLLM and torch for the CPU (0.9 GB download, 3.4 GB more), 3-4 minutes"
	@echo "make install-rl    RLlib as well, for training: 0.1 GB more, under a minute"
	@echo "make models        weights of the local pool (0.7 GB download, 1.4 GB), 2 minutes"
	@echo "make clean         removes $(VENV) and caches of tools; prepared models stay"

# Stamps: each is newer than what it was made from, so a second run does nothing.
$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo "error: no python3 found; install Python 3.11 or 3.12"; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(not (3, 11) <= v[:2] < (3, 13))' || { \
	  echo "error: $(PYTHON) is $$($(PYTHON) -V 2>&1); InfraMind needs Python 3.11 or 3.12."; \
	  echo "       Name one that you have: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.small: $(VENV)/.made pyproject.toml $(LOCK)
	@echo "==> Ray Serve and InfraMind into $(VENV): 0.15 GB download, 0.7 GB on disk, 1-2 minutes"
	$(PIP) install -e . -c $(LOCK)
	@touch $@

$(VENV)/.dev: $(VENV)/.small
	@echo "==> tools of tests and checks into $(VENV): 0.03 GB download, 0.1 GB on disk, under a minute"
	$(PIP) install -e '.[dev]' -c $(LOCK)
	@touch $@

$(VENV)/.vllm: $(VENV)/.small $(LOCK)
	@echo "==> vLLM and torch for the CPU into $(VENV): 0.9 GB download, 3.4 GB on disk, 3-4 minutes"
	$(PIP) install --no-deps $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -r $(LOCK)
	$(PIP) uninstall -y $(MUST_NOT_STAY)
	@touch $@

$(VENV)/.bench: $(VENV)/.small
	@echo "==> what draws figures and solves bounds into $(VENV): 0.2 GB on disk, under a minute"
	$(PIP) install -e '.[bench]' -c $(LOCK)
	@touch $@

$(VENV)/.rl: $(VENV)/.vllm
	@echo "==> RLlib into $(VENV), for training: 0.1 GB on disk, under a minute"
	$(PIP) install -e '.[rl]' -c $(LOCK)
	@touch $@

install: $(VENV)/.small
install-dev: $(VENV)/.dev
install-bench: $(VENV)/.bench
install-vllm: $(VENV)/.vllm
install-rl: $(VENV)/.rl

models: install-vllm
	$(BIN)/inframind models prepare

demo: install-vllm models
	$(BIN)/inframind demo --config serve_configs/local.yaml $(PORT_FLAG)

quick: install
	$(BIN)/inframind demo --config serve_configs/fake.yaml $(PORT_FLAG)

serve: install $(if $(findstring local,$(CONFIG)),models)
	$(BIN)/inframind serve --config $(CONFIG) $(PORT_FLAG)

test: install-vllm install-dev models
	@echo "==> the whole suite, with real engines: about 10 minutes"
	$(BIN)/python -m pytest

check: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: install
	$(BIN)/python -m benchmarks.core

# What the runtime adds to a call, and how it recovers; minutes each, README: Speed.
bench-overhead bench-recovery: bench-%: install
	$(BIN)/python -m benchmarks.$*

bench-gateway: install
	$(BIN)/python -m benchmarks.gateway --litellm .venv-litellm

# The paper's tables and figures on the simulator; benchmarks/README.md. Choices first: they are
# committed (benchmarks/chosen.json), and these commands make them again.
CHOICES := validated matched tuned
TABLES := table2 table3 table4 figure1 figure4 figure5 overload sensitivity bounds_table compare

tables: install-bench
	set -e; for name in $(CHOICES) $(TABLES); do $(BIN)/python -m benchmarks.$$name; done
	$(BIN)/python -m benchmarks.table2 --points tuned --no-hard --stem table2_tuned
	$(BIN)/python -m benchmarks.table2 --queries 3000 --rates 100 --no-hard

tables-quick: install-bench
	set -e; for name in table2 table3 table4 figure1 figure5 overload sensitivity bounds_table; do \
	  $(BIN)/python -m benchmarks.$$name --quick --out /tmp/inframind-tables; done

clean:
	rm -rf $(VENV) .venv-litellm build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
