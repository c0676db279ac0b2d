# Everything runs in .venv, made on first use with the python3 on PATH (3.11 or newer): `make PYTHON=python3.12 test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# What `make test` leaves to .ci/run, and what both leave alone; `make test PYTEST_ARGS=` runs everything.
PYTEST_ARGS ?= -m "not slow and not conformance and not exhaustive"

.PHONY: demo test check bench clean

demo: $(VENV)/installed-plot
	$(BIN)/python -m models.demo

test: $(VENV)/installed-plot $(VENV)/installed-test
	$(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(VENV)/installed-plot $(VENV)/installed-test $(VENV)/installed-check
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

bench: $(VENV)/installed-plot
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "graphkit needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# One stamp an extra: pip is asked again only when pyproject.toml changed.
$(VENV)/installed-%: pyproject.toml | $(BIN)/python
	@echo "installing graphkit[$*] into $(VENV)"
	$(PIP) --editable '.[$*]'
	@touch $@
