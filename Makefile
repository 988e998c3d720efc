# Everything runs in the environment that .ci/setup.sh finds or makes: the python3 (or PYTHON=...)
# that has torch, else .venv in this folder; TORCH=2.14.1 asks for that version of torch, in an
# environment of its own.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup build build-tests test test-long test-all test-gpu behaviours conformance asan tsan hip \
  hip-quick huge demo bench lint wheel docs clean

PY = "$$(cat .cache/python)"
JOBS ?= $(shell nproc)
REPORTS := build/reports
# Of Python tests at once: many wait for a time-out or for each other.
FILES = $(shell expr $(JOBS) + 1)

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup:
	@.ci/setup.sh

build:  ## compiles what has changed and installs the package into the environment
	@.ci/setup.sh run
	@.ci/build.sh

build-tests:
	@.ci/setup.sh test
	@.ci/build.sh --tests

test: build-tests  ## every kind of test in minutes; what takes long is left to test-all
	@mkdir -p $(REPORTS)
	ctest --test-dir build/Release -j $(JOBS) --output-on-failure --no-tests=error --progress \
	  --output-junit $(CURDIR)/$(REPORTS)/ctest.xml
	$(PY) test/run_tests.py --jobs $(FILES) -m "not long"

test-long: build-tests
	$(PY) test/run_tests.py --jobs $(FILES) -m long --reports $(REPORTS)/long

test-all: test test-long conformance  ## test, the tests that take long, and PyTorch's own

test-gpu: build-tests  ## test/python, test/gpu and the faults on the GPUs at hand
	$(PY) test/run_tests.py --device cuda -m "not long" \
	  --gpu-tests build/Release/test/symm_gpu_tests --reports $(REPORTS)/gpu

behaviours: build-tests  ## what a backend can change in PyTorch's tests, over symm on the CPU
	$(PY) test/run_tests.py --jobs $(FILES) --reports $(REPORTS)/backend test/conformance/backend

conformance: build-tests behaviours  ## PyTorch's own distributed tests, and programs over other packages
	@.ci/setup.sh conformance
	@mkdir -p $(REPORTS)
	$(PY) test/run_tests.py --jobs $(JOBS) --reports $(REPORTS)/symmetric_memory \
	  test/conformance/symmetric_memory
	$(PY) test/run_tests.py --jobs $(JOBS) --reports $(REPORTS)/packages test/conformance/packages
	$(PY) -m pytest -q test/conformance/test_conformance.py --junitxml=$(REPORTS)/conformance.xml

wheel: ## dist/*.whl for the torch at hand, whose version is the wheel's local one
	@.ci/setup.sh run
	@.ci/wheel.sh

# The torch-free part and all of its C++ tests, compiled with sanitizers. A finding fails its test.
# TSan follows accesses by address: it judges ranks that are threads on one mapping
# (executor_test) and all that threads of one rank share; between two mappings of the same memory
# it sees nothing, neither races nor order.
define sanitized_tests
@mkdir -p $(REPORTS)
nice cmake -S . -B build/$@ -G Ninja -DCMAKE_BUILD_TYPE=Release -DSYMM_BUILD_TORCH=OFF \
  -DSYMM_BUILD_PYTHON=OFF -DSYMM_SANITIZE=$(SANITIZE) -DPython3_EXECUTABLE=$(PY)
nice cmake --build build/$@ -j $(JOBS)
UBSAN_OPTIONS=print_stacktrace=1 GTEST_FILTER='$(TESTS)' nice $(PY) test/run_gtests.py \
  build/$@/test/symm_*_tests --jobs $(JOBS) --report $(REPORTS)/$@.xml
endef

asan: SANITIZE := address,undefined
asan: TESTS := *
asan: setup  ## the C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
	$(sanitized_tests)
	nice ctest --test-dir build/$@ -L fuzz --output-on-failure --no-tests=error

# Left out: what computes for a minute in one thread, where TSan has nothing to find.
tsan: SANITIZE := thread
tsan: TESTS := -*ReduceKernels*:*WireRoute*
tsan: setup  ## the C++ tests under ThreadSanitizer
	$(sanitized_tests)

# With the compilers of Debian 12; no AMD GPU and no ROCm is needed, and no AMD kernel is run.
hip: setup  ## builds libsymm_hip for AMD GPUs and tests that it loads
	@JOBS=$(JOBS) .ci/hip.sh

hip-quick: setup  ## the same for one GPU, and the assembly of some sources for the others
	@JOBS=$(JOBS) .ci/hip.sh --quick

huge: build-tests  ## tensors beyond 2^31 elements and 4 GiB on two ranks; needs 16 GiB of memory
	@mkdir -p $(REPORTS)
	$(PY) -m pytest -q -m huge test/python/collectives/test_beyond_4gib.py \
	  --junitxml=$(REPORTS)/huge.xml

demo:  ## trains small models with symm and shows what it does
	@.ci/step --begin "make demo: environment, build, then a training over symm and over gloo;\
	 on 2 cores about 3 minutes the first time, under one later"
	@$(MAKE) --no-print-directory build
	@$(PY) docs/examples/demo.py
	@.ci/step --table

demo-hosts: build  ## four processes of this machine as two hosts of two, beside gloo over all four
	@$(PY) docs/examples/two_hosts.py

bench: build  ## bandwidth and latency beside gloo, with checked results
	$(PY) -m torch_symm.bench --against gloo

lint: setup  ## formatting, static checks and the structure test
	@.ci/lint.sh

docs: build-tests  ## checks the documentation: links, described variables, programs that run
	$(PY) -m pytest -q test/structure/test_docs.py test/python/tools/test_doc_snippets.py

clean:  ## removes what the build made; the environment stays
	rm -rf build dist demo_out compile_commands.json
