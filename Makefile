# Two commands do all the set-up on a fresh machine:  make demo   and   make test
#
# `make test` runs a sample of the tests, `make test-daily` those of continuous integration, and
# `make test-all` every test. A target by its own name, such as `make contract`, runs all of it.

PYTHON ?= python3
BIN := .venv/bin
JOBS := $(shell expr 1 + `getconf _NPROCESSORS_ONLN`)  # one more than cores: some tests wait
MXNET := .venv/mxnet/bin
QUIET := --quiet --disable-pip-version-check --no-compile  # Python compiles what it imports
# The examples of a file build on each other, so that a file stays on one worker.
WORKERS := -n auto --maxprocesses 8 --dist loadfile
SOURCES := pyproject.toml constraints-build.txt CMakeLists.txt $(wildcard build_system/*.py csrc/*/*)
# Versions of what builds the core: the first for pip before 25.3, the second for those after.
export PIP_CONSTRAINT := $(CURDIR)/constraints-build.txt
export PIP_BUILD_CONSTRAINT := $(PIP_CONSTRAINT)
# Notes the processor seconds of a command, which a run of many targets ends with.
NOTED = $(PYTHON) tests/processor_seconds.py run $@
# Triton comes first: make returns to a target that lacked it only when all others have begun.
EACH := $(MAKE) --no-print-directory --keep-going --jobs=$(JOBS) --output-sync=target .venv/triton
PYTEST = $(NOTED) $(BIN)/pytest $(SHARE)
WITH_TRITON := PYTHONPATH=.venv/triton:tests/frameworks/triton

LAB := tests/lab tests/benchmarks tests/package tests/plot src/anyscore/lab
KERAS := keras-tensorflow keras-jax keras-torch
# Each is one process, for frameworks are slow to import; the ones that take longest come first.
BOTH := contract lab torch types compare lint
OTHERS := jax triton pallas site page-examples triton-torch mxnet isas tensorflow $(KERAS) torch-exports ray triton-oldest
QUICK := $(addprefix contract/test_,table gradients nan masks errors dropout) core/test_table \
	frameworks/torch/test_layers
# Results of one framework may come in parts: JAX takes an hour.
PARITY := numpy torch tensorflow mxnet jax-float64 jax-float32 jax-float16 jax-bfloat16
WITH_PARITY := PYTHONPATH=tests:tests/docs

# The oldest versions, as `constraints-oldest.txt` has them; the oracle of gradients is written in PyTorch.
OLDEST := torch jax tensorflow
OLDEST_torch := contract/test_table.py $(patsubst %,frameworks/torch/test_%.py,\
	layers multihead fused edges growing_cache state errors transforms autocast)
OLDEST_jax := $(patsubst %,frameworks/jax/test_%.py,table calls core pytrees edges)
OLDEST_tensorflow := $(patsubst %,frameworks/tensorflow/test_%.py,table calls edges graphs)

.PHONY: demo test test-daily test-all quick tables docs links $(BOTH) $(OTHERS) parity age fuzz bench mutate sanitize gpu clean
.PHONY: sdist emulated $(OLDEST:%=oldest-%)

demo: .venv/lab  ## compare attention scores at sorting; the report's place is printed
	$(BIN)/anyscore compare --model pointer --scores scaled_dot,gaussian,additive --seeds 6 --no-rates

test:  ## in about twelve minutes: a sample of the tests, to the end, whatever fails on the way
	$(PYTHON) tests/processor_seconds.py begin
	$(EACH) SHARE=--sample $(BOTH) tables; status=$$?; $(PYTHON) tests/processor_seconds.py table test; exit $$status

test-daily:  ## in half an hour: the tests of continuous integration
	$(PYTHON) tests/processor_seconds.py begin
	$(EACH) SHARE=--daily $(BOTH) $(OTHERS); status=$$?; $(PYTHON) tests/processor_seconds.py table test-daily; exit $$status

test-all:  ## in an hour: every test, as a workflow runs them each week
	$(EACH) $(BOTH) $(OTHERS) emulated

quick: .venv/dev  ## in 90 seconds: whether the mathematics or a framework broke
	$(BIN)/pytest --sample $(WORKERS) $(QUICK:%=tests/%.py)
	$(BIN)/pytest --sample tests/frameworks/jax/test_table.py
	$(BIN)/pytest --sample tests/frameworks/tensorflow/test_table.py

contract: .venv/dev  ## all tests that no other target has, and the examples of pages and docstrings
	$(PYTEST) $(LAB:%=--ignore=%)

