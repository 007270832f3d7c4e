"""Replay, rows of an expert and a cached reference, killed and started again: as if it had never been killed."""

from pathlib import Path

import pytest

from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.plan.plan import make_plan
from tests.toy.conftest import SMALL, copy_upstream, stage_of
from tests.toy.kill import killed, made, start

pytestmark = pytest.mark.kill

REPLAY = "buffer.trainer_input.experience_buffer.replay_buffer"
MIXED = [
    "stages=[{stage_name: rft}]", "algorithm.algorithm_type=mix", "algorithm.optimizer.lr_warmup_steps=0",
    "algorithm.sample_strategy_args.expert_data_ratio=0.25", "buffer.trainer_input.auxiliary_buffers.sft_dataset={}",
    f"{REPLAY}.enable=true", f"{REPLAY}.replay_ratio=0.25", f"{REPLAY}.priority_fn=decay_limit_randomization",
    f"{REPLAY}.priority_fn_args={{sigma: 2.0, decay: -1.0}}", "algorithm.kl_loss_fn=k3",
    "explorer.rollout_model.engine_type=transformers", "synchronizer.sync_interval=1", "synchronizer.sync_offset=1",
]


def test_killed_twice_the_same_groups_are_drawn_again(finished, tmp_path):
    """64 rows a batch: 32 new, 16 of an expert, four groups of four again from step 2 on."""
    stages = []
    for name in ("whole", "cut"):
        plan = make_plan(compose([f"checkpoint_root_dir={tmp_path / name}",
                                  *(o for o in SMALL if not o.startswith("stages.")), *MIXED]))
        plan.freeze()
        copy_upstream(finished.plan, plan, ("tasks", "curate", "model"))
        stages.append(stage_of(plan, "rft"))
    whole, cut = stages
    assert start(whole).wait(timeout=400) == 0
    for step in (3, 5):  # a step after the checkpoints of 2 and 4
        killed(cut, "steps", step)
    assert start(cut).wait(timeout=400) == 0
    found, expected = (made(Path(stage.directory)) for stage in (cut, whole))
    assert [(row["trained_rows"], row["expert_rows"], row["replayed_rows"]) for row in expected["steps"]] == [
        (48, 16, 0), *[(64, 16, 16)] * 5]
    assert expected["steps"][-1]["grad_norm"] > 0
    assert max(row["use_count"] or 0 for row in expected["trained"]) > 1
    assert [dict(row["statistics"])["mu"] for row in expected["steps"]] == pytest.approx([0.1] * 6)
    for name in expected:
        assert found[name] == expected[name], name
