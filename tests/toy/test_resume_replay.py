"""Replay, rows of an expert and a cached reference, killed and started again: as if it had never been killed."""

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
from tests.toy.conftest import REPOSITORY, SMALL, copy_upstream, stage_of
from tests.toy.test_resume import experience, start, wait_until

pytestmark = pytest.mark.slow

REPLAY = "buffer.trainer_input.experience_buffer.replay_buffer"
MIXED = [
    "stages=[{stage_name: rft}]", "algorithm.algorithm_type=mix", "algorithm.optimizer.lr_warmup_steps=0",
    "algorithm.sample_strategy_args.expert_data_ratio=0.25", "buffer.trainer_input.auxiliary_buffers.sft_dataset={}",
    f"{REPLAY}.enable=true", f"{REPLAY}.replay_ratio=0.25", f"{REPLAY}.priority_fn=decay_limit_randomization",
    f"{REPLAY}.priority_fn_args={{sigma: 2.0, decay: -1.0}}", "algorithm.kl_loss_fn=k3",
    "explorer.rollout_model.engine_type=transformers", "synchronizer.sync_interval=1", "synchronizer.sync_offset=1",
]
TIMES = ("seconds", "peak_memory_gib")


def plan(root: Path):
    made = make_plan(compose([f"checkpoint_root_dir={root}", *(o for o in SMALL if not o.startswith("stages.")),
                              *MIXED]))
    made.freeze()
    return made


def made_of(directory: Path) -> dict:
    """All that must be the same: tables but for times."""
    read = {"experience": experience(str(directory))}
    for name in ("steps", "trained", "reference"):
        paths = [tables.step_file(directory, name, step) for step in tables.steps_present(directory, name)]
        read[name] = pa.concat_tables(tables.read(path, records.TABLES[name]) for path in paths).to_pylist()
    read["steps"] = [{c: v for c, v in row.items() if not c.endswith(TIMES)} for row in read["steps"]]
    return read


def test_killed_twice_the_same_groups_are_drawn_again(tmp_path):
    """64 rows a batch: 32 new, 16 of an expert, four groups of four again from step 2 on."""
    whole, cut = plan(tmp_path / "whole"), plan(tmp_path / "cut")
    for name in ("tasks", "curate", "model"):
        stage = stage_of(whole, name)
        subprocess.run([sys.executable, "-m", f"stages.{stage.kind}", stage.directory], cwd=REPOSITORY, check=True,
                       capture_output=True)
    copy_upstream(whole, cut, ("tasks", "curate", "model"))
    assert start(stage_of(whole, "rft")).wait(timeout=400) == 0
    for step in (3, 5):  # a step after the checkpoints of 2 and 4
        process = start(stage_of(cut, "rft"))
        wait_until(tables.step_file(Path(stage_of(cut, "rft").directory), "steps", step).exists, 300, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        time.sleep(1.0)
    assert start(stage_of(cut, "rft")).wait(timeout=400) == 0
    found, expected = (made_of(Path(stage_of(p, "rft").directory)) for p in (cut, whole))
    assert [(row["trained_rows"], row["expert_rows"], row["replayed_rows"]) for row in expected["steps"]] == [
        (48, 16, 0), *[(64, 16, 16)] * 5]
    assert expected["steps"][-1]["grad_norm"] > 0
    assert max(row["use_count"] or 0 for row in expected["trained"]) > 1
    assert [dict(row["statistics"])["mu"] for row in expected["steps"]] == pytest.approx([0.1] * 6)
    for name in expected:
        assert found[name] == expected[name], name
    weights = [files.read_json(Path(stage_of(p, "rft").manifest))["weights_hash"] for p in (whole, cut)]
    assert weights[0] == weights[1]
