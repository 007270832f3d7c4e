"""A pipeline small enough to run whole in a test: real vLLM, DeepSpeed, Data-Juicer, Snakemake, MLflow."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from filelock import FileLock

from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.plan.plan import Plan, make_plan
from ouroboros.pipeline.store import records, tables

REPOSITORY = Path(__file__).resolve().parents[2]

SMALL = [
    "name=toy",
    "data_processor.task_pipeline.generator_args.tasks=400",
    "data_processor.task_pipeline.generator_args.demonstrations=400",
    "buffer.batch_size=8",
    "algorithm.repeat_times=4",
    "buffer.total_steps=6",
    "stages.sft.buffer.batch_size=64",  # enough to write sums that parse: without rewards nothing would move
    "stages.sft.buffer.total_steps=30",
    "stages.sft.algorithm.optimizer.lr=4e-3",
    "stages.sft.algorithm.optimizer.lr_warmup_steps=0",
    "stages.sft.explorer.rollout_model.engine_type=transformers",  # for evaluate_sft: it starts sooner
    "buffer.explorer_input.eval_tasksets.0.limit=8",
    "buffer.explorer_input.eval_tasksets.0.repeat_times=2",
    "trainer.save_interval=2",
    "monitor=none",
]
WATCHED = ("explorer.eval_interval=2", "stages.rft.monitor.monitor_type=mlflow")
"""Settings that add evaluations and metrics and change no stage's identity."""


def small(*overrides: str, settings: Sequence[str] = SMALL) -> list[str]:
    """The settings with these laid over them: a key that is set twice is refused."""
    given = {override.partition("=")[0] for override in overrides}
    return [*(one for one in settings if one.partition("=")[0] not in given), *overrides]


def plan_in(root: Path, *overrides: str) -> Plan:
    return make_plan(compose([f"checkpoint_root_dir={root}", *small(*overrides)]))


def snakemake(root: Path, *words: str, overrides: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
    """`snakemake` as a user types it, in the repository root; its output is kept."""
    joined = " ".join([f"checkpoint_root_dir={root}", *small(*overrides)])
    command = [sys.executable, "-m", "snakemake", "--cores", "all", *words, "--config", f"overrides={joined}"]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


class Finished(NamedTuple):
    """A root in which the toy pipeline was run, its plan, and what the run printed."""

    root: Path
    plan: Plan
    output: str


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Finished:
    """The whole toy pipeline, run once and shared by all workers of pytest-xdist."""
    place = tmp_path_factory.getbasetemp()
    place = place.parent if "PYTEST_XDIST_WORKER" in os.environ else place
    root, output = place / "toy", place / "toy.txt"
    with FileLock(place / "toy.lock"):
        if not output.exists():
            done = snakemake(root, overrides=WATCHED)
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
            output.write_text(done.stdout + done.stderr)
    return Finished(root, plan_in(root), output.read_text())


def stage_of(plan: Plan, name: str):
    return next(stage for stage in plan.stages if stage.name == name)


def copy_upstream(source: Plan, target: Plan, names: tuple[str, ...]) -> None:
    """Lets another root begin with complete stages of the first."""
    for name in names:
        shutil.copytree(stage_of(source, name).directory, stage_of(target, name).directory, dirs_exist_ok=True)


def table(directory: Path, name: str) -> list[dict]:
    """All rows of a table of a stage."""
    paths = sorted(directory.glob(tables.LOCATIONS[name]))
    return [row for path in paths for row in tables.read(path, records.TABLES[name]).to_pylist()]
