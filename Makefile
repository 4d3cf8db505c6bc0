PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: all venv lint test quick demo dist clean
all: test

# The stamp is renewed when the dependencies change, so that a second run installs nothing.
$(VENV)/.installed: pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev,docs]'
	touch $@

venv: $(VENV)/.installed

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest

# Everything but what trains with nnU-Net.
quick: lint
	$(BIN)/pytest -m 'not slow'

demo: venv
	$(BIN)/nnunet_labelset demo

# The files for a package index.
dist: venv
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