lab: .venv/dev  ## the laboratory, benchmarks, and the package as it is installed
	$(PYTEST) $(LAB)

torch: .venv/dev
	$(PYTEST) tests/frameworks/torch tests/frameworks/hf

tables: .venv/dev .venv/triton  ## a table each of JAX, TensorFlow, Keras and interpreted kernels of GPUs
	$(NOTED) $(BIN)/pytest --sample $(addprefix tests/frameworks/jax/,test_table.py test_calls.py pallas/test_table.py)
	$(WITH_TRITON) TRITON_INTERPRET=1 $(NOTED) $(BIN)/pytest -p stand_in --sample \
		$(addprefix tests/frameworks/triton/test_,table.py edges.py)
	$(NOTED) $(BIN)/pytest --sample tests/frameworks/tensorflow/test_table.py
	KERAS_BACKEND=torch $(NOTED) $(BIN)/pytest --sample tests/frameworks/keras/test_contract.py

types: .venv/dev
	$(NOTED) $(BIN)/mypy

lint: .venv/dev
	$(NOTED) $(BIN)/pre-commit run --all-files
	@$(WITH_PARITY) $(BIN)/python -m parity.age

age: .venv/dev  ## how old docs/parity.md is, and which scores and masks it lacks
	@$(WITH_PARITY) $(BIN)/python -m parity.age

compare: .venv/dev  ## one tiny real comparison
	rm -rf .venv/tiny
	$(NOTED) $(BIN)/anyscore compare --limit 200 --epochs 1 --hidden 16 --seeds 3 --out .venv/tiny
	test -s .venv/tiny/report.html

torch-exports: .venv/dev  ## and the libraries that wrap modules
	$(PYTEST) tests/frameworks/torch/exports

jax: .venv/dev
	$(PYTEST) tests/frameworks/jax --ignore=tests/frameworks/jax/pallas
	$(PYTEST) src/anyscore/jax

pallas: .venv/dev  ## the kernels of JAX for GPUs, interpreted, and lowered for them
	$(PYTEST) tests/frameworks/jax/pallas

tensorflow: .venv/dev
	$(PYTEST) tests/frameworks/tensorflow

$(KERAS): keras-%: .venv/dev
	KERAS_BACKEND=$* $(PYTEST) tests/frameworks/keras src/anyscore/keras

mxnet: .venv/mxnet/dev
	$(NOTED) $(MXNET)/pytest $(SHARE) tests/frameworks/mxnet src/anyscore/mxnet

# A build for a machine with AVX-512 leaves AVX2 out.
isas: .venv/dev  ## the kernels for AVX2
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/cmake -S . -B build/isas -G Ninja -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python \
		"-DANYSCORE_ISAS=baseline;avx2" -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG"
	PATH=$(CURDIR)/$(BIN):$$PATH $(NOTED) $(BIN)/cmake --build build/isas
	PYTHONPATH=.ci ANYSCORE_CORE=$$(echo build/isas/_core.*.so) $(PYTEST) -p sanitized -k "isa or width or share or energies" \
		$(addprefix tests/core/test_,symbols.py threads.py width.py energies.py)

# The tests that the core is tested by, with the interpreted kernels in its place; then compiled ones.
triton: .venv/dev .venv/triton
	$(WITH_TRITON) TRITON_INTERPRET=1 $(PYTEST) -p stand_in tests/frameworks/triton

triton-torch: .venv/dev .venv/triton
	$(WITH_TRITON) TRITON_INTERPRET=1 $(PYTEST) -p stand_in -m triton \
		tests/frameworks/torch/test_fused_transforms.py
	$(WITH_TRITON) $(PYTEST) $(addprefix tests/frameworks/triton/test_,compiled.py separable_compiled.py ptx.py minima.py amd.py)

emulated: .venv/dev .venv/triton  ## compiled kernels of NVIDIA's GPUs, on the CPU
	$(WITH_TRITON) $(PYTEST) -p stand_in --sample \
		$(patsubst %,tests/frameworks/triton/test_%.py,separable ways edges normalizers dropout_blocks)

# The oldest Triton that `backends/torch/triton.py` takes; the newer one is beside it.
triton-oldest: .venv/dev .venv/triton-3.4
	PYTHONPATH=.venv/triton-3.4:tests/frameworks/triton $(PYTEST) -m oldest \
		$(addprefix tests/frameworks/triton/test_,compiled.py separable_compiled.py)

