# Two commands do all the set-up on a fresh machine:  make demo   and   make test
#
# `make test` runs a sample of the tests, `make test-daily` those of continuous integration, and
# `make test-all` every test. A target by its own name, such as `make contract`, runs all of it.

PYTHON ?= python3
SHELL := bash
BIN := .venv/bin
JOBS := $(shell expr 1 + `getconf _NPROCESSORS_ONLN`)  # one more than cores: some tests wait
MXNET := .venv/mxnet/bin
SOURCES := pyproject.toml constraints-build.txt CMakeLists.txt $(wildcard build_system/*.py csrc/*/*)
# The time of a command: what one reads where a run has become slow.
export TIMEFORMAT := %1R s, of processors %1U + %1S s

# The share of the tests, by their marks; all of them where a target is called by its own name.
SAMPLE := sample and not slow and not weekly
DAILY := not weekly
# BEYOND=sample leaves out what `make test` runs: continuous integration calls that first.
# A process for each framework, which is slow to import. The longest come first, and early those that wait the most.
EACH := $(MAKE) --no-print-directory --keep-going --jobs=$(JOBS) --output-sync=target
RUN := $(BIN)/pytest --durations=5
PYTEST := $(RUN) -m "$(SHARE)$(if $(BEYOND), and (slow or not sample))"
AGAIN := $(RUN) -m "$(SHARE)"  # tests of another target, in another setting
SAMPLED := $(RUN) -m "$(SAMPLE)"
# The examples of a file build on each other, so that a file stays on one worker.
WORKERS := -n auto --maxprocesses 8 --dist loadfile
WITH_TRITON := PYTHONPATH=.venv/triton:tests/frameworks/triton
INTERPRETED := $(WITH_TRITON) TRITON_INTERPRET=1

LAB := tests/lab tests/benchmarks tests/package tests/plot src/anyscore/lab
KERAS := keras-tensorflow keras-jax keras-torch
QUICK := $(addprefix sample-,contract triton torch core lab tensorflow jax)
TARGETS := contract ray lab torch compare jax triton pallas site page-examples triton-torch mxnet isas tensorflow \
	$(KERAS) torch-exports triton-oldest
# Results of one framework may come in parts: JAX takes an hour.
PARITY := numpy torch tensorflow mxnet jax-float64 jax-float32 jax-float16 jax-bfloat16
WITH_PARITY := PYTHONPATH=tests:tests/docs

# The oldest versions, as `constraints-oldest.txt` has them; the oracle of gradients is written in PyTorch.
OLDEST := torch jax tensorflow
OLDEST_torch := contract/test_table.py $(patsubst %,frameworks/torch/test_%.py,\
	layers multihead fused edges growing_cache state errors transforms autocast)
OLDEST_jax := $(patsubst %,frameworks/jax/test_%.py,table calls core pytrees edges)
OLDEST_tensorflow := $(patsubst %,frameworks/tensorflow/test_%.py,table calls edges graphs)

.PHONY: demo test test-daily test-all check lint types age docs links $(QUICK) $(TARGETS) parity fuzz bench mutate
.PHONY: sanitize gpu clean sdist untried $(OLDEST:%=oldest-%)

demo: .venv/lab  ## compare attention scores at sorting; the report's place is printed
	$(BIN)/anyscore compare --model pointer --scores scaled_dot,gaussian,additive --seeds 6 --no-rates

test: .venv/test .venv/triton  ## in six minutes: the tests marked `sample`, to the end, whatever fails on the way
	@echo '$(words $(QUICK)) processes run the tests, some minutes long; each prints its output when it ends'
	@$(EACH) $(QUICK)
	@echo 'make test: every test passed'

test-daily: .venv/dev .venv/triton  ## in half an hour: the tests of continuous integration
	$(EACH) SHARE='$(DAILY)' check $(TARGETS)

test-all: .venv/dev .venv/triton  ## in an hour: every test, as a workflow runs them each week
	$(EACH) check $(TARGETS) untried

check: lint types  ## what needs no test

$(QUICK): .venv/test

sample-contract:
	time $(SAMPLED) tests/contract

sample-core:
	time $(SAMPLED) tests/core tests/helpers
	time $(RUN) README.md

