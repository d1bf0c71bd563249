# `make help` lists the commands. Begin with `make demo` or `make test`. Both create .venv first.
PYTHON ?= $(firstword $(shell command -v python3.11) python3)
VENV ?= .venv
BIN := $(abspath $(VENV))/bin
INSTALL := -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PIP := $(BIN)/python $(INSTALL)
FRAMEWORKS ?= .venv-frameworks
RELEASE ?= .venv-release
TORCH ?= 2.13.0
ENVIRONMENTS ?= $(HOME)/.cache/optgen-environments
TORCH_VENV = $(ENVIRONMENTS)/torch-$(TORCH)-$(notdir $(PYTHON))
CUDA_VENV = $(ENVIRONMENTS)/cuda-torch-2.13.0-$(notdir $(PYTHON))
export OMP_NUM_THREADS ?= 1
unexport PYTHONDONTWRITEBYTECODE # dozens of processes load the same modules, from cached bytecode

.PHONY: help demo test test-thorough check tests fuzz compositions verify evidence test-torch test-asan test-tsan test-tsan-offload test-kernels test-cuda-host emulate-cuda test-compiler test-arm test-frameworks format types bench docs \
	dist test-dist test-wheel publish clean

help: ## this list
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

demo: $(VENV)/installed ## train a small network beside torch's classes; table and plot; ALL=1: every optimizer
	$(BIN)/python examples/demo.py $(if $(ALL),--all)

test: check ## everything that a change needs, in minutes
	$(MAKE) tests CHECKED="$(CHECKED_TESTS)"

test-thorough: check ## also the cases that `make test` leaves out: tests/sampling.py
	$(BIN)/python -m pytest --thorough --numprocesses auto --dist worksteal

test-kernels: $(VENV)/installed ## every kernel, composition and drawn rule on an emulated device: tests/ptx
	$(BIN)/python -m pytest --every-case --numprocesses auto --dist worksteal tests/ptx

CHECKED_TESTS := $(addprefix tests/,test_tiny.py test_import_law.py test_docs.py)
check: $(VENV)/installed types ## format, lint, types, import law, all stages, docs, generated files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check --no-cache . # the cache does not notice that a package has moved
	$(BIN)/python -m pytest -q $(CHECKED_TESTS)
	$(BIN)/optgen build --check

tests: $(VENV)/installed
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal $(addprefix --ignore=,$(CHECKED))

# Options: SECONDS=, SEED=, PROCESSES=, OUT=. Rules that fail are shrunk and written to tests/fuzz/found.
fuzz: $(VENV)/installed ## random rules, in every lowering, for SECONDS=600
	PYTHONPATH=tests $(BIN)/python -m fuzz --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED)) \
		$(if $(PROCESSES),--processes $(PROCESSES)) $(if $(OUT),--out $(OUT))

compositions: $(VENV)/installed ## modifiers with rules, in pairs and chains, against code written by hand
	PYTHONPATH=tests $(BIN)/python -m fuzz --matrix $(PARTS) --seconds 1000000 \
		$(if $(PROCESSES),--processes $(PROCESSES)) $(if $(OUT),--out $(OUT))

verify: $(VENV)/installed ## every optimizer against an independent implementation; the table is build/evidence.md
	@mkdir -p build
	$(BIN)/optgen verify --all --reference rule --json build/evidence.json --markdown build/evidence.md

evidence: $(VENV)/installed ## like verify, also in Triton's interpreter; writes docs/evidence.json and two tables
	TRITON_INTERPRET=1 $(BIN)/optgen verify --all --reference rule --json docs/evidence.json \
		--markdown docs/evidence.md --markdown docs/catalogue.md

test-torch: $(TORCH_VENV)/installed ## every case on another torch: TORCH=2.15.0 PYTHON=python3.13
	$(TORCH_VENV)/bin/python -m pytest --thorough --numprocesses auto --dist worksteal $(TESTS)

# Kernels are compiled with the sanitizer, and torch is not. PYTHONMALLOC: so that Python's objects are watched, too.
# torch throws C++ exceptions, and libstdc++ must be there before the sanitizer begins.
ASAN_CXX ?= g++
ASAN = LD_PRELOAD="$$($(ASAN_CXX) -print-file-name=libasan.so) $$($(ASAN_CXX) -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 PYTHONMALLOC=malloc \
	CXX="$(ASAN_CXX) -fsanitize=address" OPTGEN_CACHE_DIR=$(CURDIR)/build/cache-asan
test-asan: $(VENV)/installed ## change every tensor between two steps, with kernels under AddressSanitizer: CASES=AdamW
	$(ASAN) $(BIN)/python -m pytest -q -p no:cacheprovider tests/sanitizers $(if $(CASES),-k "$(CASES)")

