"""A pipeline small enough to run whole in a test: real vLLM, DeepSpeed, Data-Juicer, Snakemake, MLflow."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.check.judge import compose
from pipeline.plan.plan import Plan, make_plan

REPOSITORY = Path(__file__).resolve().parents[2]

SMALL = [
    "name=toy",
    "data_processor.task_pipeline.generator_args.tasks=400",
    "data_processor.task_pipeline.generator_args.demonstrations=400",
    "buffer.batch_size=8",
    "algorithm.repeat_times=4",
    "buffer.total_steps=6",
    "stages.sft.buffer.batch_size=128",  # enough to write sums that parse: without rewards nothing would move
    "stages.sft.buffer.total_steps=60",
    "stages.sft.algorithm.optimizer.lr_warmup_steps=0",
    "buffer.explorer_input.eval_tasksets.0.limit=8",
    "buffer.explorer_input.eval_tasksets.0.repeat_times=2",
    "trainer.save_interval=2",
]
LOOKED_AT = ("explorer.eval_interval=2", "stages.rft.trainer.max_checkpoints_to_keep=9")
"""rft evaluated on the way, with all its checkpoints: more to look at, and the same stages."""


def small(*overrides: str) -> list[str]:
    """SMALL with these laid over it: a key that is set twice is refused."""
    given = {override.partition("=")[0] for override in overrides}
    return [*(one for one in SMALL if one.partition("=")[0] not in given), *overrides]


def plan_in(root: Path, *overrides: str) -> Plan:
    return make_plan(compose([f"checkpoint_root_dir={root}", *small(*overrides)]))


def snakemake(root: Path, *words: str, overrides: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
    """`snakemake` as a user types it, in the repository root; its output is kept."""
    joined = " ".join([f"checkpoint_root_dir={root}", *small(*overrides)])
    command = [sys.executable, "-m", "snakemake", "--cores", "all", *words, "--config",
               f"overrides={joined}"]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> tuple[Path, Plan, subprocess.CompletedProcess]:
    """A root in which the whole toy pipeline was run once, its plan, and what the run printed."""
    root = tmp_path_factory.mktemp("toy")
    done = snakemake(root, overrides=LOOKED_AT)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return root, plan_in(root), done


def stage_of(plan: Plan, name: str):
    return next(stage for stage in plan.stages if stage.name == name)


def copy_upstream(source: Plan, target: Plan, names: tuple[str, ...]) -> None:
    """Lets another root begin with complete stages of the first."""
    for name in names:
        shutil.copytree(stage_of(source, name).directory, stage_of(target, name).directory, dirs_exist_ok=True)