sample-torch:
	time $(SAMPLED) tests/frameworks/torch

sample-lab:
	time $(SAMPLED) tests/lab tests/plot tests/package

sample-jax:
	time $(SAMPLED) tests/frameworks/jax

sample-tensorflow:  # and layers of Keras, which imports it
	time KERAS_BACKEND=tensorflow $(SAMPLED) tests/frameworks/tensorflow tests/frameworks/keras

sample-triton: .venv/triton
	time $(INTERPRETED) $(SAMPLED) -p stand_in tests/frameworks/triton

contract: .venv/dev  ## all tests that no other target has, and the examples of pages and docstrings
	time $(PYTEST) $(LAB:%=--ignore=%)

lab: .venv/dev  ## the laboratory, benchmarks, and the package as it is installed
	time $(PYTEST) $(LAB)

torch: .venv/dev
	time $(PYTEST) tests/frameworks/torch tests/frameworks/hf

types: .venv/dev
	time $(BIN)/mypy

lint: .venv/dev
	time $(BIN)/pre-commit run --all-files
	@$(WITH_PARITY) $(BIN)/python -m parity.age

age: .venv/dev  ## how old docs/parity.md is, and which scores and masks it lacks
	@$(WITH_PARITY) $(BIN)/python -m parity.age

compare: .venv/dev  ## one tiny real comparison
	rm -rf .venv/tiny
	time $(BIN)/anyscore compare --limit 200 --epochs 1 --hidden 16 --seeds 3 --out .venv/tiny
	test -s .venv/tiny/report.html

torch-exports: .venv/dev  ## and the libraries that wrap modules
	time $(PYTEST) tests/frameworks/torch/exports

jax: .venv/dev
	time $(PYTEST) tests/frameworks/jax --ignore=tests/frameworks/jax/pallas
	time $(PYTEST) src/anyscore/jax

pallas: .venv/dev  ## the kernels of JAX for GPUs, interpreted, and lowered for them
	time $(PYTEST) tests/frameworks/jax/pallas

tensorflow: .venv/dev
	time $(PYTEST) tests/frameworks/tensorflow

$(KERAS): keras-%: .venv/dev
	time KERAS_BACKEND=$* $(if $(filter tensorflow,$*),$(PYTEST),$(AGAIN)) tests/frameworks/keras src/anyscore/keras

mxnet: .venv/mxnet/dev
	time $(MXNET)/pytest -m "$(SHARE)" tests/frameworks/mxnet src/anyscore/mxnet

# A build for a machine with AVX-512 leaves AVX2 out.
isas: .venv/dev  ## the kernels for AVX2
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/cmake -S . -B build/isas -G Ninja -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python \
		"-DANYSCORE_ISAS=baseline;avx2" -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG"
	PATH=$(CURDIR)/$(BIN):$$PATH && time $(BIN)/cmake --build build/isas
	time PYTHONPATH=.ci ANYSCORE_CORE=$$(echo build/isas/_core.*.so) $(AGAIN) -p sanitized -k "isa or width or share or energies" \
		$(addprefix tests/core/test_,symbols.py threads.py width.py energies.py)

# The tests that the core is tested by, with the interpreted kernels in its place; then compiled ones.
triton: .venv/dev .venv/triton
	time $(INTERPRETED) $(PYTEST) -p stand_in tests/frameworks/triton

triton-torch: .venv/dev .venv/triton
	time $(INTERPRETED) $(RUN) -p stand_in -m "triton$(if $(SHARE), and $(SHARE))" tests/frameworks/torch/test_fused_transforms.py
	time $(WITH_TRITON) $(AGAIN) $(addprefix tests/frameworks/triton/test_,compiled.py amd.py)

untried: .venv/dev .venv/triton  ## kernels that no GPU has run: interpreted, compiled, and emulated
	time ANYSCORE_UNTRIED=1 $(RUN) -m "not slow" tests/frameworks/jax/pallas
	time ANYSCORE_UNTRIED=1 $(INTERPRETED) $(RUN) -m "not slow" -p stand_in tests/frameworks/triton
	time $(WITH_TRITON) $(RUN) $(patsubst %,tests/frameworks/triton/untried/test_%.py,ways_compiled separable_compiled ptx minima)
	time ANYSCORE_UNTRIED=1 $(WITH_TRITON) $(RUN) -m "not slow" -p stand_in \
		$(patsubst %,tests/frameworks/triton/%.py,untried/test_separable untried/test_ways test_edges test_normalizers test_dropout_blocks)

