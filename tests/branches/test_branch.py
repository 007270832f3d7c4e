"""A stage that changes settings on its way: taken from a trunk, and from nothing in another root."""

import json
from pathlib import Path

import pytest

from ouroboros.pipeline.job import segments, selection
from ouroboros.pipeline.results import equality
from ouroboros.pipeline.settings import changes
from ouroboros.pipeline.settings.setting import plain
from ouroboros.pipeline.store import files
from ouroboros.stages.explorer.weights import Weights
from ouroboros.stages.learner.engine.zero import ZeroEngine
from ouroboros.stages.learner.replay import Replay
from tests.branches.conftest import count_of_adam
from tests.configs import lora
from tests.toy.conftest import table

pytestmark = pytest.mark.branches
OFFSET, BATCH, ALL = "synchronizer.sync_offset", "buffer.train_batch_size", "trainer.max_checkpoints_to_keep=null"
SFT, AHEAD = ("algorithm.algorithm_type=sft", ALL), (f"{OFFSET}=1", ALL)
REPLAY = "buffer.trainer_input.experience_buffer.replay_buffer"
LR, COOL = {"algorithm.optimizer.lr": 1e-3}, {"model.temperature": 0.5}
PPO = ("algorithm.algorithm_type=ppo", "algorithm.kl_penalty_fn=k3",
       "algorithm.kl_penalty_fn_args={adaptive: true, target_kl: 0.01, horizon: 100}")


def letters(response: str, answer: str) -> float:
    return sum(map(str.isalpha, response)) / max(len(response), 1)


def changing(given: dict[int, dict]) -> str:
    return f"changes={json.dumps(given)}"


CASES = {  # -> settings, steps of trunk and branch, changes, steps that are taken
    "sft": (SFT, 5, 6, {4: LR}, 4),
    "grpo, one step off": (AHEAD, 5, 6, {4: LR}, 4),
    "sampling, one step off": (AHEAD, 5, 6, {4: COOL}, 2),
    "sampling": ((f"{OFFSET}=0", ALL), 5, 6, {4: COOL}, 4),
    "between checkpoints, k=1": (AHEAD, 4, 4, {1: LR}, 0),
    "between checkpoints": (AHEAD, 5, 6, {3: LR}, 2),
    "after the last step": (AHEAD, 3, 5, {3: LR}, 3),
    "inside an explorer step": ((*AHEAD, f"{BATCH}=4"), 5, 6, {3: COOL | LR}, 2),
    "two steps off, every second version": ((f"{OFFSET}=2", "synchronizer.sync_interval=2", ALL), 7, 8, {4: LR}, 4),
    "dpo": (("algorithm.algorithm_type=dpo", ALL), 5, 6, {4: LR}, 4),
    "ppo, its critic": ((*PPO, *AHEAD), 5, 6, {4: LR | {"trainer.critic.optimizer.lr": 1e-3}}, 4),
    "two changes, moments and clipping": (SFT, 5, 8, {4: {"algorithm.optimizer.betas": [0.5, 0.9]},
                                                      6: {"trainer.grad_clip": 0.01}}, 4),
    "replay": ((f"{OFFSET}=0", f"{REPLAY}.enable=true", f"{REPLAY}.replay_ratio=0.5", ALL), 5, 6, {4: LR}, 4),
    "reward": ((f"{OFFSET}=0", ALL), 5, 6, {4: {
        "buffer.explorer_input.default_reward_fn_type": f"{__name__}:letters"}}, 4),
    "LoRA": ((*AHEAD, f"model.lora_configs={json.dumps([plain(lora(lora_rank=4, lora_alpha=8))])}"), 5, 6, {4: LR}, 4),
}
FAST = ("sft",)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in FAST)) for name in CASES])
def test_a_branch_is_the_stage_with_these_changes_from_nothing(name, planned, run):
    settings, first, then, given, taken = CASES[name]
    trunk = run(planned("here", *settings, f"buffer.total_steps={first}"))
    branch, alone = (run(planned(root, *settings, f"buffer.total_steps={then}", changing(given)))
                     for root in ("here", "other"))
    assert list(equality.differences(branch, alone)) == []
    assert files.read_json(branch / files.MANIFEST).get("taken", {}) == ({trunk.name: taken} if taken else {})
    assert "taken" not in files.read_json(alone / files.MANIFEST)


