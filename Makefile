# Everything a newcomer needs: `make demo` and `make test`, set-up included. `make help` lists the rest.
PRESET ?= release
BUILD  := build/$(PRESET)
JOBS   ?= $(shell nproc)
PYTHON = $(or $(MESHTORCH_PYTHON),.venv/bin/python)

export MESHTORCH_PYTHON MESHTORCH_LIBTORCH MESHTORCH_PIP_ARGS MESHTORCH_TORCH CMAKE_PREFIX_PATH
CMAKE  = $(if $(wildcard .venv/bin/cmake),.venv/bin/cmake,cmake)
CTEST  = $(if $(wildcard .venv/bin/ctest),.venv/bin/ctest,ctest)

.PHONY: help setup build demo test docs pages wheel package compat clients bench check sanitize soak format format-check tidy clean distclean
.DEFAULT_GOAL := help

help:            ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' Makefile

setup:           ## install what is missing: Debian packages (as root) and LibTorch into .venv (MESHTORCH_TORCH=2.15.0: this one)
	@tools/setup.sh

build: setup     ## build the library, the tools, the tests and the examples
	@$(CMAKE) --preset $(PRESET) $(CMAKE_ARGS)
	@$(CMAKE) --build $(BUILD) -j $(JOBS)

demo:            ## train a small Llama on 4 ranks, compare it with one device, let it write
	@tools/setup.sh --library
	@$(CMAKE) --preset $(PRESET) $(CMAKE_ARGS)
	@$(CMAKE) --build $(BUILD) -j $(JOBS) --target demo meshtorch-llama
	@$(BUILD)/examples/llama/demo --out $(BUILD)/demo

# Tests wait for each other's ends for a part of their time.
test: build      ## build and run all tests
	@$(CTEST) --preset $(PRESET) -j $$(($(JOBS) + 1))

docs: setup      ## build the site (guide, reference, explanation) into build/docs/html
	@$(PYTHON) -c 'import furo, myst_parser, sphinx' 2>/dev/null || $(PYTHON) -m pip install --quiet $(MESHTORCH_PIP_ARGS) sphinx myst-parser furo
	@$(CMAKE) --preset $(PRESET) $(CMAKE_ARGS) >/dev/null
	@$(CMAKE) --build $(BUILD) -j $(JOBS) --target meshtorch_python
	@PYTHONPATH=$(BUILD)/python $(PYTHON) tools/docs/site.py . build/docs

