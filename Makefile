# make run    set up, run the default recipe, say what was learnt
# make test   set up, lint, import contracts, unit tests, one whole pipeline with real vLLM and DeepSpeed
PYTHON ?= $(firstword $(foreach v,3.11 3.12,$(shell command -v python$(v) 2>/dev/null)) python3)
BIN := .venv/bin

.PHONY: run test unit lint setup bench clean test-models
.DELETE_ON_ERROR:

run: .venv/.ready
	@$(BIN)/ouro run

test: lint unit
	$(BIN)/pytest -m slow --durations=5

# random models in the shapes of known families, each through a whole pipeline; prints the table of docs/models.md
test-models: .venv/.ready
	$(BIN)/pytest -m models -s

unit: .venv/.ready
	$(BIN)/pytest

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/lint-imports

setup: .venv/.ready

# --no-deps: the lock is complete, and some packages declare builds (CUDA torchvision) that must not come in
.venv/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; ok = (3, 11) <= sys.version_info < (3, 13); \
	  sys.exit(None if ok else f"Python 3.11 or 3.12 is needed, found {sys.version.split()[0]}: make PYTHON=/path/to/python3.11")'
	@echo "setting up .venv: 2 to 5 minutes, 4.5 GB"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-deps --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@$(BIN)/python -c 'import torch' 2>/dev/null || { echo "torch does not import: its CUDA build was installed." \
	  "Point pip at PyTorch's CPU wheel index (README, 'Two commands') and run make again."; exit 1; }
	@touch $@

# figures of a finished run (RUN=name; default: the latest); needs TRL beside the lock, for one of the four
bench: .venv/.ready
	$(BIN)/python -m pip install --quiet --no-deps --requirement benchmarks/requirements-trl.txt
	@for name in rollout step overhead stages; do $(BIN)/python -m benchmarks.$$name $(RUN) || exit 1; done

clean:
	rm -rf store runs .snakemake mlflow.db