# The oldest Triton that `backends/torch/triton.py` takes; the newer one is beside it.
triton-oldest: .venv/dev .venv/triton-3.4
	time PYTHONPATH=.venv/triton-3.4:tests/frameworks/triton $(RUN) -m "oldest$(if $(SHARE), and $(SHARE))" \
		$(addprefix tests/frameworks/triton/,test_compiled.py untried/test_separable_compiled.py)

gpu: .venv/dev  ## the Triton kernels on an NVIDIA GPU, which continuous integration has none of
	PYTHONPATH=tests/frameworks/triton $(BIN)/pytest -p on_gpu -n 8 tests/frameworks/triton --ignore-glob="*compiled.py" \
		$(patsubst %,--ignore=tests/frameworks/triton/%.py,test_amd untried/test_ptx)

ray: .venv/dev  ## a real cluster of two nodes, one of which is lost
	time $(PYTEST) tests/frameworks/ray

docs: .venv/dev build/play/page/play.html  ## the documentation site, in build/site; a warning is an error
	time KERAS_BACKEND=torch TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/sphinx-build -W --keep-going -q -E -b html docs build/site

site: .venv/dev  ## every page of it in a browser: axe-core, a phone, search
	$(MAKE) --no-print-directory docs
	time $(PYTEST) tests/docs/site

links: .venv/dev build/play/page/play.html  ## links of the documentation to other sites, which need a network
	$(BIN)/sphinx-build -q -E -b linkcheck docs build/links

page-examples: .venv/dev .venv/mxnet/dev  ## examples of pages that are marked with a framework
	time $(PYTEST) tests/docs/page_examples -k "not mxnet"
	time $(MXNET)/pytest -m "$(SHARE)" tests/docs/page_examples -k mxnet

parity: $(PARITY:%=build/parity/%.json)  ## every cell to build/parity/cells.csv, docs/parity.md anew; goes on where it was stopped
	$(WITH_PARITY) $(BIN)/python -m parity.summary $^ --cells build/parity/cells.csv
	$(BIN)/python docs/measurements.py

build/parity/exact.npz: | .venv/dev
	mkdir -p $(@D)
	$(WITH_PARITY) $(BIN)/python -m parity.run exact --out $@

build/parity/jax-%.json: build/parity/exact.npz
	$(WITH_PARITY) $(BIN)/python -m parity.run jax --dtypes $* --exact $< --out $@

build/parity/mxnet.json: build/parity/exact.npz | .venv/mxnet/dev
	$(WITH_PARITY) $(MXNET)/python -m parity.run mxnet --exact $< --out $@

build/parity/%.json: build/parity/exact.npz
	$(WITH_PARITY) $(BIN)/python -m parity.run $* --exact $< --out $@

bench: .venv/bench  ## anyscore beside other libraries: make bench BENCHMARKS="--quick"
	$(BIN)/python -m benchmarks $(BENCHMARKS)

mutate: .venv/dev  ## break fifty lines, one after the other: which of them do the tests notice?
	$(BIN)/python tests/mutate.py --count 50

fuzz: .venv/dev  ## random calls against an oracle, for an hour; those that fail are kept in .hypothesis
	$(BIN)/pytest tests/fuzz --fuzz-minutes=40
	$(BIN)/pytest tests/fuzz --fuzz-minutes=10 --fuzz-framework=jax
	$(BIN)/pytest tests/fuzz --fuzz-minutes=10 --fuzz-framework=tensorflow

sanitize: .venv/dev  ## the core under AddressSanitizer, UndefinedBehaviorSanitizer, ThreadSanitizer
	.ci/sanitize $(BIN)

sdist: .venv/build/made  ## the source archive, in dist, with XLA's headers: it builds without a network
	.venv/build/bin/python -m build --sdist --outdir dist

