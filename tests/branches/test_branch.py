"""Stages made longer and branches, against ones from nothing in another root: weights by hash, tables in every column
but those that name the maker or measure time; where rows depend on time, the step after those that are taken."""

import json
from pathlib import Path

import pytest

from benchmarks import equality
from ouroboros.pipeline.job import segments, selection
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
OFFSET, INTERVAL, BATCH = "synchronizer.sync_offset", "synchronizer.sync_interval", "buffer.train_batch_size"
ON, AHEAD = (f"{OFFSET}=0",), (f"{OFFSET}=1",)
SFT, DPO = ("algorithm.algorithm_type=sft",), ("algorithm.algorithm_type=dpo",)
ADAPTER = f"model.lora_configs={json.dumps([plain(lora(lora_rank=4, lora_alpha=8))])}"
REPLAY = "buffer.trainer_input.experience_buffer.replay_buffer"
REPLAYED = (*ON, f"{REPLAY}.enable=true", f"{REPLAY}.replay_ratio=0.5")
SELECTOR = "buffer.explorer_input.taskset.data_selector.selector_type"
OPERATORS = ("data_processor.experience_pipeline.operators=[{name: data_juicer, args: {operators: [{name: "
             "text_length_filter, args: {min_len: 2}}]}}, {name: reward_shaping_mapper, "
             "args: {reward_shaping_configs: [{stats_key: text_len, weight: 0.01}]}}]")
LR, COOL = {"algorithm.optimizer.lr": 1e-3}, {"model.temperature": 0.5}
CRITIC = LR | {"trainer.critic.optimizer.lr": 1e-3}
PPO = ("algorithm.algorithm_type=ppo", "algorithm.kl_penalty_fn=k3", "trainer.critic_warmup=1",
       "algorithm.kl_penalty_fn_args={adaptive: true, target_kl: 0.01, horizon: 100}")


def letters(response: str, answer: str) -> float:
    return sum(map(str.isalpha, response)) / max(len(response), 1)


def changing(given: dict[int, dict]) -> str:
    return f"changes={json.dumps(given)}"


# -> settings; steps of a stage and of the longer one; of a branch of that k, drawn from 3 to 7 where the name does not
# tell it, and what changes; the steps that the longer one and the branch take
CASES = {
    "sft": (SFT, 3, 7, {4: LR}, (3, 4)), "dpo": (DPO, 3, 7, {6: LR}, (3, 6)),
    "grpo": (ON, 3, 7, {7: LR}, (3, 7)), "one step off": (AHEAD, 3, 7, {5: LR}, (3, 4)),
    "two steps off, every second version": ((f"{OFFSET}=2", f"{INTERVAL}=2"), 5, 7, {6: LR}, (5, 6)),
    "ppo, its critic, adaptive KL": ((*PPO, *AHEAD), 3, 7, {6: CRITIC}, (3, 6)),
    "two passes, reference that follows": (
        (*ON, "trainer.ppo_epochs=2", "trainer.ppo_mini_batch_size=4", "algorithm.kl_loss_fn=k3",
         "trainer.reference_update.interval=2"), 3, 7, {6: LR}, (3, 6)),
    "LoRA": ((*AHEAD, ADAPTER), 3, 7, {4: LR}, (3, 4)),
    "truncated sampling": ((*AHEAD, "model.top_k=5"), 3, 7, {6: {"model.top_k": 3}}, (3, 4)),
    "selector": ((*AHEAD, f"{SELECTOR}=solve_rate_pools"), 3, 7, {5: LR}, (3, 4)),
    "replay": (REPLAYED, 3, 7, {7: LR}, (3, 7)), "experience pipeline": ((*AHEAD, OPERATORS), 3, 7, {6: LR}, (3, 6)),
    "ZeRO-2 on two ranks": ((*SFT, "trainer.ranks=2", "trainer.zero_stage=2"), 3, 7, {4: LR}, (3, 4)),
    "k=1": (AHEAD, 1, 3, {1: LR}, (1, 1)),
    "at the last step": (AHEAD, 3, 5, {5: LR}, (3, 5)), "at a checkpoint, sampling": (ON, 4, 6, {4: COOL}, (4, 4)),
    "before a checkpoint, sampling": (AHEAD, 4, 6, {3: COOL}, (4, 2)), "after a checkpoint, reward": (ON, 4, 6, {5: {
        "buffer.explorer_input.default_reward_fn_type": f"{__name__}:letters"}}, (4, 4)),
    "inside an explorer step": ((*AHEAD, f"{BATCH}=4"), 3, 6, {5: COOL | LR}, (3, 4)),
    "explorer steps for a train batch": ((*AHEAD, f"{BATCH}=16"), 2, 4, {3: LR}, (2, 2)),
    "wsd": ((*SFT, "algorithm.optimizer.lr_scheduler_type=wsd", "algorithm.optimizer.lr_decay_steps=2",
             "trainer.max_checkpoints_to_keep=2"), 5, 7, {5: {"trainer.grad_clip": 0.01}}, (3, 5)),
    "two changes, moments and clipping": (SFT, 3, 7, {4: {"algorithm.optimizer.betas": [0.5, 0.9]},
                                                      6: {"trainer.grad_clip": 0.01}}, (3, 4)),
}
FAST = ("sft", "one step off")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in FAST)) for name in CASES])
def test_a_branch_of_a_longer_stage_is_the_stage_with_these_changes_from_nothing(name, planned, run):
    """The branch has steps of the shorter stage, of the longer one and its own, so all that each made is compared."""
    settings, first, then, given, taken = CASES[name]
    words = (*settings, f"buffer.total_steps={max(then, *given) + 1}", changing(given))
    shorter, longer = (run(planned("here", *settings, f"buffer.total_steps={steps}")) for steps in (first, then))
    branch, alone = (run(planned(root, *words)) for root in ("here", "other"))
    assert list(equality.differences(branch, alone)) == []
    assert (taken_by(longer), taken_by(alone)) == ({shorter.name: taken[0]}, {})
    assert taken_by(branch) == {shorter.name: min(taken)} | ({longer.name: taken[1]} if taken[1] > taken[0] else {})


