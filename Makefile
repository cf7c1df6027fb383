# `make demo` and `make test` need Python 3.11+, make and pip; everything else they install into .venv, in the versions of
# constraints.txt. `make matrix` needs uv and the interpreters.
PYTHON ?= python3
BIN := .venv/bin
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
# Where it is set, each process that a test starts compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

PYTHONS ?= 3.11 3.12 3.13
TESTS ?= tests
PYTEST := pytest -n 2 --dist loadgroup

.PHONY: help demo test lint types slow matrix bench results docs clean
help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

$(BIN)/python:
	$(PYTHON) -m venv .venv

.venv/demo-installed: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[study]'
	@touch $@

.venv/test-installed: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[all,dev,docs,peers,wandb,mlflow]'
	@touch $@ .venv/demo-installed

demo: .venv/demo-installed  ## the main job on embedded data: a table and where the report is
	$(BIN)/acls compare --out demo

lint: .venv/test-installed  ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/test-installed  ## static types, strict
	$(BIN)/mypy

test: lint types  ## lint, types and the whole suite but the slow tests
	$(BIN)/python -m $(PYTEST)

slow: .venv/test-installed  ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

matrix: $(addprefix matrix-,lowest $(PYTHONS))  ## the suite with the lowest declared versions, then on each Python with the newest; by uv

matrix-%:
	uv venv --quiet --clear --python $(if $(filter lowest,$*),$(firstword $(PYTHONS)),$*) build/matrix/$*
	uv pip install --quiet --compile-bytecode --python build/matrix/$* --resolution $(if $(filter lowest,$*),lowest-direct,highest) \
	  -e '.[all,test,wandb,mlflow]'
	build/matrix/$*/bin/python -m $(PYTEST) $(TESTS)

bench: .venv/test-installed  ## ratios against the peers, in one run
	for script in $(filter-out benchmarks/timing.py benchmarks/memory.py,$(wildcard benchmarks/*.py)); do \
	  echo "== $$script"; $(BIN)/python $$script || failed=1; done; exit $${failed:-0}

results: .venv/test-installed  ## tables, figures and pages of docs/results from its stored studies, without training
	$(BIN)/python docs/results/build.py

docs: .venv/test-installed  ## the site, into site/
	$(BIN)/mkdocs build --strict

clean:  ## remove what was built
	rm -rf .venv build dist site .mypy_cache .ruff_cache .pytest_cache
