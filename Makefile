# Two commands set everything up on a machine that has only Python 3.11: `make demo` and `make test`.
PYTHON ?= python3
PIP_QUIET := --quiet --disable-pip-version-check

.PHONY: demo test test-models lint types bench bench-memory measure clean

demo: .venv-demo/.installed
	.venv-demo/bin/shardwright demo

# Tests that start processes run after the others, one at a time: each group of processes is started once and has the cores.
test: lint types
	@failed=; \
	.venv/bin/python -m pytest -n 2 --dist worksteal --ignore tests/multiprocess || failed="$$failed tests"; \
	.venv/bin/python -m pytest tests/multiprocess || failed="$$failed tests/multiprocess"; \
	if [ -n "$$failed" ]; then echo "make test: FAILED in:$$failed"; exit 1; fi; \
	echo "make test: everything passed"

# All imported models: forward on four meshes, what they gather, and training steps.
test-models: .venv/.installed
	.venv/bin/python -m pytest -n 2 --dist loadgroup tests/models/all_models.py

lint: .venv/.installed
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types: .venv/.installed
	.venv/bin/mypy

bench: .venv/.installed
	.venv/bin/python benchmarks/run.py

bench-memory: .venv/.installed
	.venv/bin/python benchmarks/memory.py

measure: .venv/.installed
	.venv/bin/python benchmarks/links.py

clean:
	rm -rf .venv .venv-demo

.venv-demo/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-demo
	.venv-demo/bin/python -m pip install $(PIP_QUIET) -e .
	touch $@

.venv/.installed: pyproject.toml
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install $(PIP_QUIET) -e '.[dev]'
	.venv/bin/python -m pip install $(PIP_QUIET) --no-deps torch-mlir==20261001  # real MLIR, for tests/conformance
	.venv/bin/python -m pip install $(PIP_QUIET) --no-deps timm==1.0.31 torchvision==0.28.0  # with the torch that is here
	touch $@
