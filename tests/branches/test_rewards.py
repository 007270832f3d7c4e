"""A stage whose reward was corrected against one from nothing, in another root: what is taken, and that weights and
tables are equal."""

from dataclasses import replace

import pytest

from benchmarks import equality
from ouroboros.pipeline.store import files
from tests.branches.conftest import TASKS, parts_from
from tests.toy.conftest import table

pytestmark = pytest.mark.branches
OFFSET, STEPS = "synchronizer.sync_offset", 6
ON = (f"{OFFSET}=1", f"buffer.total_steps={STEPS}", "trainer.max_checkpoints_to_keep=null", "trainer.save_interval=1",
      "buffer.explorer_input.default_reward_fn_type=mine_rewards:score", "explorer.max_failed_ratio=0.9")
SETS = "buffer.explorer_input.taskset"
MODULE = '''
import hashlib
import random


def score(response, answer, bonus=0.5):
    chosen = int(hashlib.sha256(response.encode()).hexdigest(), 16) % PARTS == 1
    return {"digits": sum(map(str.isdigit, response)) / max(len(response), 1) + bonus * chosen}
'''


@pytest.fixture
def reward(module):
    """reward(parts): writes the user's module, which adds `bonus` to one response in so many, by its hash."""
    return lambda parts, source=MODULE: module(source.replace("PARTS", str(parts)))


NEVER = 2**60
CASES = {  # -> settings, the first explorer step with another reward, the trainer steps that are taken
    "in turns": ((f"{OFFSET}=0",), 3, 2),
    "one step ahead": ((), 4, 3),
    "two steps ahead, every second version": ((f"{OFFSET}=2", "synchronizer.sync_interval=2"), 5, 4),
    "two trainer steps for an explorer step": (("buffer.train_batch_size=4",), 3, 4),
    # explorer step 4 is sampled again, by weights that only the checkpoint of step 2 has
    "groups that are replaced": (("algorithm.max_resample_rounds=1",), 4, 2),
    "a selector of solve rates": ((f"{SETS}.data_selector.selector_type=solve_rate_pools",), 4, 2),
    "replay": (("buffer.trainer_input.experience_buffer.replay_buffer.enable=true",
                "buffer.trainer_input.experience_buffer.replay_buffer.replay_ratio=0.5"), 4, 2),
    "a greedy baseline": (("algorithm.algorithm_type=remax",), 4, 3),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "one step ahead"))
                                  for name in CASES])
def test_steps_before_the_first_other_reward_are_taken(name, planned, run, reward):
    settings, first, taken = CASES[name]
    reward(NEVER)
    donor = run(planned("here", *ON, *settings))
    reward(parts_from(donor, first))
    mended, alone = (run(planned(root, *ON, *settings)) for root in ("here", "other"))
    assert files.read_json(mended / files.MANIFEST)["taken"] == {donor.name: taken}
    assert list(equality.differences(mended, alone)) == []
    assert not list(mended.glob(".rewarded*"))


def test_responses_by_taken_weights_keep_their_place_with_new_rewards(planned, run, reward):
    reward(NEVER)
    donor = run(planned("here", *ON))
    reward(parts_from(donor, 4))
    mended = run(planned("here", *ON))
    rows, before = ({row["experience_id"].partition("/")[2]: row for row in table(stage, "experience")}
                    for stage in (mended, donor))
    made = {row["step"]: row["stage"] for row in rows.values()}
    assert {step: made[step] for step in (1, 2, 3, 4, 6)} == {
        1: donor.name, 2: donor.name, 3: donor.name, 4: mended.name, 6: mended.name}
    ahead = [key for key, row in rows.items() if row["step"] in (4, 5) and row["weights_version"] <= 3]
    assert {rows[key]["step"] for key in ahead} == {4, 5}
    assert all(rows[key]["unix_seconds"] == before[key]["unix_seconds"] for key in ahead)  # not sampled again
    assert all(rows[key]["unix_seconds"] > before[key]["unix_seconds"] for key in rows.keys() - before.keys()
               | {key for key, row in rows.items() if row["step"] == 6})


def test_other_arguments_and_other_answers(planned, run, reward):
    """An argument that no response feels keeps all steps; the answer of a task ends them where it is asked first."""
    reward(NEVER)
    donor = run(planned("here", *ON))
    argued = run(planned("here", *ON, f"{SETS}.reward_fn_args={{bonus: 0.75}}"))
    assert files.read_json(argued / files.MANIFEST)["taken"] == {donor.name: STEPS}
    asked = {row["task_id"]: row["step"] for row in reversed(table(donor, "experience"))}
    task, step = max(asked.items(), key=lambda one: one[1])
    assert step > 1
    tasks = [replace(one, task_id="new", answer="7") if one.task_id == task else one for one in TASKS] + [
        replace(TASKS[-1], task_id="p9", row=60)]
    mended, alone = (run(planned(root, *ON, tasks=tasks)) for root in ("here", "other"))
    assert files.read_json(mended / files.MANIFEST)["taken"] == {donor.name: step - 1}
    assert list(equality.differences(mended, alone, evaluated=False)) == []


@pytest.mark.parametrize("source", [
    MODULE.replace("+ bonus * chosen", "+ random.random()"),
    MODULE + "\n\nscore.repeatable = False\n",
    MODULE.replace("    return", "    assert not chosen\n    return")])
def test_what_is_no_function_of_the_response_or_fails_takes_nothing(source, planned, run, reward):
    reward(NEVER, source if "random" in source.partition("return")[2] else MODULE)
    donor = run(planned("here", *ON))
    reward(parts_from(donor, 1), source)
    log = run(planned("here", *ON)) / "stage.log"
    assert f"nothing is taken from {donor.name}: " in log.read_text()
    assert "taken" not in files.read_json(log.with_name(files.MANIFEST))