def test_a_change_acts_from_the_next_step_and_from_rows_that_no_step_has_read(planned, run):
    """Train batches of half an explorer step: step 3 of the trainer reads half of explorer step 2."""
    stage = run(planned("here", *AHEAD, f"{BATCH}=4", "buffer.total_steps=6", changing({3: COOL | LR})))
    assert [row["lr"] for row in table(stage, "steps")] == [5e-4] * 3 + [1e-3] * 3
    assert {row["step"]: row["temperature"] for row in table(stage, "experience")} == {1: 1.0, 2: 1.0, 3: 0.5}


def test_a_change_at_a_checkpoint_between_others_is_found_by_the_next_branch(planned, run):
    """A branch of a branch takes the steps of the first, and another branch those up to the change alone."""
    first = run(planned("here", *SFT, "buffer.total_steps=6", changing({2: LR})))
    second = run(planned("here", *SFT, "buffer.total_steps=6", changing({2: LR, 4: {"trainer.grad_clip": 0.01}})))
    third = run(planned("here", *SFT, "buffer.total_steps=4", changing({2: {"algorithm.optimizer.lr": 1e-4}})))
    assert [files.read_json(one / files.MANIFEST)["taken"] for one in (second, third)] == [
        {first.name: 4}, {first.name: 2}]


@pytest.mark.parametrize("step", [1, 2])
def test_one_that_was_killed_around_a_change_ends_as_if_undisturbed(planned, run, monkeypatch, step):
    """At the first step after those that are taken, and at that after the change."""
    run(planned("here", *SFT, "buffer.total_steps=4"))
    stage = planned("here", *SFT, "buffer.total_steps=7", changing({5: LR}))
    train, left = ZeroEngine.step, [step]

    def killed(zero, *given):
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return train(zero, *given)

    with monkeypatch.context() as patch:
        patch.setattr(ZeroEngine, "step", killed)
        with pytest.raises(KeyboardInterrupt):
            run(stage)
    alone = run(planned("other", *SFT, "buffer.total_steps=7", changing({5: LR})))
    assert list(equality.differences(run(stage), alone)) == []


def rate_of_the_first_step(patch):
    chosen = segments.chosen

    def too_early(stage, config):
        found, until = chosen(stage, config)
        return changes.changed(found, LR), until

    patch.setattr(segments, "chosen", too_early)


def counts_of_uses(patch):
    draw = Replay.draw

    def without_earlier(replay, step):
        replay.step = max(replay.step, step - 1)
        return draw(replay, step)

    patch.setattr(Replay, "draw", without_earlier)


def tasks_of_the_first_epoch(patch):
    order = selection._order
    selection._epoch.cache_clear()
    patch.setattr(selection, "_order", lambda one, epoch: order(one, 0))


def an_older_version(patch):
    update = Weights.update_to

    def older(weights, version, check):
        update(weights, version, check)
        update(weights, max(version - 1, 0), check)
        weights.hashes[version] = weights.hash

    patch.setattr(Weights, "update_to", older)


FAULTS = {rate_of_the_first_step: (SFT, {"weights", "steps"}), count_of_adam: (SFT, {"weights", "steps"}),
          counts_of_uses: (CASES["replay"][0], {"weights", "steps", "trained"}),
          tasks_of_the_first_epoch: ((f"{OFFSET}=0", ALL), {"weights", "steps", "trained", "experience"}),
          an_older_version: ((f"{OFFSET}=0", "synchronizer.keep=all", ALL), {"weights", "experience"})}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault, planned, run, monkeypatch):
    """Of the first one in the stage from nothing: what a branch takes has no step in it that the change acts on."""
    settings, places = FAULTS[fault]
    run(planned("here", *settings, "buffer.total_steps=5"))
    roots = ("here", "other") if fault is rate_of_the_first_step else ("other", "here")
    right, wrong = (planned(root, *settings, "buffer.total_steps=7", changing({4: LR})) for root in roots)
    run(right)
    with monkeypatch.context() as patch:
        fault(patch)
        run(wrong)
    found = equality.differences(Path(wrong.directory), Path(right.directory))
    assert places <= {line.partition(":")[0] for line in found}