gpu: .venv/dev  ## the Triton kernels on an NVIDIA GPU, which continuous integration has none of
	PYTHONPATH=tests/frameworks/triton $(BIN)/pytest -p on_gpu -n 8 tests/frameworks/triton \
		$(addprefix --ignore=tests/frameworks/triton/test_,compiled.py separable_compiled.py ptx.py amd.py)

ray: .venv/dev  ## a real cluster of two nodes, one of which is lost
	$(PYTEST) tests/frameworks/ray

docs: .venv/dev build/play/page/play.html  ## the documentation site, in build/site; a warning is an error
	KERAS_BACKEND=torch TF_CPP_MIN_LOG_LEVEL=3 $(NOTED) $(BIN)/sphinx-build -W --keep-going -q -E -b html docs build/site

site: .venv/dev  ## every page of it in a browser: axe-core, a phone, search
	$(MAKE) --no-print-directory docs
	$(PYTEST) tests/docs/site

links: .venv/dev build/play/page/play.html  ## links of the documentation to other sites, which need a network
	$(BIN)/sphinx-build -q -E -b linkcheck docs build/links

page-examples: .venv/dev .venv/mxnet/dev  ## examples of pages that are marked with a framework
	$(PYTEST) tests/docs/page_examples -k "not mxnet"
	$(NOTED) $(MXNET)/pytest $(SHARE) tests/docs/page_examples -k mxnet

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
	TF_CPP_MIN_LOG_LEVEL=3 .venv/$@/bin/pytest --sample $(WORKERS) $(OLDEST_$*:%=tests/%)
	$(if $(filter tensorflow,$*),KERAS_BACKEND=tensorflow .venv/$@/bin/pytest --sample tests/frameworks/keras/test_layers.py)

clean:
	rm -rf .venv build dist third_party .mypy_cache .pytest_cache .ruff_cache .hypothesis

# The front page of the documentation runs models, which train for a minute.
PLAY = $(PYTHON) tests/processor_seconds.py run play $(BIN)/anyscore
build/play/trained: $(wildcard src/anyscore/lab/data/*.py src/anyscore/lab/train/*.py) | .venv/dev
	rm -rf $(@D)/run
	$(PLAY) compare --scores scaled_dot,bilinear,gaussian,additive,gatv2 --seeds 1 --no-rates --quiet --out $(@D)/run
	touch $@

build/play/page/play.html: build/play/trained $(wildcard src/anyscore/lab/play/* src/anyscore/plot/*)
	mkdir -p $(@D)
	$(PLAY) translate build/play/run --play $@

# A file says what has been installed beside it, from these sources of the C++ core.
INSTALLED = $(PYTHON) tests/processor_seconds.py run install $(BIN)/pip install $(QUIET)
.venv/lab .venv/dev: .venv/%: constraints.txt $(SOURCES)
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(INSTALLED) -c constraints.txt torch
	$(INSTALLED) -c constraints.txt -e '.[$*]'
	touch $@

.venv/bench: benchmarks/requirements.txt .venv/lab
	$(INSTALLED) -c constraints.txt -r benchmarks/requirements.txt
	touch $@

# Beside the environment, not in it: TensorFlow and Triton abort where both are imported.
.venv/triton: constraints.txt .venv/dev
	$(INSTALLED) -c constraints.txt --no-deps --upgrade --target $@ triton
	touch $@

.venv/triton-3.4: .venv/dev
	$(INSTALLED) --no-deps --upgrade --target $@ triton==3.4.0
	touch $@

.venv/build/made: constraints-build.txt
	test -x $(@D)/bin/pip || $(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install $(QUIET) build
	touch $@

.venv/oldest-%/made: constraints-oldest.txt $(SOURCES)
	test -x $(@D)/bin/pip || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --upgrade pip
	$(@D)/bin/pip install $(QUIET) -c constraints-oldest.txt -C cmake.define.ANYSCORE_ISAS=baseline \
		-e '.[torch,$*]' hypothesis pytest pytest-xdist sybil
	touch $@

# MXNet 1.9.1 needs a NumPy that no other framework takes any more. The core is built there for plain
# processors only: quicker, and these kernels are tried once more.
.venv/mxnet/dev: constraints-mxnet.txt $(SOURCES)
	test -x $(MXNET)/pip || $(PYTHON) -m venv .venv/mxnet
	$(PYTHON) tests/processor_seconds.py run install-mxnet $(MXNET)/pip install $(QUIET) -c constraints-mxnet.txt \
		-C cmake.define.ANYSCORE_ISAS=baseline -e '.[mxnet-dev]'
	touch $@
