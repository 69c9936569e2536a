# PyTorch's own tests with kforge in Inductor's place; UPSTREAM_TESTS is the `test` folder of PyTorch's source.
UPSTREAM_TESTS ?=
UPSTREAM_RESULTS ?= upstream_results

.PHONY: test-upstream
test-upstream:
	@test -d "$(UPSTREAM_TESTS)/inductor" || { echo "make test-upstream UPSTREAM_TESTS=PATH: PATH is the test folder of PyTorch's source (Debian: apt-get source pytorch)" >&2; exit 2; }
	python -m benchmarks.upstream "$(UPSTREAM_TESTS)" --out "$(UPSTREAM_RESULTS)"
