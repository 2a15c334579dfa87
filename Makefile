# Two commands do all the set-up on a fresh machine:  make demo   and   make test

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint types check clean

demo: .venv/lab  ## compare attention scores on dates; the report's place is printed
	$(BIN)/anyscore compare

test: lint types check  ## all that continuous integration runs

lint: .venv/dev
	$(BIN)/pre-commit run --all-files

types: .venv/dev
	$(BIN)/mypy

check: .venv/dev
	$(BIN)/pytest

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

# A file in .venv says what has been installed there.
.venv/lab .venv/dev: .venv/%: pyproject.toml constraints.txt
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) -e '.[$*]'
	touch $@
