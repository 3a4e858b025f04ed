# Everything a newcomer needs: `make demo` and `make test`, set-up included. `make help` lists the rest.
PRESET ?= release
BUILD  := build/$(PRESET)
JOBS   ?= $(shell nproc)
export MESHTORCH_PYTHON MESHTORCH_PIP_ARGS CMAKE_PREFIX_PATH

.PHONY: help setup build demo test bench format format-check tidy clean distclean
.DEFAULT_GOAL := help

help:            ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' Makefile

setup:           ## install what is missing: Debian packages (as root) and LibTorch into .venv
	@tools/setup.sh

$(BUILD)/build.ninja: CMakePresets.json | setup
	@cmake --preset $(PRESET)

build: setup $(BUILD)/build.ninja  ## build the library, the tools, the tests and the examples
	@cmake --build $(BUILD) -j $(JOBS)

demo: setup $(BUILD)/build.ninja   ## train a small Llama on 4 ranks, compare it with one device, let it write
	@cmake --build $(BUILD) -j $(JOBS) --target demo meshtorch-llama
	@$(BUILD)/examples/llama/demo --out $(BUILD)/demo

test: build      ## build and run all tests
	@ctest --preset $(PRESET) -j $(JOBS)

bench: build     ## run the benchmarks
	@$(BUILD)/benchmarks/comm_benchmark
	@$(BUILD)/benchmarks/operator_benchmark
	@PYTHONPATH=$(BUILD)/python $(or $(MESHTORCH_PYTHON),.venv/bin/python) benchmarks/python_overhead.py

format:          ## format the sources in place
	@tools/format.sh

format-check:    ## fail if a source is not formatted
	@tools/format.sh --check

tidy: setup      ## run clang-tidy over the library
	@tools/tidy.sh

clean:           ## remove the build folder
	@rm -rf build

distclean: clean ## remove the build folder and .venv
	@rm -rf .venv
