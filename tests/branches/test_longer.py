"""A stage made longer against one of that length from nothing, in another root: weights by hash, tables in every column
but those that name the maker or measure time."""

import json

import pytest

from ouroboros.pipeline.results import equality
from ouroboros.pipeline.settings.setting import plain
from ouroboros.pipeline.store import files
from tests.configs import lora
from tests.toy.conftest import table

pytestmark = pytest.mark.branches
OFFSET, INTERVAL, BATCH = "synchronizer.sync_offset", "synchronizer.sync_interval", "buffer.train_batch_size"
REPLAY = "buffer.trainer_input.experience_buffer.replay_buffer"
SELECTOR = "buffer.explorer_input.taskset.data_selector.selector_type"
PPO = ("algorithm.algorithm_type=ppo", "algorithm.kl_penalty_fn=k3", "trainer.critic_warmup=1",
       "algorithm.kl_penalty_fn_args={adaptive: true, target_kl: 0.01, horizon: 100}")
CASES = {  # -> settings; steps of the shorter stage, of the longer one, and those that it takes
    "grpo, one step off": ((f"{OFFSET}=1",), 3, 5, 3),
    "sft": (("algorithm.algorithm_type=sft",), 3, 5, 3),
    "dpo": (("algorithm.algorithm_type=dpo",), 3, 5, 3),
    "ppo": ((*PPO, f"{OFFSET}=1"), 3, 5, 3),
    "grpo": ((f"{OFFSET}=0",), 3, 5, 3),
    "grpo, after a checkpoint": ((f"{OFFSET}=0",), 4, 7, 4),
    "grpo, one step off, k=1": ((f"{OFFSET}=1",), 1, 3, 1),
    "grpo, two steps off, every second version": ((f"{OFFSET}=2", f"{INTERVAL}=2"), 5, 9, 5),
    "grpo, inside an explorer step": ((f"{OFFSET}=1", f"{BATCH}=4"), 3, 6, 3),
    "grpo, explorer steps for a train batch": ((f"{OFFSET}=1", f"{BATCH}=16"), 2, 4, 2),
    "grpo, wsd": ((f"{OFFSET}=1", "algorithm.optimizer.lr_scheduler_type=wsd",
                   "algorithm.optimizer.lr_decay_steps=2"), 5, 7, 3),
    "grpo, fewer": ((f"{OFFSET}=1", "trainer.keep_every=3"), 5, 3, 3),
    "two passes, reference that follows": (
        (f"{OFFSET}=0", "trainer.ppo_epochs=2", "trainer.ppo_mini_batch_size=4", "algorithm.kl_loss_fn=k3",
         "trainer.reference_update.interval=2"), 3, 5, 3),
    "replay": ((f"{OFFSET}=0", f"{REPLAY}.enable=true", f"{REPLAY}.replay_ratio=0.5"), 3, 5, 3),
    "selector": ((f"{OFFSET}=1", f"{SELECTOR}=solve_rate_pools"), 3, 5, 3),
    "truncated sampling": ((f"{OFFSET}=1", "model.top_k=5"), 3, 5, 3),
    "LoRA": ((f"{OFFSET}=1", f"model.lora_configs={json.dumps([plain(lora(lora_rank=4, lora_alpha=8))])}"), 3, 5, 3),
}
FAST = ("grpo, one step off", "sft")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in FAST)) for name in CASES])
def test_a_longer_stage_is_the_one_of_that_length_from_nothing(name, planned, run):
    settings, first, then, taken = CASES[name]
    donor = run(planned("here", *settings, f"buffer.total_steps={first}"))
    longer = run(planned("here", *settings, f"buffer.total_steps={then}"))
    alone = run(planned("other", *settings, f"buffer.total_steps={then}"))
    manifests = [files.read_json(stage / files.MANIFEST) for stage in (longer, alone)]
    assert manifests[0]["taken"] == {donor.name: taken}
    assert "taken" not in manifests[1]
    assert list(equality.differences(longer, alone)) == []
    assert [row["stage"] for row in table(longer, "steps")] == [donor.name] * taken + [longer.name] * (then - taken)


def test_another_warmup_is_found(planned, run):
    """The comparison sees a rate that was another in one step, and Adam's moments that follow from it."""
    one, other = (run(planned(f"root{steps}", "algorithm.algorithm_type=sft", "buffer.total_steps=3",
                              f"algorithm.optimizer.lr_warmup_steps={steps}")) for steps in (1, 2))
    found = list(equality.differences(one, other))
    assert [line.partition(":")[0] for line in found] == ["weights", "steps"]
