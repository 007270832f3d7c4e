"""Real stages of turns and of a teacher: what they write, and that a killed one ends as if it had never been killed."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.check.judge import compose
from pipeline.plan.plan import make_plan
from pipeline.store import files, records, tables
from tests.toy.conftest import REPOSITORY, copy_upstream, small, stage_of
from tests.toy.test_resume import experience, start, wait_until

pytestmark = pytest.mark.slow

OTHER = "model: {init: {enable: true, hidden_size: 64, num_hidden_layers: 2}}"  # not the student's architecture
STAGES = ["stages=[{stage_name: turns, seed: 7, " + OTHER + ", algorithm: {algorithm_type: gigpo}}, "
          "{stage_name: taught, after: [], algorithm: {algorithm_type: jsd}, model: {teacher_model_path: turns}}]"]
BOTH = ["model.max_model_len=64", "algorithm.optimizer.lr_warmup_steps=0",
        "buffer.explorer_input.taskset.default_workflow_type=retry_workflow",
        "buffer.explorer_input.taskset.workflow_args={max_env_steps: 2, feedback: 'no'}",
        "explorer.rollout_model.engine_type=transformers", "synchronizer.sync_interval=1", "buffer.total_steps=4"]


def plan(root: Path):
    made = make_plan(compose([f"checkpoint_root_dir={root}",
                              *(o for o in small(*BOTH) if not o.startswith("stages.")), *STAGES]))
    made.freeze()
    return made


def table(directory: Path, name: str) -> list[dict]:
    paths = [tables.step_file(directory, name, step) for step in tables.steps_present(directory, name)]
    return pa.concat_tables(tables.read(path, records.TABLES[name]) for path in paths).to_pylist()


def test_turns_are_trained_together_and_a_killed_student_hears_the_same_teacher(tmp_path):
    whole, cut = plan(tmp_path / "whole"), plan(tmp_path / "cut")
    upstream = [s.name for s in whole.stages if not s.name.startswith(("taught", "evaluate", "report"))]
    for name in upstream:
        stage = stage_of(whole, name)
        subprocess.run([sys.executable, "-m", f"stages.{stage.kind}", stage.directory], cwd=REPOSITORY, check=True,
                       capture_output=True)
    turns = Path(stage_of(whole, "turns").directory)
    rows = {row["experience_id"]: row for row in experience(str(turns))}
    trained = [rows[row["experience_id"]] | row for row in table(turns, "trained")]
    assert {row["turn"] for row in trained} == {0, 1}
    for step in range(1, 5):
        attempts = {row["slot"] for row in trained if row["train_step"] == step}
        assert attempts == set(range(32))  # 8 tasks x 4 repeats
    assert {row["train_step"] for row in trained if row["turn"] == 1} == {1, 2, 3, 4}

    copy_upstream(whole, cut, tuple(upstream))
    assert start(stage_of(whole, "taught")).wait(timeout=400) == 0
    directory, expected = Path(stage_of(cut, "taught").directory), Path(stage_of(whole, "taught").directory)
    process = start(stage_of(cut, "taught"))
    wait_until(tables.step_file(directory, "steps", 3).exists, 300, process)  # a step after the checkpoint of 2
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(1.0)
    assert start(stage_of(cut, "taught")).wait(timeout=400) == 0
    for name in ("teacher", "trained"):
        assert table(directory, name) == table(expected, name), name
    assert len({files.read_json(place / files.MANIFEST)["weights_hash"] for place in (directory, expected)}) == 1
    steps = table(expected, "steps")
    assert all(step["teacher_kl"] > 0 and step["grad_norm"] > 0 for step in steps[:3])
    assert {row["experience_id"] for row in table(expected, "teacher")} >= {
        row["experience_id"] for row in table(expected, "trained")}
