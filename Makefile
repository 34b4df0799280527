# Two commands: `make demo` runs the mini recipe, `make test` checks and tests everything.
# Options: VENV=.venv  PYTHON=python3  TORCH=auto|cpu|cuda
VENV ?= .venv
PYTHON ?= python3
TORCH ?= auto
BIN := $(abspath $(VENV))/bin

.PHONY: setup demo lint test clean
setup: $(VENV)/.installed

$(VENV)/.installed: setup.py tools/setup_env.py
	$(PYTHON) tools/setup_env.py --venv $(VENV) --torch $(TORCH)
	@touch $@

demo: setup
	cd egs/mini_synth/asr1 && PATH="$(BIN):$$PATH" ./run.sh

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/yamllint --strict $$(git ls-files '*.yaml' '*.yml')
	$(BIN)/shellcheck -x $$(git ls-files '*.sh' .ci/run)

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

clean:
	rm -rf $(VENV) build dist *.egg-info
