# make demo: sample a real posterior and draw a picture.   make test: lint, types, what runs in five minutes.
# make check: all other tests, which CI runs.
.DELETE_ON_ERROR:
.PHONY: demo test check scoreboard package oldest neighbours test-diffusion docs notebooks lint types mutants bench-chains evidence clean
VENV ?= .venv
BIN := $(VENV)/bin
DIFFUSION ?= .venv-diffusion
PYTHON311 ?= python3.11
PACKAGE ?= .venv-package
OLDEST ?= .venv-oldest
NEIGHBOURS ?= .venv-neighbours
# nutpie would change what pm.sample does by default.
BENCH ?= .venv-bench
export OMP_NUM_THREADS ?= 1
# One file to a worker.  A worker that crashes ends the run: pytest-xdist may wait for ever for the one in its place.
WORKERS := -n 2 --dist loadfile --max-worker-restart=0

demo: $(VENV)/.demo
	@$(BIN)/python examples/eight_schools.py

# Most of the time of the others goes into compiling models.
test: lint types
	$(BIN)/python -m pytest $(WORKERS) -m "quick"

check: $(VENV)/.dev
	$(BIN)/python -m pytest $(WORKERS) -m "not quick"

# Ten models and three Stan programs against what is known of them: fails if a wrong run is trusted.
scoreboard: $(VENV)/.dev
	$(BIN)/python -m benchmarks scoreboard --quick
	$(BIN)/python -m benchmarks stan --quick

# The scheduler for diffusers, in an environment of its own: PyTorch has a small build for Python 3.11 only.
test-diffusion: $(DIFFUSION)/.done
	$(DIFFUSION)/bin/python -m pytest tests_diffusers

# The reports in headless Chromium, which must be there.
docs: $(VENV)/.docs
	$(BIN)/sphinx-build -q -W --keep-going -E -b html docs build/html

# In full, with their outputs kept.
notebooks: $(VENV)/.docs
	$(BIN)/jupyter execute --inplace --timeout=600 examples/*.ipynb

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

# Build wheel and sdist into dist/, check them and the files that other sites read, and try both in new environments.
# pyroma gives 8 of 10: there is neither a home page nor an address yet.
package: $(PACKAGE)/.done
	rm -rf dist
	$(PACKAGE)/bin/validate-pyproject pyproject.toml
	$(PACKAGE)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(PACKAGE)/bin/check-jsonschema --builtin-schema vendor.readthedocs .readthedocs.yaml
	$(PACKAGE)/bin/pre-commit validate-config .pre-commit-config.yaml
	$(PACKAGE)/bin/python -m build
	$(PACKAGE)/bin/twine check --strict dist/*
	$(PACKAGE)/bin/pyroma --min 8 dist/*.tar.gz
	scripts/try_package.sh $(PACKAGE)/bin/python

# What touches PyMC and PyTensor, and the demo, with the oldest versions that pyproject.toml allows; the other targets
# have the newest.  `uv pip compile --resolution lowest-direct --extra store pyproject.toml` lists them.
oldest: export PYTENSOR_FLAGS = base_compiledir=$(OLDEST)/pytensor
oldest: $(OLDEST)/.done
	$(OLDEST)/bin/python -m pytest -q tests/model/test_native.py tests/model/test_checks.py \
	    tests/steps/test_unbound.py::test_a_step_from_outside_is_that_made_inside
	$(OLDEST)/bin/python examples/eight_schools.py

# A model each of Bambi, HSSM, PreliZ, pymc-extras and pymc-marketing, which want an older PyMC.
neighbours: $(NEIGHBOURS)/.done
	$(NEIGHBOURS)/bin/python -m pytest tests_neighbours

# Break the package in the ways that matter, one at a time; every one must turn a test red.
mutants: $(VENV)/.dev
	$(BIN)/python tests/mutants.py

bench-chains: $(BENCH)/.done
	$(BENCH)/bin/python -m benchmarks many_chains

# What there is and what it costs: python -m benchmarks.  The tables of docs/evidence.md that are kept up: some hours.
evidence: $(BENCH)/.done
	$(BENCH)/bin/python -m benchmarks wall_clock --write
	$(BENCH)/bin/python -m benchmarks hierarchies --write
	$(BENCH)/bin/python -m benchmarks diffusion --write

$(VENV)/bin/python:
	python=$$(scripts/find_python.sh) && "$$python" -m venv $(VENV)

# Wheels only, so that nothing is compiled; the package itself is linked to this folder.
$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing pmm_mcmc with PyMC and ArviZ into $(VENV), from wheels alone: about a minute, once."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary=:all: --constraint constraints.txt \
	    --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

$(BENCH)/.done: pyproject.toml constraints.txt
	python=$$(scripts/find_python.sh) && "$$python" -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	touch $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

$(PACKAGE)/.done: constraints.txt
	python=$$(scripts/find_python.sh) && "$$python" -m venv $(PACKAGE)
	$(PACKAGE)/bin/python -m pip install --quiet --constraint constraints.txt build check-jsonschema pre-commit pyroma twine \
	    validate-pyproject
	touch $@

$(OLDEST)/.done: pyproject.toml constraints-oldest.txt
	python=$$(scripts/find_python.sh) && "$$python" -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --only-binary=:all: --constraint constraints-oldest.txt \
	    --editable '.[store]' pytest
	touch $@

$(NEIGHBOURS)/.done: pyproject.toml constraints-neighbours.txt
	python=$$(scripts/find_python.sh) && "$$python" -m venv $(NEIGHBOURS)
	$(NEIGHBOURS)/bin/python -m pip install --quiet --only-binary=:all: --constraint constraints-neighbours.txt \
	    --editable . bambi hssm preliz pymc-extras pymc-marketing pytest
	touch $@

$(DIFFUSION)/.done: constraints.txt
	$(PYTHON311) -m venv $(DIFFUSION)
	$(DIFFUSION)/bin/python -m pip install --quiet --constraint constraints.txt torch diffusers transformers numpy pytest
	touch $@

clean:
	rm -rf $(VENV) $(DIFFUSION) $(BENCH) $(PACKAGE) $(OLDEST) $(NEIGHBOURS) dist demo_output .pytest_cache .mypy_cache .ruff_cache
