# `make demo` runs a small mini recipe; `make test` runs linters and all tests but those named below.
# `make quick` runs linters and the tests that are closest to what has changed since the last commit
#          or since a revision, `make quick BASE=main`, in at most a minute and a half.
# `make test-all` also runs the tests marked full_length, which repeat a path at full length: whole
#          recipes, and cases that shorter ones stand for.
# `make durations` runs `make test`'s tests, and writes how long each file takes, for `make quick`.
# `make docs` fills the tables of README and docs/ from their sources, and builds the site.
# `make bench` compares with other Whisper programs, in an environment of its own; a real Whisper:
#          BENCH="--whisper EXP --data_dir DIR --num_utterances 100"
# `make test-cluster` starts a Slurm cluster of three nodes here and tests the recipes' stages on it.
# `make test-browser` tests the page of decodings in Chromium.
# `make release-check` builds the wheel, and installs and runs it with several Pythons and pips;
#          options: RELEASE="--folder release --pythons python3.12=25 --tests tests/decoding/search"
# `make gpu` tests a GPU in ten minutes; with a real Whisper: GPU="--whisper EXP --data_dir DIR"
# The environment has the newest ESPnet for which a Python is found (3.13 or 3.12: ESPnet 202611).
# `make test ESPNET=202511` tests with the older ESPnet (Python 3.11 or 3.10), in .venv-202511.
# Options: VENV=.venv  PYTHON=python3.12  TORCH=auto|cpu|cuda  BENCH="--random base --rounds 5"
#          DEMO=egs/mini_synth/asr1: the recipe at full size, 40 minutes
ESPNET ?=
VENV ?= .venv$(if $(ESPNET),-$(ESPNET))
PYTHON ?=
TORCH ?= auto
BIN := $(abspath $(VENV))/bin

BENCH_VENV ?= .venv-bench
BENCH_BIN := $(abspath $(BENCH_VENV))/bin
DEMO ?= egs/mini_synth/demo
GPU ?=
BASE ?= HEAD
RELEASE ?= --folder release
RECIPE := egs/mini_synth/asr1
BENCH ?= --exp_dir $(RECIPE)/exp --data_dir $(RECIPE)/dump/raw/test --random tiny base small

# Without bytecode every import of ESPnet compiles it anew, which takes seconds.
unexport PYTHONDONTWRITEBYTECODE
# Recipes would run the Python of this variable instead of the environment's.
unexport PYTHON

.PHONY: setup demo lint test test-all quick durations test-cluster test-browser docs bench gpu \
	release-check clean
setup: $(VENV)/.installed

$(VENV)/.installed: setup.py tools/setup_env.py
	python3 tools/setup_env.py --venv $(VENV) --torch $(TORCH) $(if $(ESPNET),--espnet $(ESPNET)) \
		$(if $(PYTHON),--python $(PYTHON))
	@touch $@

demo: setup
	cd $(DEMO) && PATH="$(BIN):$$PATH" ./run.sh

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/yamllint --strict $$(git ls-files '*.yaml' '*.yml')
	git ls-files '*.sh' .ci/run | xargs -n 12 -P 2 $(BIN)/shellcheck -x
	$(BIN)/lint-imports --no-cache --no-logo

PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# lint prints its lines while pytest's workers start; either can fail the target.
with_lint = { lines=$$($(MAKE) --no-print-directory lint 2>&1); status=$$?; echo "$$lines"; \
	exit $$status; } & lint=$$!; $(PYTEST) $(1); status=$$?; \
	wait $$lint || { echo "make lint failed: see its lines above" >&2; status=2; }; exit $$status

test: setup
	@$(call with_lint)

test-all: setup
	@$(call with_lint,-m "not slurm_cluster and not browser")

quick: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo
	tests=$$($(BIN)/python tools/quick_tests.py --base $(BASE)) && \
		{ [ -z "$$tests" ] || $(PYTEST) $$tests; }

durations: setup
	mkdir -p build
	$(PYTEST) --junitxml=build/durations.xml
	$(BIN)/python tools/test_durations.py build/durations.xml --files tests/durations.json

test-cluster: setup
	OMP_NUM_THREADS=1 PATH="$(BIN):$$PATH" tools/slurm_cluster.sh \
		$(BIN)/python -m pytest -m slurm_cluster tests/recipes/slurm

test-browser: setup
	@command -v chromium > /dev/null && command -v chromedriver > /dev/null || \
		{ echo "no Chromium with its driver; apt-get install chromium chromium-driver" >&2; exit 2; }
	$(BIN)/python -m pip install --quiet "selenium>=4.20"
	$(BIN)/python -m pytest -m browser tests/transcription/page/browser

docs: setup
	$(BIN)/python tools/update_docs.py
	$(BIN)/python tools/docs_chart.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

$(BENCH_VENV)/.installed: setup.py tools/setup_env.py tools/setup_bench.py
	$(PYTHON) tools/setup_bench.py --venv $(BENCH_VENV) --torch $(TORCH)
	@touch $@

# The models of `make bench`, if missing: the mini recipe's, and a draft model.
$(RECIPE)/exp/asr_recurrent/valid.acc_heads.ave.pth: | $(BENCH_VENV)/.installed
	cd $(RECIPE) && PATH="$(BENCH_BIN):$$PATH" ./run.sh --heads recurrent

$(RECIPE)/exp/asr_draft/valid.acc.ave.pth: | $(RECIPE)/exp/asr_recurrent/valid.acc_heads.ave.pth
	cd $(RECIPE) && PATH="$(BENCH_BIN):$$PATH" ./run.sh --stage 11 --stop_stage 11 \
		--heads draft --ignore_init_mismatch true

# A real Whisper and plans need none of them.
bench: $(BENCH_VENV)/.installed \
		$(if $(findstring --whisper,$(BENCH))$(findstring --plan,$(BENCH)),,$(RECIPE)/exp/asr_draft/valid.acc.ave.pth)
	$(BENCH_BIN)/python bench/compare.py $(BENCH)

gpu: setup
	$(BIN)/python bench/gpu.py $(GPU)

release-check: setup
	$(BIN)/python tests/endurance/release_check.py $(RELEASE)

clean:
	rm -rf $(VENV) $(BENCH_VENV) build dist release site *.egg-info
