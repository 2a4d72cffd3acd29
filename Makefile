# Everything runs in .venv, which `setup` makes; the other targets call it first.
PYTHON ?= python3
VENV := .venv
CONSTRAINTS := constraints.txt
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
READY := $(VENV)/.ready
DEVELOPING := $(VENV)/.developing

SITE := $(BIN)/python -m sphinx -q -n -j auto -b html -d build/doctrees docs build/site

.PHONY: setup setup-demo setup-browser page demo test test-ten test-lowest check workflows bench soak docs audit release clean

setup: $(DEVELOPING)

# What the demo needs: both packages of this repository with the extras that `whyformer demo` and `whyformer serve` use, and no developer tools.
setup-demo: $(READY)

$(READY): pyproject.toml models/pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) torch
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) -e ./models -e ".[hf,eval,tabular,plot,web]"
	touch $(READY)

$(DEVELOPING): $(READY)
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) -e ./models -e ".[all]" --group dev
	touch $(DEVELOPING)

# Tests drive saved pages in a browser; without one they are skipped, and say so.
setup-browser:
	@command -v chromium || command -v chromium-browser || command -v google-chrome || { \
	echo "no chromium here. Debian, Ubuntu: apt install chromium; Fedora: dnf install chromium; macOS: brew install chromium"; exit 1; }

# The script of all pages, from frontend/src into the package.
page: setup
	$(BIN)/python frontend/build.py

demo: setup-demo
	$(BIN)/whyformer demo --out whyformer-demo.html

# For two cores: some tests wait, for a browser or another process, and others go on meanwhile.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n 3 --dist loadfile
# `make test SHUFFLE_SEED=3`: the same tests in another order, over another number of workers.
ifdef SHUFFLE_SEED
PYTEST += -p tests.support.shuffle --shuffle-seed $(SHUFFLE_SEED)
endif
IN_A_BROWSER := tests/views/test_page.py tests/views/test_accessible.py tests/serve/test_page.py
OVER_PROCESSES := tests/jobs/test_cluster.py tests/explainer/test_several_processes.py
OF_CHECK := tests/docs tests/package tests/bench tests/hostile $(IN_A_BROWSER) $(OVER_PROCESSES)

# The library. What holds the docs (all their code is run), the programs that print their figures, the packages (built
# and installed), attacks on files and servers, the script of the pages (in Chromium), and models and jobs that are spread
# over processes (a Ray cluster, tensor parallelism) is part of `check`.
test: setup
	$(PYTEST) $(OF_CHECK:%=--ignore=%)

# `make test` in ten fresh clones of the last commit with one .venv, each in an order of its own; or `make test-ten SEEDS="1 2"`.
SEEDS ?= 1 2 3 4 5 6 7 8 9 10
test-ten:
	$(PYTHON) -m tests.support.fresh_clones $(SEEDS)

# With the lowest versions that pyproject.toml accepts, in an environment of their own. They have wheels for Python 3.10.
# Warnings are ignored: old libraries call what newer ones have deprecated. Tests of what transformers has since version
# 5 are skipped, and say so.
test-lowest:
	mkdir -p build
	$(PYTHON) -m tests.support.lowest > build/lowest.txt
	$(MAKE) test VENV=build/lowest CONSTRAINTS=build/lowest.txt PYTEST_ADDOPTS="-W ignore"

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check --no-cache .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python frontend/build.py --check
	$(BIN)/python -m docs.build --check
	$(BIN)/python -m docs.words
	OMP_NUM_THREADS=1 $(BIN)/python -m docs.method_pictures --check
	$(BIN)/python -m docs.start_pictures --check
	$(BIN)/python -m docs.notebook --check
	$(MAKE) workflows
	$(SITE) -W --keep-going
	$(PYTEST) $(OF_CHECK)

# What the repository is set up with, against the published schemas.
SCHEMA := $(BIN)/check-jsonschema --builtin-schema
workflows: setup
	$(SCHEMA) vendor.github-workflows $(wildcard .github/workflows/*.yml)
	$(SCHEMA) vendor.github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	$(SCHEMA) vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(SCHEMA) vendor.dependabot .github/dependabot.yml
	$(SCHEMA) vendor.citation-file-format CITATION.cff

bench: setup
	$(BIN)/python -m bench

soak: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.job_soak
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.strain

# Generated parts, pictures, and the site: build/site/index.html. `python -m docs.notebook` runs the example notebook anew.
docs: setup
	$(BIN)/python -m docs.build
	OMP_NUM_THREADS=1 $(BIN)/python -m docs.method_pictures
	$(BIN)/python -m docs.start_pictures > /dev/null
	$(SITE)

# Known weaknesses of all pinned libraries, of the advisories of PyPI; it needs the network.
audit: setup
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) --group release
	$(BIN)/pip-audit --requirement $(CONSTRAINTS) --no-deps --disable-pip --strict

# Both packages into dist, checked, and the notes beside them; the README runs in an empty environment with these wheels.
# CONTRIBUTING.md says what comes before and after.
# pyproject-build is `python -m build`, which would run the folder build that the site is in.
RELEASED := $(BIN:$(VENV)/%=build/released/%)/python
release: setup
	$(BIN)/python -m docs.release_notes --final > /dev/null
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) --group release
	rm -rf dist
	$(BIN)/pyproject-build --no-isolation --outdir dist .
	$(BIN)/pyproject-build --no-isolation --outdir dist models
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m docs.release_notes --final > dist/release-notes.md
	rm -rf build/released
	$(PYTHON) -m venv build/released
	$(RELEASED) -m pip install --quiet -c $(CONSTRAINTS) --find-links dist 'whyformer[hf,tabular,eval,models]'
	cd build/released && ../../$(RELEASED) ../../docs/code_blocks.py ../../README.md

clean:
	rm -rf $(VENV) build dist docs/api/generated
