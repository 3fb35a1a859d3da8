# Everything a developer types. `make` alone lists it.
export IDGEN_TEST_CACHE ?= $(HOME)/.cache/idgen-tests
export PATH := $(IDGEN_TEST_CACHE)/bin:$(PATH)

.DEFAULT_GOAL := help
.PHONY: help run test soak lint bench

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## builds the release binary and serves on 127.0.0.1:6390
	@tests/install run
	@test -e target/release/idgen || echo "make run: the first build takes a few minutes"
	cargo build --release --locked --bin idgen
	exec target/release/idgen serve

test: ## installs what is missing, then runs all tests (under 35 minutes on two cores)
	tests/run

soak: ## the long versions of the tests, and the fuzzers
	IDGEN_SOAK=1 tests/run

# One profile for lints and tests, so that the dependencies are built once.
lint: ## formatting, clippy with warnings as errors, and what may be depended on
	@tests/install build lint
	cargo fmt --check
	cargo clippy --profile ci --locked --all-targets -- -D warnings
	cargo deny --locked check --hide-inclusion-graph bans licenses sources

bench: ## the whole server beside redis-server in one run, and on each database
	@tests/install bench
	cargo bench --locked --bench pipeline
	eval "$$(tests/services start)" && trap 'tests/services stop' EXIT && cargo bench --locked --bench database