# torch is the build for CUDA, and finds two devices that are emulated. Options: CASES=streams, THOROUGH=1.
# OPTGEN_GPU_SMALL: benchmarks/gpu.py takes small tensors, because an emulated device has 1 GiB.
CUDA_HOST = $(CURDIR)/build/cuda-host
EMULATED_CUDA = LD_PRELOAD=$(CUDA_HOST)/libcudart.so.13 LD_LIBRARY_PATH=$(CUDA_HOST) \
	TRITON_LIBCUDA_PATH=$(CUDA_HOST) TRITON_CACHE_DIR=$(CUDA_HOST)/triton
test-cuda-host: $(CUDA_VENV)/installed $(CUDA_HOST)/libcudart.so.13 ## steps on emulated CUDA devices
	$(EMULATED_CUDA) $(CUDA_VENV)/bin/python -m pytest -p no:cacheprovider \
		--numprocesses auto --dist worksteal tests/cuda_host $(if $(CASES),-k "$(CASES)") $(if $(THOROUGH),--thorough)

emulate-cuda: $(CUDA_VENV)/installed $(CUDA_HOST)/libcudart.so.13 ## a program on emulated CUDA devices: RUN="FILE ARGUMENTS"
	$(EMULATED_CUDA) OPTGEN_GPU_SMALL=1 PYTHONPATH=$(CURDIR)/tests/cuda_host/every_process:$(CURDIR)/tests:$(CURDIR) \
		$(CUDA_VENV)/bin/python $(RUN)

# What the table of compilers in docs/what-runs-where.md counts. make's own value of CXX is g++.
KERNEL_TESTS = $(addprefix tests/runtime/,$(addprefix fused_cpu/,include test_mixed_dtypes.py \
	test_phases_dtypes.py) toolchain/test_sweep_library.py) \
	$(addprefix tests/lowerings/,test_fused_cpu.py test_fused_cpu_phases.py random_numbers/test_stochastic_rounding.py)
test-compiler: $(VENV)/installed ## a sample of the kernels' tests with another compiler: CXX=clang++-19
	CXX="$(CXX)" $(BIN)/python -m pytest -q -p no:cacheprovider --numprocesses auto --dist worksteal $(KERNEL_TESTS)

# Needs debootstrap, aarch64-linux-gnu-g++ and QEMU, version 10: in version 7.2, importing torch ends in a fault.
# An import of torch takes half a minute, so only tests that start no Python run: CASES=adamw, ARM_MARCH=armv9-a+bf16,
# ARM_CXX=clang++ ARM_CLANG=clang++-19, ARM_DEBIAN=trixie (with Python 3.13) TORCH=2.15.0.
ARM_CXX ?= g++
ARM_DEBIAN ?= bookworm
ARM_VENV = $(ENVIRONMENTS)/aarch64-torch-$(TORCH)-$(ARM_DEBIAN)
ARM = OPTGEN_ARM=$(ARM_VENV) CXX=$(CURDIR)/tests/arm/$(ARM_CXX) PYTHONPATH=$(CURDIR) \
	OPTGEN_CACHE_DIR=$(CURDIR)/build/cache-arm-$(ARM_CXX)-$(or $(ARM_MARCH),armv8.2-a)
test-arm: $(VENV)/installed $(ARM_VENV)/installed ## steps on an emulated ARM processor, compared with this one's
	@mkdir -p build
	$(BIN)/python tests/arm/steps.py build/steps.pt
	$(ARM) $(CURDIR)/tests/arm/python tests/arm/steps.py build/steps-arm.pt --against build/steps.pt
	$(ARM) $(CURDIR)/tests/arm/python -m pytest -q -p no:cacheprovider tests/runtime/fused_cpu/include \
		$(if $(CASES),-k "$(CASES)")

OWN_PROCESS = tests/frameworks/test_offload.py tests/frameworks/test_offloaded_trainer.py
test-frameworks: $(FRAMEWORKS)/installed ## with Hugging Face, trl, Lightning, DeepSpeed, torchtitan
	$(FRAMEWORKS)/bin/python -m pytest -q $(OWN_PROCESS:%=--ignore=%) tests/frameworks
	$(foreach file,$(OWN_PROCESS),$(FRAMEWORKS)/bin/python -m pytest -q $(file) &&) true

# The simulated device is compiled with the sanitizer, and torch is not: what its threads do among themselves is not
# reported. Python's memory is the system's, so that the sanitizer sees when it is freed.
TSAN_CXX ?= g++
TSAN = LD_PRELOAD="$$($(TSAN_CXX) -print-file-name=libtsan.so)" DEVICE_FLAGS=-fsanitize=thread \
	TSAN_OPTIONS=handle_segv=0:exitcode=66:suppressions=$(CURDIR)/tests/device/tsan.supp PYTHONMALLOC=malloc
