# Everything runs in the environment that .ci/setup.sh finds or makes: the python3 (or PYTHON=...)
# that has torch, else .venv in this folder.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup build test conformance demo bench lint docs clean

PY = $(shell cat .cache/python)
JOBS ?= $(shell nproc)
REPORTS := build/reports

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup:
	@.ci/setup.sh

build: setup  ## compiles the library and its tests, installs the package into the environment
	@SYMM_BUILD_TESTS=ON CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) \
	  $(PY) -m pip install --quiet --no-build-isolation --no-deps .

test: build  ## C++ unit and multi-rank tests, then the Python and fault tests
	@mkdir -p $(REPORTS)
	ctest --test-dir build/Release -j $(JOBS) --output-on-failure --no-tests=error \
	  --progress --output-junit $(CURDIR)/$(REPORTS)/ctest.xml
	$(PY) -m pytest -q test/python test/fault --junitxml=$(REPORTS)/pytest.xml

conformance: build  ## PyTorch's own distributed tests, run against symm
	@mkdir -p $(REPORTS)
	$(PY) -m pytest -q test/conformance --junitxml=$(REPORTS)/conformance.xml

demo: build  ## trains small models with symm and shows what it does
	$(PY) docs/examples/demo.py

bench: build  ## bandwidth and latency beside gloo, with checked results
	$(PY) -m torch_symm.bench

lint: setup  ## formatting, static checks and the structure test
	@.ci/lint.sh

docs: setup  ## checks the documentation: links, and that every variable is described
	$(PY) -m pytest -q test/structure/test_docs.py

clean:  ## removes what the build made; the environment stays
	rm -rf build dist demo_out compile_commands.json
