"""Stages in this process: explorer and trainer in two threads, with the real engine, DeepSpeed and files."""

import gc
import hashlib
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ouroboros.pipeline.job import context as job
from ouroboros.pipeline.job import taking, trunks
from ouroboros.pipeline.job.tasksets import HELD
from ouroboros.pipeline.plan import code
from ouroboros.pipeline.plan.identity import Stage, make_stage
from ouroboros.pipeline.store import files, records, tables
from ouroboros.stages.explore import explore
from ouroboros.stages.follow import Follower, finish_training
from ouroboros.stages.learn import learn
from ouroboros.stages.learner.engine.process import Process
from ouroboros.stages.learner.engine.zero import ZeroEngine
from tests.configs import TINY, overridden
from tests.factories import row
from tests.toy.conftest import table

SETTINGS = (
    "monitor.monitor_type=none", "trainer.save_interval=2", "trainer.max_checkpoints_to_keep=null",
    "buffer.batch_size=2", "algorithm.repeat_times=4",
    "explorer.eval_interval=1", "buffer.explorer_input.default_reward_fn_type=tests.kills.agents:digits",
    "synchronizer.sync_timeout=60", "buffer.explorer_input.eval_tasksets.0.limit=2",
    "buffer.explorer_input.eval_tasksets.0.repeat_times=2", "algorithm.optimizer.lr_scheduler_type=constant",
    "algorithm.optimizer.lr_warmup_steps=1")
TASKS = [
    *(row(records.Task, task_id=f"t{i}", row=i, split=split, question=f"{i} + {i}", answer=str(2 * i))
      for i, split in enumerate(["train"] * 7 + ["test"] * 2)),
    *(row(records.Task, task_id=f"d{i}", row=20 + i, split="sft", question=f"{i} + 1", solution=str(i + 1))
      for i in range(7)),
    *(row(records.Task, task_id=f"p{i}", row=40 + i, split="preference", question=f"{i} + 1", chosen=str(i + 1),
          rejected=str(i)) for i in range(7))]


@pytest.fixture
def planned(tiny_model, tmp_path):
    """planned(name of a root, "key=value", ...): the stage `made` with these settings there, ready to run."""

    def make(root: str, *overrides: str, tasks=TASKS) -> Stage:
        given = {word.partition("=")[0] for word in overrides}
        config = overridden(*TINY, *(word for word in SETTINGS if word.partition("=")[0] not in given), *overrides)
        place = tmp_path / root
        curated = place / "store" / f"curate-{len(tasks):08d}"
        if not files.is_complete(curated):
            tables.write(curated / "tasks.parquet", records.Task, tasks)
            files.write_json(curated / files.MANIFEST, {"name": "curate"})
        inputs = {"tasks": str(curated), "model": str(tiny_model)}
        held = {HELD: str(curated)} if config.kind.is_online else {}
        stage = make_stage("made", config.kind, config, inputs | held, str(place))
        files.write_json_if_new(Path(stage.directory) / "stage.json", stage.specification())
        trunks.enter(Path(stage.directory), stage.trunk)
        code.keep(Path(stage.directory), stage.config)
        return stage

    return make


@pytest.fixture
def module(tmp_path, monkeypatch) -> Callable[[str], None]:
    """module(source): writes the user's module mine_rewards, in the place of the one before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def write(source: str) -> None:
        sys.modules.pop("mine_rewards", None)  # stages of these tests run in this process
        (tmp_path / "mine_rewards.py").write_text(source)

    return write


@pytest.fixture
def run(process, monkeypatch, environment_kept) -> Callable[[Stage], Path]:
    """run(stage): as its process would, or in one where it has several ranks; returns its directory, complete."""
    monkeypatch.setattr(Process, "start", lambda seed, *_: (torch.manual_seed(seed), process)[1])
    monkeypatch.setattr(Process, "stop", lambda _: None)

    def run_stage(stage: Stage) -> Path:
        directory = Path(stage.directory)
        if stage.config.trainer.ranks > 1:
            subprocess.run([sys.executable, "-m", stage.kind.module, str(directory)], check=True)
            return directory
        spec, again = files.read_json(directory / "stage.json"), True
        while again:
            context = job.open_stage(directory, terminal=False)
            taking.take(directory, spec, context.config, context.log)
            again = job._make(work, context, spec)
            gc.unfreeze()
        return directory

    return run_stage


def work(context: job.Context) -> None:
    failed: list[BaseException] = []

    def explored() -> None:
        try:
            explore(job.open_stage(context.directory, "explorer.log", terminal=False))
        except BaseException as error:
            failed.append(error)

    with Follower(context) as follower:
        thread = threading.Thread(target=explored)
        if context.config.kind.is_online:
            thread.start()
        try:
            learn(job.open_stage(context.directory, "trainer.log", terminal=False))
        except Exception:
            if failed:
                raise failed[0] from None
            raise
        if context.config.kind.is_online:
            thread.join()
        follower.poll()
    if failed:
        raise failed[0]
    finish_training(context)


def parts_from(donor: Path, step: int) -> int:
    """How many parts responses are in by their hashes, so that the first of part 1 that is rewarded is of that explorer
    step."""
    digests = [(row["step"], int(hashlib.sha256(row["response"].encode()).hexdigest(), 16))
               for row in table(donor, "experience") if row["reward"] is not None]
    return next(parts for parts in range(2, 4000)
                if min((made for made, digest in digests if digest % parts == 1), default=0) == step)


def count_of_adam(patch):
    """A planted fault: the optimizer's step count begins at 0 again after a resume."""
    load = ZeroEngine.load

    def forgetful(zero, directory):
        load(zero, directory)
        for state in zero.engine.optimizer.optimizer.state.values():
            state["step"] = torch.zeros_like(torch.as_tensor(state["step"]))

    patch.setattr(ZeroEngine, "load", forgetful)
