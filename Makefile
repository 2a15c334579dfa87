# Two commands do all the set-up on a fresh machine:  make demo   and   make test

PYTHON ?= python3
BIN := .venv/bin
JOBS := $(shell expr 1 + `getconf _NPROCESSORS_ONLN`)  # one more than cores: some tests wait
MXNET := .venv/mxnet/bin
QUIET := --quiet --disable-pip-version-check --no-compile  # Python compiles what it imports
# The examples of a file build on each other, so that a file stays on one worker.
WORKERS := -n auto --maxprocesses 8 --dist loadfile
WITH_TRITON := PYTHONPATH=.venv/triton:tests/frameworks/triton
SOURCES := pyproject.toml CMakeLists.txt $(wildcard csrc/*)
KERAS := keras-tensorflow keras-jax keras-torch
FRAMEWORKS := mxnet torch torch-exports triton triton-torch triton-oldest jax tensorflow $(KERAS) ray trackio chapter

LAB := tests/lab tests/package src/anyscore/lab
QUICK := $(addprefix contract/test_,table gradients nan masks errors dropout) core/test_core_table \
	frameworks/torch/test_torch_layers
# Results of one framework may come in parts: JAX takes an hour.
PARITY := numpy torch tensorflow mxnet jax-float64 jax-float32 jax-float16 jax-bfloat16
WITH_PARITY := PYTHONPATH=tests/helpers:tests/docs

.PHONY: demo test quick all lint types check lab contract frameworks $(FRAMEWORKS) compare parity age fuzz mutate
.PHONY: sanitize gpu clean

demo: .venv/lab  ## compare attention scores on dates; the report's place is printed
	$(BIN)/anyscore compare --no-rates

test:  ## all that continuous integration runs, to the end, whatever fails on the way
	$(MAKE) --no-print-directory --keep-going --jobs=$(JOBS) --output-sync=target all

quick: .venv/dev  ## in 90 seconds: whether the mathematics or a framework broke
	$(BIN)/pytest $(WORKERS) $(QUICK:%=tests/%.py)
	$(BIN)/pytest -m smoke tests/frameworks/jax/test_jax_table.py
	$(BIN)/pytest -m smoke tests/frameworks/tensorflow/test_tensorflow_table.py

# Each target is one process, for frameworks are slow to import; those that take longest come first.
all: jax lab contract frameworks compare lint types age

lint: .venv/dev
	$(BIN)/pre-commit run --all-files

types: .venv/dev
	$(BIN)/mypy

check: lab contract  ## everything that must not notice which other frameworks are there

lab: .venv/dev  ## the laboratory, and the package as it is installed
	$(BIN)/pytest $(LAB)

contract: .venv/dev  ## all other tests, and the examples of pages and docstrings
	$(BIN)/pytest $(LAB:%=--ignore=%)

frameworks: $(FRAMEWORKS)  ## each in processes of its own

torch: .venv/dev
	$(BIN)/pytest tests/frameworks/torch

torch-exports: .venv/dev  ## and the libraries that wrap modules
	$(BIN)/pytest tests/frameworks/torch/exports

jax: .venv/dev
	$(BIN)/pytest tests/frameworks/jax
	$(BIN)/pytest src/anyscore/jax

tensorflow: .venv/dev
	$(BIN)/pytest tests/frameworks/tensorflow

$(KERAS): keras-%: .venv/dev
	KERAS_BACKEND=$* $(BIN)/pytest tests/frameworks/keras src/anyscore/keras

mxnet: .venv/mxnet/dev
	$(MXNET)/pytest tests/frameworks/mxnet src/anyscore/mxnet

# What the core is tested by, with the interpreted kernels in its place; then compiled ones.
triton: .venv/dev .venv/triton
	$(WITH_TRITON) TRITON_INTERPRET=1 $(BIN)/pytest -p stand_in tests/frameworks/triton

triton-torch: .venv/dev .venv/triton
	$(WITH_TRITON) TRITON_INTERPRET=1 $(BIN)/pytest -p stand_in -m triton \
		tests/frameworks/torch/test_fused_transforms.py
	$(WITH_TRITON) $(BIN)/pytest tests/frameworks/triton/test_triton_compiled.py

# The oldest Triton that `backends/torch_triton.py` takes; the newer one is beside it.
triton-oldest: .venv/dev .venv/triton-3.4
	PYTHONPATH=.venv/triton-3.4:tests/frameworks/triton $(BIN)/pytest -m oldest \
		tests/frameworks/triton/test_triton_compiled.py

gpu: .venv/dev  ## the Triton kernels on an NVIDIA GPU, which continuous integration has none of
	PYTHONPATH=tests/frameworks/triton $(BIN)/pytest -p on_gpu -n 8 tests/frameworks/triton \
		--ignore tests/frameworks/triton/test_triton_compiled.py

ray: .venv/dev  ## a real cluster of two nodes, one of which is lost
	$(BIN)/pytest tests/frameworks/ray

trackio: .venv/dev .venv/trackio
	PYTHONPATH=.venv/trackio $(BIN)/pytest tests/frameworks/trackio

chapter: .venv/dev .venv/mxnet/dev  ## the examples of docs/chapter.md
	$(BIN)/pytest tests/docs/chapter -k "not mxnet"
	$(MXNET)/pytest tests/docs/chapter -k mxnet

compare: .venv/dev  ## one tiny real comparison
	rm -rf .venv/tiny
	$(BIN)/anyscore compare --limit 200 --epochs 1 --hidden 16 --out .venv/tiny
	test -s .venv/tiny/report.html

age:  ## of the parity page, which has every cell; the tests have every pair of what it crosses
	@PYTHONPATH=tests/docs $(PYTHON) -m parity.age

parity: $(PARITY:%=build/parity/%.json)  ## docs/parity.md anew; goes on where it was stopped
	$(WITH_PARITY) $(BIN)/python -m parity.page $^ --out docs/parity.md

build/parity/exact.npz: | .venv/dev
	mkdir -p $(@D)
	$(WITH_PARITY) $(BIN)/python -m parity.run exact --out $@

build/parity/jax-%.json: build/parity/exact.npz
	$(WITH_PARITY) $(BIN)/python -m parity.run jax --dtypes $* --exact $< --out $@

build/parity/mxnet.json: build/parity/exact.npz | .venv/mxnet/dev
	$(WITH_PARITY) $(MXNET)/python -m parity.run mxnet --exact $< --out $@

build/parity/%.json: build/parity/exact.npz
	$(WITH_PARITY) $(BIN)/python -m parity.run $* --exact $< --out $@

mutate: .venv/dev  ## break fifty lines, one after the other: which of them do the tests notice?
	$(BIN)/python tests/mutate.py --count 50

fuzz: .venv/dev  ## random calls against an oracle, for an hour; those that fail are kept in .hypothesis
	$(BIN)/pytest tests/fuzz --fuzz-minutes=40
	$(BIN)/pytest tests/fuzz --fuzz-minutes=10 --fuzz-framework=jax
	$(BIN)/pytest tests/fuzz --fuzz-minutes=10 --fuzz-framework=tensorflow

sanitize: .venv/dev  ## the core under AddressSanitizer, UndefinedBehaviorSanitizer, ThreadSanitizer
	.ci/sanitize $(BIN)

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

# A file says what has been installed beside it, from these sources of the C++ core.
.venv/lab .venv/dev: .venv/%: constraints.txt $(SOURCES)
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(BIN)/pip install $(QUIET) -c constraints.txt torch
	$(BIN)/pip install $(QUIET) -c constraints.txt -e '.[$*]'
	touch $@

# Beside the environment, not in it: TensorFlow and Triton abort where both are imported.
.venv/triton: constraints.txt .venv/dev
	$(BIN)/pip install $(QUIET) -c constraints.txt --no-deps --upgrade --target $@ triton
	touch $@

.venv/triton-3.4: .venv/dev
	$(BIN)/pip install $(QUIET) --no-deps --upgrade --target $@ triton==3.4.0
	touch $@

# Beside it too: Trackio wants an older Pillow, for pictures, which are not logged here.
.venv/trackio: constraints.txt .venv/dev
	$(BIN)/pip install $(QUIET) -c constraints.txt --no-deps --upgrade --target $@ trackio==0.43.0 \
		brotli gradio_client==2.7.2 httpcore==1.0.9 httpx==0.28.1 orjson python-multipart \
		starlette==1.10.0 uvicorn
	touch $@

# MXNet 1.9.1 needs a NumPy that no other framework takes any more. The core is built there for plain
# processors only: quicker, and these kernels are tried once more.
.venv/mxnet/dev: constraints-mxnet.txt $(SOURCES)
	test -x $(MXNET)/pip || $(PYTHON) -m venv .venv/mxnet
	$(MXNET)/pip install $(QUIET) -c constraints-mxnet.txt \
		-C cmake.define.ANYSCORE_ISAS=baseline -e '.[mxnet-dev]'
	touch $@
