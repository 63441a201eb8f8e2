# Everything is done by make, on a fresh machine: `make serve` and `make test` do all their own set-up.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
VENV := .venv
PY := $(VENV)/bin/python
PYTHON ?= python3
NATIVE_TESTS := build/native-tests
TOOLS := $(VENV)/.installed
NATIVE := $(shell find native -name '*.cpp' -o -name '*.h' -o -name CMakeLists.txt 2>/dev/null)
ARGS ?=

.PHONY: help serve test lint format native-tests sanitize neon fuzz soak emulate gpu slow bench wheel clean docs archs

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

serve: $(VENV)/.strata ## build, install into .venv and serve the embedded model on 127.0.0.1:8080 (MODEL=, ARGS=)
	$(VENV)/bin/strata serve $(MODEL) $(ARGS)

test: $(VENV)/.strata-dev native-tests ## the whole test suite
	$(PY) -m pytest -m "not slow and not gpu" $(ARGS)

$(VENV)/bin/python:
	@tools/check_machine.sh
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -q --upgrade pip

# The package itself, editable: Python files are used in place, the native library is built and installed.
$(VENV)/.strata: $(VENV)/bin/python pyproject.toml $(NATIVE)
	$(PY) -m pip install -q scikit-build-core cmake ninja cffi
	$(PY) -m pip install -q --no-build-isolation -e .
	@touch $@

$(VENV)/.strata-dev: $(VENV)/.strata
	$(PY) -m pip install -q --no-build-isolation -e '.[test]'
	@touch $@

$(VENV)/.lint: $(VENV)/bin/python pyproject.toml
	$(PY) -m pip install -q $$($(PY) -c "import tomllib; print(' '.join(tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['lint']))")
	@touch $@

native-tests: $(VENV)/.strata ## libstrata_test and the native test programs
	@PATH=$(CURDIR)/$(VENV)/bin:$$PATH cmake -S native -B $(NATIVE_TESTS) -G Ninja -DSTRATA_TESTS=ON >/dev/null
	@PATH=$(CURDIR)/$(VENV)/bin:$$PATH ninja -C $(NATIVE_TESTS) | tail -n 1

lint: $(VENV)/.strata-dev $(VENV)/.lint ## ruff, pyright, import contracts, clang-format, generated files, sizes
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/clang-format --dry-run --Werror $$(find native -name '*.cpp' -o -name '*.h')
	$(VENV)/bin/lint-imports
	$(VENV)/bin/pyright --stats | tail -n 3
	$(PY) tools/gen_ffi.py --check
	$(PY) tools/gen_docs.py --check
	$(PY) tools/check_sizes.py

format: $(VENV)/.lint ## rewrite sources in the house's format
	$(VENV)/bin/ruff check -q --fix .
	$(VENV)/bin/ruff format -q .
	$(VENV)/bin/clang-format -i $$(find native -name '*.cpp' -o -name '*.h')

sanitize: $(VENV)/.strata-dev ## native tests under ASan and UBSan, pool, queue and sim device under TSan (about ten minutes)
	@PATH=$(CURDIR)/$(VENV)/bin:$$PATH cmake -S native -B build/asan -G Ninja -DSTRATA_TESTS=ON -DSTRATA_SANITIZE=address,undefined >/dev/null
	@PATH=$(CURDIR)/$(VENV)/bin:$$PATH ninja -C build/asan libstrata_test.so | tail -n 1
	NATIVE_TESTS=build/asan LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1 $(PY) -m pytest tests/native $(ARGS)
	@PATH=$(CURDIR)/$(VENV)/bin:$$PATH cmake -S native -B build/tsan -G Ninja -DSTRATA_TESTS=ON -DSTRATA_SANITIZE=thread >/dev/null
	@PATH=$(CURDIR)/$(VENV)/bin:$$PATH ninja -C build/tsan test_pool bench_decode libstrata_test.so | tail -n 1
	NATIVE_TESTS=build/tsan LD_PRELOAD="$$($(CXX) -print-file-name=libtsan.so)" TSAN_OPTIONS=exitcode=66 \
	  $(PY) -m pytest tests/native/test_engine_sim.py -p no:cacheprovider
	build/tsan/test_pool
	build/tsan/bench_decode 2 3 1 300 4 tiny && build/tsan/bench_decode 2 3 40 0 2 tiny

neon: $(VENV)/.strata ## compile the library for 64-bit ARM (needs: sudo apt install g++-aarch64-linux-gnu)
	@PATH=$(CURDIR)/$(VENV)/bin:$$PATH cmake -S native -B build/neon -G Ninja -DCMAKE_SYSTEM_NAME=Linux \
	  -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ >/dev/null
	@PATH=$(CURDIR)/$(VENV)/bin:$$PATH ninja -C build/neon | tail -n 1

soak: $(VENV)/.strata ## mixed requests with aborts for SECS seconds (3600) on BACKEND (sim): equal answers, no hang, no leak
	$(PY) tools/soak.py --seconds $(or $(SECS),3600) --backend $(or $(BACKEND),sim) $(MODEL)

emulate: $(VENV)/.strata-dev native-tests ## the CUDA backend's whole-model tests on a driver that runs kernels on the CPU (slow)
	@mkdir -p $(NATIVE_TESTS)/emulator/home
	LD_LIBRARY_PATH=$(CURDIR)/$(NATIVE_TESTS)/emulator STRATA_ENGINE_NVRTC_PATH=$(CURDIR)/$(NATIVE_TESTS)/emulator/libnvrtc.so.12 \
	  STRATA_ENGINE_DEADLINE_SCALE=100 STRATA_ENGINE_N_THREADS=1 HOME=$(CURDIR)/$(NATIVE_TESTS)/emulator/home \
	  $(PY) -m pytest -m gpu tests/gpu/test_cuda_model.py -p no:cacheprovider $(ARGS)

fuzz: $(VENV)/.strata-dev ## mutated model files against the reader for SECS seconds (300)
	$(PY) tools/fuzz_gguf.py --seconds $(or $(SECS),300)

gpu: $(VENV)/.strata-dev ## CUDA kernels on this machine's GPU: bits against the CPU's, sanitizers, speed
	PATH=$(CURDIR)/$(VENV)/bin:$$PATH tools/gpu_kernels.sh "$$($(PY) -c 'import nvidia.cuda_nvrtc as n; print(n.__path__[0])')/lib"

slow: $(VENV)/.strata-dev native-tests ## the long proofs that make test leaves out
	$(PY) -m pytest -m slow $(ARGS)

bench: $(VENV)/.strata ## decode and prompt speed of the embedded model
	$(VENV)/bin/strata bench -p 256 -n 256 --json

archs: $(VENV)/.strata-dev native-tests ## measure every architecture against llama.cpp and rewrite docs/architectures.md (minutes)
	$(PY) tools/archs_table.py $(ARGS)
	$(PY) tools/gen_docs.py

docs: $(VENV)/.strata ## regenerate the generated pages
	$(PY) tools/gen_docs.py

wheel: $(VENV)/bin/python ## dist/*.whl
	$(PY) -m pip wheel -q --no-deps -w dist .

clean: ## remove everything that was built
	rm -rf build dist $(VENV)
