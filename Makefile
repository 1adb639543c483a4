.PHONY: run test check bench

# Shows a pool at work on throw-away branches.
run:
	scripts/setup.sh run
	scripts/demo.sh

# All tests, the external suites too. Needs root.
test:
	scripts/setup.sh test
	cargo test --workspace --no-fail-fast

check:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	scripts/structure.sh

bench:
	cargo bench --workspace