test-tsan: $(VENV)/installed ## the simulated device under ThreadSanitizer: CASES=streams
	$(TSAN) $(BIN)/python -m pytest -q -p no:cacheprovider tests/device $(if $(CASES),-k "$(CASES)")

# With kernels compiled for the sanitizer: steps that are hidden, clipped and accumulated, and errors. The tests run
# without it first, which makes the compositions: ruff, which formats them, has races of its own.
TSAN_TESTS = $(addprefix tests/offload/test_,same_bits.py hidden_steps.py leaving_gradients.py faults.py) \
	-k "random_scripts or clipping_is or summed or drops_gradients or failed_pass or copy_fails or kernel_raises"
test-tsan-offload: $(VENV)/installed ## offloaded steps under ThreadSanitizer
	$(BIN)/python -m pytest -q $(TSAN_TESTS)
	$(TSAN) CXX="$(TSAN_CXX) -fsanitize=thread" $(BIN)/python -m pytest -q -p no:cacheprovider $(TSAN_TESTS)

format: $(VENV)/installed ## format, and fix lint where ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# mypy checks the layout of the installed package: generated/ and templates/ are inside optgen/. benchmarks/ and
# docs/website/ are beside it.
types: $(VENV)/installed
	@rm -rf build/types && mkdir -p build/types/optgen
	@ln -s $(CURDIR)/optgen/* $(CURDIR)/generated $(CURDIR)/templates build/types/optgen/
	@ln -s $(CURDIR)/benchmarks $(CURDIR)/docs/website build/types/
	cd build/types && $(BIN)/mypy --config-file $(CURDIR)/pyproject.toml --cache-dir $(CURDIR)/.mypy_cache \
		-p optgen -p benchmarks -p website

bench: $(VENV)/installed ## this machine's figures against torch.optim
	$(BIN)/optgen bench

# The site has the pages of docs/ and generated pages. Warnings are errors, and all links in the site are checked.
docs: $(VENV)/installed-docs build/docs/node_modules/installed ## the documentation's site: build/docs/site
	PYTHONPATH=docs $(BIN)/python -m website.write_source build/docs build/docs/node_modules
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --config-file build/docs/mkdocs.yml
	PYTHONPATH=docs $(BIN)/python -m website.finish_site build/docs/site build/docs/node_modules

.PHONY: docs-serve
docs-serve: docs ## serve the site to a browser: PORT=8000
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory build/docs/site $(or $(PORT),8000)

# The archives hold the files, modes and times of the last commit, whatever the working tree holds. The archive of
# the source is built first, and the wheel is built from that archive.
EXPORT = git -c tar.umask=0022 archive -o build/source.tar HEAD && tar -xmf build/source.tar -C
BUILD = umask 022 && SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) \
	$(RELEASE)/bin/python -m build --quiet --no-isolation --outdir

dist: $(RELEASE)/installed ## sdist and wheel of the last commit, in dist/
	@rm -rf dist build/dist && mkdir -p build/dist
	@umask 022 && $(EXPORT) build/dist
	$(BUILD) dist build/dist
	$(RELEASE)/bin/twine check --strict dist/*

REBUILD = build/dist-again/in/another/folder
test-dist: dist ## check that builds are reproducible: of both archives, and of the wheel alone
	@rm -rf build/dist-again && mkdir -p $(REBUILD)
	@umask 022 && $(EXPORT) $(REBUILD)
	$(BUILD) build/dist-again/both $(REBUILD)
	$(BUILD) build/dist-again/wheel --wheel $(REBUILD)
	diff -r dist build/dist-again/both
	cmp dist/*.whl build/dist-again/wheel/*.whl

test-wheel: dist ## the wheel with torch 2.13.0, on each supported Python that this machine has
	bash release/test_wheel.sh

# Credentials: TWINE_PASSWORD (a token), or TWINE_USERNAME and TWINE_PASSWORD. DRY_RUN=1 needs none.
UPLOAD = TWINE_USERNAME=$${TWINE_USERNAME:-__token__} $(RELEASE)/bin/twine upload --non-interactive \
	--config-file /dev/null --disable-progress-bar dist/*
publish: ## check the last commit and its tag, build, test the wheel, upload dist/
	$(PYTHON) release/check_commit.py
	@$(if $(DRY_RUN),,: "$${TWINE_PASSWORD:?is not set: set it to a token, or run make publish DRY_RUN=1}")
	$(MAKE) test-dist test-wheel
	$(if $(DRY_RUN),@echo 'a dry run ends here, without: $(UPLOAD)',$(UPLOAD))

clean: ## remove all files that git ignores
	git clean -fdX --quiet

# The CPU build of torch if pip's index has one, else the plain build.
$(VENV)/installed: pyproject.toml setup.py constraints.txt
	@echo "making $(VENV): torch and the tools, one to a few minutes …"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) torch==2.13.0+cpu 2>/dev/null || $(PIP) torch
	@$(PIP) --editable .[dev]
	@touch $@

$(VENV)/installed-docs: $(VENV)/installed
	@$(PIP) --editable .[docs]
	@touch $@

# KaTeX renders formulas when the site is built. Its styles are copied into the site, so pages request
# nothing from other hosts.
build/docs/node_modules/installed: docs/website/package.json
	@mkdir -p build/docs
	@cp docs/website/package.json build/docs/
	@npm install --prefix build/docs --no-package-lock --no-audit --no-fund --loglevel=error
	@touch $@

# A separate venv of 2.5 GB, because only these tests need frameworks. DeepSpeed's C++ is not built. axolotl would bring
# sixty packages in versions of its own, so it comes alone: the tests import two modules of it.
$(FRAMEWORKS)/installed: pyproject.toml setup.py constraints.txt tests/frameworks/constraints.txt
	@echo "making $(FRAMEWORKS): torch and the frameworks, a few minutes …"
	@$(PYTHON) -m venv $(FRAMEWORKS)
	@$(FRAMEWORKS)/bin/python $(INSTALL) torch==2.13.0+cpu 2>/dev/null \
		|| $(FRAMEWORKS)/bin/python $(INSTALL) torch
	@DS_BUILD_OPS=0 $(FRAMEWORKS)/bin/python $(INSTALL) \
		--constraint tests/frameworks/constraints.txt --editable .[frameworks]
	@$(FRAMEWORKS)/bin/python $(INSTALL) --no-deps axolotl==0.19.0
	@touch $@

$(RELEASE)/installed: constraints.txt
	@echo "making $(RELEASE): build and twine, some seconds …"
	@$(PYTHON) -m venv $(RELEASE)
	@$(RELEASE)/bin/python $(INSTALL) build setuptools twine
	@touch $@

# A venv of 5.2 GB outside the checkout. `===` excludes torch's builds for the CPU.
$(CUDA_VENV)/installed: pyproject.toml setup.py constraints.txt
	@echo "making $(CUDA_VENV): torch for CUDA and the tools, a few minutes …"
	@mkdir -p $(CUDA_VENV)
	@$(PYTHON) -m venv $(CUDA_VENV)
	@$(CUDA_VENV)/bin/python $(INSTALL) torch===2.13.0 --editable .[dev]
	@touch $@

# The headers are those of torch's own packages.
$(CUDA_HOST)/libcudart.so.13: $(wildcard tests/cuda_host/runtime/*) | $(CUDA_VENV)/installed
	@mkdir -p $(CUDA_HOST)
	@ln -sf libcudart.so.13 $(CUDA_HOST)/libcuda.so.1
	@g++ -std=c++17 -O1 -shared -fPIC -Wall -Wextra -Wno-unused-parameter -Wno-deprecated-declarations \
		-Itests/cuda_host/runtime -I$$(echo $(CUDA_VENV)/lib/python*/site-packages/nvidia/cu13/include) \
		-Wl,-soname,libcudart.so.13 -Wl,--version-script=tests/cuda_host/runtime/exports.map \
		tests/cuda_host/runtime/*.cpp -o $@

$(ARM_VENV)/installed: tests/arm/make_environment.sh tests/arm/no_cuda.py constraints.txt
	@echo "making $(ARM_VENV): Python and torch for aarch64, some minutes …"
	@sh tests/arm/make_environment.sh $(ARM_VENV) $(PYTHON) $(TORCH) $(ARM_DEBIAN)
	@touch $@

# A venv for each version of torch and of Python, outside the checkout: most bring gigabytes of CUDA.
# torch chooses its own Triton and setuptools; Triton 3.6 interprets with NumPy below 2.4 only.
$(TORCH_VENV)/installed: pyproject.toml setup.py constraints.txt
	@echo "making $(TORCH_VENV): torch $(TORCH) and the tools, a few minutes …"
	@mkdir -p $(TORCH_VENV)
	@$(PYTHON) -m venv $(TORCH_VENV)
	@grep -v -e '^torch==' -e '^triton==' -e '^setuptools==' -e '^numpy==' constraints.txt \
		> $(TORCH_VENV)/constraints.txt
	@echo 'numpy<2.4' >> $(TORCH_VENV)/constraints.txt
	@$(TORCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		--constraint $(TORCH_VENV)/constraints.txt torch==$(TORCH) --editable .[dev]
	@touch $@
