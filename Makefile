# Two commands do everything on a fresh machine: `make train` and `make test`. Needs python3 (>= 3.11), make and pip.
PYTHON ?= python3
BIN := .venv/bin
PARALLEL := --numprocesses auto --maxprocesses 8 --dist worksteal

# Tests start hundreds of processes. Each would compile onecard again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: train test test-all check lint attack docs clean

train: .venv/ready
	$(BIN)/onecard plan
	@if [ -d runs/default/checkpoints ]; then $(BIN)/onecard train --resume runs/default; else $(BIN)/onecard train; fi
	$(BIN)/onecard sample runs/default --prompt "def " --length 300
	$(BIN)/onecard doctor runs/default || [ $$? -eq 1 ]
	@echo 'to look at it: $(BIN)/onecard ui'

test: lint
	$(BIN)/pytest -m "not gpu and not long" $(PARALLEL)

# Whole where `make test` runs a tenth: see CONTRIBUTING.md.
test-all: lint
	ONECARD_TESTS=whole $(BIN)/pytest -m "not gpu and not long" $(PARALLEL)
	$(MAKE) attack

check: lint
	$(BIN)/pytest -m "not gpu and not slow and not long" -x $(PARALLEL)

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

attack: .venv/ready
	$(BIN)/pytest -m "long and not gpu" -rP $(PARALLEL)

docs: .venv/ready
	$(BIN)/python -m docs.generate

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[train,data,gguf,eval,log,plot,ui,dev]"
	touch $@