$(OLDEST:%=oldest-%): oldest-%: .venv/oldest-%/made  ## a sample with the oldest versions, on Python 3.10
	TF_CPP_MIN_LOG_LEVEL=3 .venv/$@/bin/pytest -m "not slow and not weekly" $(WORKERS) $(OLDEST_$*:%=tests/%)
	$(if $(filter tensorflow,$*),KERAS_BACKEND=tensorflow .venv/$@/bin/pytest -m "not slow and not weekly" tests/frameworks/keras/test_layers.py)

clean:
	rm -rf .venv build dist third_party .mypy_cache .pytest_cache .ruff_cache .hypothesis

# The front page of the documentation runs models, which train for a minute.
PLAY = time $(BIN)/anyscore
build/play/trained: $(wildcard src/anyscore/lab/data/*.py src/anyscore/lab/train/*.py) | .venv/dev
	rm -rf $(@D)/run
	$(PLAY) compare --scores scaled_dot,bilinear,gaussian,additive,gatv2 --seeds 1 --no-rates --quiet --out $(@D)/run
	touch $@

build/play/page/play.html: build/play/trained $(wildcard src/anyscore/lab/play/* src/anyscore/plot/*)
	mkdir -p $(@D)
	$(PLAY) translate build/play/run --play $@

# A file says what has been installed beside it. pip brings PyTorch, as it knows where a machine keeps a build for
# CPUs. uv brings the rest, in a tenth of pip's time; where it cannot, as behind an index that pip alone is told, pip does.
PIP := --quiet --disable-pip-version-check --no-compile  # Python compiles what it imports
# Versions of what builds the core: for pip before 25.3, for those after, and for uv.
export PIP_CONSTRAINT := $(CURDIR)/constraints-build.txt
export PIP_BUILD_CONSTRAINT := $(PIP_CONSTRAINT)
export UV_BUILD_CONSTRAINT := $(PIP_CONSTRAINT)
# $(call install,bin folder,arguments)
install = time $(BIN)/uv pip install --quiet --python $(1)/python $(2) || $(1)/pip install $(PIP) $(2)

.venv/core: constraints.txt $(SOURCES)  # PyTorch, and the package with its C++ core
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	time $(BIN)/pip install $(PIP) -c constraints.txt torch uv
	$(call install,$(BIN),-c constraints.txt -e .)
	touch $@

.venv/lab .venv/test .venv/dev: .venv/%: .venv/core
	$(call install,$(BIN),-c constraints.txt 'anyscore[$*]')
	touch $@

.venv/bench: benchmarks/requirements.txt .venv/lab
	$(call install,$(BIN),-c constraints.txt -r benchmarks/requirements.txt)
	touch $@

# Beside the environment, not in it: TensorFlow and Triton abort where both are imported.
.venv/triton: constraints.txt .venv/core
	$(call install,$(BIN),-c constraints.txt --no-deps --upgrade --target $@ triton)
	touch $@

# The oldest Triton that `backends/torch/triton.py` takes.
.venv/triton-3.4: .venv/core
	$(call install,$(BIN),--no-deps --upgrade --target $@ triton==3.4.0)
	touch $@

.venv/build/made: constraints-build.txt
	test -x $(@D)/bin/pip || $(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install $(PIP) build
	touch $@

.venv/oldest-%/made: constraints-oldest.txt $(SOURCES)
	test -x $(@D)/bin/pip || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --upgrade pip
	$(@D)/bin/pip install $(PIP) -c constraints-oldest.txt -C cmake.define.ANYSCORE_ISAS=baseline \
		-e '.[torch,$*]' hypothesis pytest pytest-xdist sybil
	touch $@

# MXNet 1.9.1 needs a NumPy that no other framework takes any more. The core is built there for plain
# processors only: quicker, and these kernels are tried once more.
.venv/mxnet/dev: constraints-mxnet.txt .venv/core
	test -x $(MXNET)/pip || $(PYTHON) -m venv .venv/mxnet
	$(call install,$(MXNET),-c constraints-mxnet.txt -C cmake.define.ANYSCORE_ISAS=baseline \
		-C cmake.define.CMAKE_CXX_FLAGS_RELEASE=-O1 -e '.[mxnet-dev]')
	touch $@
