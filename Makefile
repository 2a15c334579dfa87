# Two commands do all the set-up on a fresh machine:  make demo   and   make test

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint types check jax compare sanitize clean

demo: .venv/lab  ## compare attention scores on dates; the report's place is printed
	$(BIN)/anyscore compare

test: lint types check jax compare  ## all that continuous integration runs

lint: .venv/dev
	$(BIN)/pre-commit run --all-files

types: .venv/dev
	$(BIN)/mypy

check: .venv/dev
	$(BIN)/pytest -n auto --maxprocesses 8

jax: .venv/dev  ## the tests of JAX, apart from what must not notice that it is there
	$(BIN)/pytest -n auto --maxprocesses 8 tests/frameworks/jax

compare: .venv/dev  ## one tiny real comparison
	rm -rf .venv/tiny
	$(BIN)/anyscore compare --limit 200 --epochs 1 --hidden 16 --out .venv/tiny
	test -s .venv/tiny/report.html

sanitize: .venv/dev  ## the core under AddressSanitizer, UndefinedBehaviorSanitizer, ThreadSanitizer
	.ci/sanitize $(BIN)

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

# A file in .venv says what has been installed there, from these sources of the C++ core.
.venv/lab .venv/dev: .venv/%: pyproject.toml constraints.txt CMakeLists.txt $(wildcard csrc/*)
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) -e '.[$*]'
	touch $@
