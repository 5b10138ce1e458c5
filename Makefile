# Every way to build, run and check Tender. `make help` lists the targets; all of them may be repeated.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON := .venv/bin/python
# The runner's own choice of test crates would leave out nothing we own, but building the Python extension as a test
# binary needs libpython; its Rust is tested through the wheel.
CRATES := --workspace --exclude tender-kv
# Planted mistakes and faults are features: one set of them for all tests that need any, so that there is one build.
# All crates each time: with a part of them cargo would build every dependency once more, for that part's features.
MISTAKES := $(CRATES) \
	--features tender-tests/mutants,tender-tests/faults,tender-client/mutants,tender-daemon/faults
LOOM := $(CRATES) --features tender-daemon/loom,tender-client/loom
NEXTEST := $(shell cargo nextest --version >/dev/null 2>&1 && echo yes)

.PHONY: help setup build wheel image pods demo test lint test-kernels test-rust fuzz torture oracle soak test-python test-vllm bench sanitize clean

help: ## Show this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

setup: ## Check Rust and Python; make .venv with vLLM's CPU engine (some minutes the first time)
	@scripts/setup.sh

build: ## Build tenderd and tender (release)
	@printf '\n=== Build\n'
	cargo build --locked --release --package tender-daemon --package tender-client

wheel: setup ## Build the Python wheel into dist/ and install it into .venv
	@scripts/wheel.sh

image: ## Build the container image (ARGS=--local-base where no registry can be reached)
	@scripts/image.sh $(ARGS)

pods: ## The sidecar's and the node's pods under podman, with an engine that checks every byte (ARGS=--root DIR; not in `make test`)
	cargo build --locked -p tender-tests --bin tender-pod-engine
	@scripts/pods.sh $(ARGS)

demo: setup build wheel ## Show vLLM getting its KV cache back from tenderd, and check every answer
	@$(PYTHON) scripts/demo.py

test: lint test-kernels test-rust test-python test-vllm ## Run every test of the project, Rust and Python

lint: setup ## Formatting, lints, documentation and the direction of dependencies
	@printf '\n=== Format\n'
	cargo fmt --all --check
	@printf '\n=== Clippy\n'
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked $(MISTAKES) --all-targets -- -D warnings
	cargo clippy --locked -p tender-daemon -p tender-client --features tender-daemon/loom,tender-client/loom --lib --tests -- -D warnings
	@printf '\n=== Python and shell\n'
	.venv/bin/ruff format --check scripts tests/python client/python
	.venv/bin/ruff check scripts tests/python client/python
	.venv/bin/shellcheck -x -P scripts scripts/*.sh tests/hosts.sh .ci/run
	@printf '\n=== Documentation\n'
	RUSTDOCFLAGS='-D warnings' cargo doc --locked --quiet --no-deps $(CRATES)
	@scripts/layers.sh

test-kernels: setup ## Compile the CUDA kernels for every architecture; no GPU is needed
	@printf '\n=== CUDA kernels\n'
	$(PYTHON) scripts/kernels.py

test-rust: ## Unit, property, behaviour and documentation tests of all crates
	@printf '\n=== Rust tests\n'
ifeq ($(NEXTEST),yes)
	@# With the programs, which some tests run: built alone, each would need its dependencies with other features.
	cargo build --locked $(CRATES) --tests --bins
	TENDER_TESTS_BUILT=1 cargo nextest run --locked $(CRATES) --no-fail-fast
	@printf '\n=== Tests of the oracle, of the order of copies, and faults inside the daemon\n'
	TENDER_TESTS_BUILT=1 cargo test --locked $(MISTAKES) --test oracle_mutants --test faults
	cargo test --locked $(MISTAKES) --lib -- every_rule_of_order tier::disk::faults
	@printf '\n=== Models of what threads share\n'
	cargo test --locked $(LOOM) --lib models::
	@printf '\n=== Documentation tests\n'
	cargo test --locked $(CRATES) --doc
else
	cargo build --locked $(CRATES) --tests --bins
	TENDER_TESTS_BUILT=1 cargo test --locked $(CRATES) --no-fail-fast
	@printf '\n=== Tests of the oracle, of the order of copies, and faults inside the daemon\n'
	TENDER_TESTS_BUILT=1 cargo test --locked $(MISTAKES) --test oracle_mutants --test faults
	cargo test --locked $(MISTAKES) --lib -- every_rule_of_order tier::disk::faults
	@printf '\n=== Models of what threads share\n'
	cargo test --locked $(LOOM) --lib models::
endif

fuzz: ## Every fuzz target for MINUTES (20) under libFuzzer, JOBS (1) at one time; what is found is listed at the end
	@scripts/fuzz.sh

torture: ## Kill, stop and cut off daemon and clients at random and check what is served (ROUNDS=kills, SEED=n)
	@printf '\n=== Torture\n'
	cargo run --locked -p tender-tests --bin tender-torture

oracle: ## The oracle over ever new seeds until it is stopped; prints each (FIRST=n begins elsewhere)
	@printf '\n=== Oracle\n'
	cargo test --locked -p tender-tests --test oracle --no-run
	@first=$${FIRST:-100000}; while true; do \
		TENDER_ORACLE_VERBOSE=1 TENDER_ORACLE_FIRST=$$first TENDER_ORACLE_SEEDS=200 \
			cargo test --locked --quiet -p tender-tests --test oracle -- --nocapture || exit 1; \
		first=$$((first + 200)); \
	done

soak: ## Mixed load on a full arena for an hour, and whether memory and all else stayed flat (MINUTES=n)
	@printf '\n=== Soak\n'
	cargo run --locked --release -p tender-tests --bin tender-soak

test-python: wheel ## Python tests that need no engine
	@printf '\n=== Python tests\n'
	$(PYTHON) -m pytest tests/python --ignore=tests/python/vllm

test-vllm: build wheel ## vLLM on the CPU, each scenario compared with a run without Tender
	@printf '\n=== vLLM tests\n'
	$(PYTHON) -m pytest tests/python/vllm --durations=5

bench: ## Everything that docs/benchmarks.md has a goal for, in some minutes (ARGS=--compare=old.json)
	cargo build --locked --release -p tender-daemon -p tender-client -p tender-tests --bins
	target/release/tender bench --suite $(ARGS)

sanitize: ## Crates with unsafe code under AddressSanitizer, the engine under ThreadSanitizer (minutes; not in `make test`)
	@scripts/sanitize.sh address
	@scripts/sanitize.sh thread

clean: ## Remove build outputs; .venv stays (remove it by hand to start over)
	cargo clean
	rm -rf dist .pytest_cache