CHAT = "buffer.explorer_input.default_workflow_type=tests.agents:chat"
TIMED = {
    "over_rollout": (*AHEAD, CHAT, "explorer.over_rollout.ratio=0.5"),
    "dynamic timeout": (*AHEAD, CHAT, "explorer.dynamic_timeout.enable=true"),
    "partial rollouts": (*AHEAD, "explorer.partial_rollout=true"),
    "driven by the trainer": (*AHEAD, "synchronizer.sync_style=trainer_driven", "synchronizer.max_staleness=2"),
    "driven by the explorer": (*AHEAD, "synchronizer.sync_style=explorer_driven", "synchronizer.max_staleness=2"),
    "agents": (*AHEAD, CHAT),
}
LOSS = 0.05  # losses of a step of two runs differed by at most 0.009, of one step and the next by up to 0.37


@pytest.mark.parametrize("name", TIMED)
def test_where_rows_depend_on_time_the_next_step_is_one_of_a_lone_run(name, planned, run, monkeypatch):
    counts, step = [], ZeroEngine.step

    def counting(zero, *given):
        made = step(zero, *given)
        counts.append({float(state["step"]) for state in zero.engine.optimizer.optimizer.state.values()})
        return made

    monkeypatch.setattr(ZeroEngine, "step", counting)
    run(planned("here", *TIMED[name], "buffer.total_steps=4"))
    longer, alone = (run(planned(root, *TIMED[name], "buffer.total_steps=6")) for root in ("here", "other"))
    first = max(taken_by(longer).values())
    ours, theirs = (table(stage, "steps")[first] for stage in (longer, alone))
    same = ("step", "lr", "trained_rows")
    assert 1 < first < 5
    assert counts == [{float(one)} for one in (1, 2, 3, 4, *range(first + 1, 7), *range(1, 7))]
    assert [ours[key] for key in same] == [theirs[key] for key in same]
    assert ours["loss"] == pytest.approx(theirs["loss"], abs=LOSS)


def taken_by(stage: Path) -> dict[str, int]:
    return files.read_json(stage / files.MANIFEST).get("taken", {})


def test_with_fewer_steps_nothing_is_trained_where_a_checkpoint_is(planned, run):
    settings = (*AHEAD, "trainer.keep_every=3")
    donor, shorter = (run(planned("here", *settings, f"buffer.total_steps={steps}")) for steps in (5, 3))
    assert taken_by(shorter) == {donor.name: 3}
    assert {row["stage"] for row in table(shorter, "steps")} == {donor.name}
    assert list(equality.differences(shorter, run(planned("other", *settings, "buffer.total_steps=3")))) == []


def test_another_warmup_is_found(planned, run):
    """The comparison sees a rate that was another in one step, and Adam's moments that follow from it."""
    one, other = (run(planned(f"root{steps}", *SFT, "buffer.total_steps=3",
                              f"algorithm.optimizer.lr_warmup_steps={steps}")) for steps in (1, 2))
    assert [line.partition(":")[0] for line in equality.differences(one, other)] == ["weights", "steps"]


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
          counts_of_uses: (REPLAYED, {"weights", "steps", "trained"}),
          tasks_of_the_first_epoch: (ON, {"weights", "steps", "trained", "experience"}),
          an_older_version: ((*ON, "synchronizer.keep=all"), {"weights", "experience"})}


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
