# The two commands: `make study` and `make test`. Nothing is needed before them but Python (3.11.5 or later) and make.
PYTHON  ?= python3
PROFILE ?= glyphs
JOBS    ?= 0
VENV    := .venv
BIN     := $(VENV)/bin
# all that is needed is pinned, with hashes
PIP     := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps

# one thread a process: the study and the tests run processes side by side
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help setup study test test-slow prepare docs clean

help:  ## say what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/'

setup: $(VENV)/.ready  ## make .venv with the exact versions of the study

$(VENV)/.ready: constraints.hashed.txt settings.ini setup.py
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11, 5) else f"Python 3.11.5 or later is needed; {sys.executable} is {v[0]}.{v[1]}.{v[2]}. Choose another with: make PYTHON=/path/to/python3.11 ...")'
	@echo "Setting up $(VENV): some 200 packages, two to ten minutes (PyTorch with CUDA is large; a GPU is not needed)."
	@date +%s > $(VENV).started
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --require-hashes --requirement constraints.hashed.txt
	@$(PIP) --no-build-isolation --editable . && $(BIN)/python -m pip check
	@echo "Set up in $$(( $$(date +%s) - $$(cat $(VENV).started) )) s."; rm -f $(VENV).started; touch $@

study: setup  ## run the batch of a profile: make study [PROFILE=smoke] [JOBS=2] [FRESH=1]
	@$(BIN)/dmlstudy run --profile $(PROFILE) --jobs $(JOBS) $(if $(FRESH),--fresh)

test: setup  ## every check but the slow ones, the cheap ones first: some seven minutes on two cores
	@$(BIN)/python tools/check.py

test-slow: setup  ## the slow checks: outputs drawn again, kill drills, full grids, long trainings
	@$(BIN)/python tools/check.py outputs slow

prepare: setup  ## the daily loop: format, export, test, clean, write README and outputs [NB=nbs/21_losses.triplet.ipynb: test that one]
	@$(BIN)/ruff check --fix --quiet nbs tests tools setup.py && $(BIN)/ruff format --quiet nbs tests tools setup.py
	@$(BIN)/python tools/export.py && $(BIN)/nbdev_clean
	@$(BIN)/nbdev_test --n_workers 2 $(if $(NB),--path $(NB),--skip_folder_re '^[_.]|^tutorials$$')
	@$(BIN)/python tools/readme.py && $(BIN)/python tools/fresh.py draw
	@$(BIN)/python tools/long.py
	@echo "Prepared. Fill notebooks whose outputs changed with: python tools/fill.py nbs/NAME.ipynb"

docs: setup  ## write the site to _docs/site: notebooks, reference, tables; without a network
	@$(BIN)/python tools/docs.py

clean:  ## remove .venv; results stay
	rm -rf $(VENV) $(VENV).started