pages: setup     ## check README and docs: links, snippets, spelling, length of sentences, every public name in the reference
	@$(PYTHON) tests/docs_test.py .
	@$(PYTHON) tools/docs/reference.py . --check
	@$(PYTHON) tools/docs/sentences.py .
	@$(PYTHON) -m codespell_lib --ignore-words=tools/docs/words.txt README.md CONTRIBUTING.md SECURITY.md docs/*.md

wheel: setup     ## build a wheel for the installed torch: Python package, C++ library, headers, CMake files, meshtorch-run
	@$(PYTHON) -c 'import scikit_build_core' 2>/dev/null || $(PYTHON) -m pip install --quiet $(MESHTORCH_PIP_ARGS) scikit-build-core
	@$(PYTHON) -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir build/wheels .
	@ls build/wheels/*.whl

package: build   ## build a Debian package: library, headers, CMake files, meshtorch-run
	@cd $(BUILD) && cpack -B ../packages >/dev/null && ls ../packages/*.deb

VERSIONS ?= 2.13.0 2.14.1 2.15.0
compat:          ## build and test with each of these versions of torch (VERSIONS="2.13.0 2.15.0"): docs/compatibility.md
	@tools/compat.py --versions $(VERSIONS)

bench: build     ## run the benchmarks: benchmarks/results/*.json and docs/benchmarks.md
	@$(CMAKE) --build $(BUILD) -j $(JOBS) --target benchmarks
	@mkdir -p benchmarks/results
	@$(BUILD)/benchmarks/comm_benchmark --benchmark_filter='copy|/(2ranks/(64|16777216)B|4ranks/65536B)/' --benchmark_min_time=0.3 \
	  --benchmark_repetitions=3 --benchmark_out=benchmarks/results/comm.json --benchmark_out_format=json
	@$(BUILD)/benchmarks/operator_benchmark --benchmark_repetitions=3 --benchmark_out=benchmarks/results/operators.json \
	  --benchmark_out_format=json
	@$(BUILD)/benchmarks/ratio_benchmark benchmarks/results/ratios_threads.json
	@$(BUILD)/tools/meshtorch-run -n 2 --no-prefix $(BUILD)/benchmarks/ratio_benchmark benchmarks/results/ratios_shm.json
	@$(BUILD)/benchmarks/scale_benchmark benchmarks/results/scale.json
	@$(BUILD)/benchmarks/waiting_benchmark benchmarks/results/waiting.json
	@$(PYTHON) benchmarks/jax_step.py benchmarks/results/jax.json
	@$(PYTHON) benchmarks/llama.py $(BUILD) examples/llama/data/alice.txt benchmarks/results/llama.json
	@PYTHONPATH=$(BUILD)/python $(PYTHON) benchmarks/python_overhead.py
	@PYTHONPATH=$(BUILD)/python $(PYTHON) benchmarks/data_parallel.py --json benchmarks/results/data_parallel.json
	@$(BUILD)/tools/meshtorch-run -n 4 --no-prefix $(BUILD)/benchmarks/sharded_memory
	@$(PYTHON) benchmarks/page.py benchmarks/results docs

CLIENTS ?= build/clients
clients: build   ## run torchtitan, transformers and other programs on meshtorch and on PyTorch: docs/clients.md
	@[ -d $(CLIENTS) ] || $(PYTHON) tools/clients.py --install --packages $(CLIENTS)
	@$(PYTHON) tools/clients.py --packages $(CLIENTS) --pythonpath $(BUILD)/python

check: setup     ## what a change must pass: format, clang-tidy on changed sources, pages, each source compiled alone, all tests
	@tools/format.sh --check
	@tools/tidy.sh --changed
	@$(MAKE) pages
	@$(CMAKE) --preset release -B build/alone -DMESHTORCH_UNITY=OFF -DMESHTORCH_WARNINGS_AS_ERRORS=ON >/dev/null
	@$(CMAKE) --build build/alone -j $(JOBS) --target meshtorch benchmarks
	@$(MAKE) test CMAKE_ARGS=-DMESHTORCH_WARNINGS_AS_ERRORS=ON

sanitize: setup  ## unit, sim and dist tests on thread ranks under AddressSanitizer with UBSan, then under ThreadSanitizer
	@for preset in asan-ubsan tsan; do \
	  echo "meshtorch: $$preset" && $(CMAKE) --preset $$preset >/dev/null && $(CMAKE) --build --preset $$preset -j $(JOBS) && \
	  $(CTEST) --preset $$preset -j $(JOBS) || exit 1; done

MINUTES ?= 60
FAULTS  ?= 200
soak: build      ## long forms: all dist tests on gloo, faults in training (FAULTS=…), drawn orders, memory, mutations, drawn programs, fuzzers, other seeds for an hour (MINUTES=…)
	@OMP_NUM_THREADS=1 MESHTORCH_TEST_BACKEND=gloo $(BUILD)/tools/meshtorch-run -n 4 --timeout 1800 $(BUILD)/tests/dist_tests --gtest_brief=1
	@tools/soak_faults.py $(FAULTS) $(BUILD)
	@MESHTORCH_FAULT_SEEDS=300 $(BUILD)/tests/inside_tests --gtest_filter='Programs/Lab.*' --gtest_brief=1
	@MESHTORCH_WORLDS=2000 MESHTORCH_STEPS=20000 MESHTORCH_MUTATIONS=1000000 \
	  $(BUILD)/tests/dist_tests --gtest_filter='FlatMemory.*:Mutations.*' --gtest_brief=1
	@MESHTORCH_MUTATIONS=1000000 $(BUILD)/tests/unit_tests --gtest_filter='Mutations.*' --gtest_brief=1
	@MESHTORCH_PROGRAMS=150:3000 OMP_NUM_THREADS=1 PYTHONPATH=$(BUILD)/python $(PYTHON) -m pytest -q -p no:cacheprovider python/tests/test_programs.py
	@for seed in 1 2 3; do PYTHONPATH=$(BUILD)/python $(PYTHON) tools/operator_database.py --samples 50 --seed $$seed --mesh 2 2 || exit 1; done
	@[ -x $(BUILD)/tests/fuzz/fuzz_files ] || echo "meshtorch: no fuzzers, they need \`apt-get install clang\`"
	@[ ! -x $(BUILD)/tests/fuzz/fuzz_files ] || for corpus in tests/fuzz/corpus/*; do \
	  reader=$$(basename $$corpus); binary=fuzz_files; [ $$reader != plan ] || binary=fuzz_plans; \
	  FUZZ_RUNS=$${FUZZ_RUNS:-1000000} FUZZ_SEED=$${FUZZ_SEED:-0} tests/fuzz/run.sh $(BUILD)/tests/fuzz/$$binary $$reader || exit 1; done
	@tools/soak.sh $(MINUTES) $(BUILD)

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
