"""mode=score: stored responses, rewarded again by other functions."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from ouroboros.pipeline.check.stage import unfit_order
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.plan.plan import make_plan
from ouroboros.pipeline.settings.setting import plain
from ouroboros.pipeline.store import files, records, tables
from ouroboros.pipeline.store.errors import ConfigError, DataError, StageError
from ouroboros.stages.rescore import Scorer
from tests.configs import TINY, overridden
from tests.golden.messages import refuses
from tests.stages.conftest import SMALL, TASKS, publish_model, step

LONGER = "buffer.explorer_input.default_reward_fn_type=tests.stages.test_rescore:characters"
PICKY = "buffer.explorer_input.default_reward_fn_type=tests.stages.test_rescore:only_t0"
SOLVED = "buffer.explorer_input.default_reward_fn_type=tests.stages.test_rescore:solved"


def characters(response, answer):
    return len(response)


def leveled(response, answer, level):
    return level


def of_tokens(response, answer, completion_ids):
    return {"tokens": [token / 100 for token in completion_ids], "whole": 1}


def solved(response, answer):
    return {"accuracy": 1.0}


def only_t0(response, answer):
    if "numbers" not in answer:
        raise ValueError("no numbers")
    return


@pytest.fixture
def score(stage, tiny_model, context_of, tmp_path):
    """Explores a step with `explored` settings, and rewards it again with others; the rows of both by slot."""
    def run(*overrides, explored=()):
        source = stage(*explored)
        step(publish_model(source, 0))
        files.write_json(source.directory / "stage.json", {"config": plain(source.config)})
        context = context_of(tmp_path / "again", *TINY, *SMALL, "mode=score", *overrides,
                             experience=source.directory, tasks=tmp_path / "curate", model=tiny_model)
        rollout = Scorer(context).step(1)
        return rollout, *(tables.read(tables.step_file(one.directory, "experience", 1), records.Experience).to_pylist()
                          for one in (source, context))

    return run


def test_the_same_responses_have_other_rewards(score):
    """Tasks t0, t2 (too long a prompt) and t3 (whose truth the countdown reward cannot read), twice each."""
    rollout, before, after = score(LONGER)
    assert [(r["task_id"], r["status"]) for r in after if r["task_id"] != "t2"] == [(r["task_id"], "ok") for r in before
                                                                                    if r["task_id"] != "t2"]
    assert {r["status"] for r in before if r["task_id"] == "t3"} == {"reward_failed"}
    assert [r["reward"] for r in after] == [None if r["task_id"] == "t2" else len(r["response"]) for r in before]
    assert {(r["status"], r["reason"]) for r in after if r["task_id"] == "t2"} == {
        (r["status"], r["reason"]) for r in before if r["task_id"] == "t2"}
    assert (rollout.rows, rollout.failed_rows, rollout.attempts, rollout.rollout_seconds) == (6, 2, 6, 0)
    new = {"reward", "reward_components", "accuracy", "status", "reason", "stage", "experience_id", "commit", "notes",
           "config_hash"}
    for old, found in zip(before, after, strict=True):
        assert {k: v for k, v in old.items() if k not in new} == {k: v for k, v in found.items() if k not in new}
        assert found["experience_id"].partition("/")[2] == old["experience_id"].partition("/")[2]


def test_rewards_of_single_tokens_are_a_column_of_rows_that_are_explored_or_rewarded_again(score):
    """Each token earns a hundredth of its id, the response 1 on its last one."""
    dense = "buffer.explorer_input.default_reward_fn_type=tests.stages.test_rescore:of_tokens"
    for rows in score(dense, explored=[dense])[1:]:
        for one in rows:
            earned = [token / 100 for token in one["response_tokens"]]
            if one["status"] == "ok":
                assert one["token_rewards"] == pytest.approx([*earned[:-1], earned[-1] + 1])
                assert one["reward"] == pytest.approx(sum(earned) + 1)
            else:
                assert one["token_rewards"] is None


def test_columns_of_the_records_reach_the_functions_that_reward_again(score, tmp_path):
    tables.write(tmp_path / "curate" / "tasks.parquet", records.Task, [
        replace(task, columns=json.dumps({"level": place})) for place, task in enumerate(TASKS)])
    _, _, after = score("buffer.explorer_input.default_reward_fn_type=tests.stages.test_rescore:leveled")
    assert {(one["task_id"], one["reward"]) for one in after} == {("t0", 0.0), ("t2", None), ("t3", 3.0)}


def test_greedy_responses_are_rewarded_again_as_baselines(score):
    _, before, after = score(SOLVED, explored=["algorithm.greedy_baseline=true"])
    assert sorted({(r["task_id"], r["run_index"], r["status"]) for r in after if r["task_id"] == "t3"}) == [
        ("t3", 0, "ok"), ("t3", 1, "ok"), ("t3", 2, "baseline")]
    assert {r["status"] for r in before if r["task_id"] == "t3"} == {"reward_failed"}
    assert {r["accuracy"] for r in after if r["status"] in ("ok", "baseline")} == {1.0}


def test_a_whole_stage_rewards_every_step_and_completes(stage, tiny_model, tmp_path):
    """Two steps of 6 rows; a response's reward is its length. The process of the stage and its child, as a run starts
    them."""
    source, place = stage(), tmp_path / "again"
    explorer = publish_model(source, 0, 1)
    for number in (1, 2):
        step(explorer, number)
    files.write_json(source.directory / "stage.json", {"config": plain(source.config)})
    inputs = {"experience": source.directory, "tasks": tmp_path / "curate", "model": tiny_model}
    config = overridden(*TINY, *SMALL, "mode=score", "buffer.total_steps=2", "monitor.monitor_type=none", LONGER)
    files.write_json(place / "stage.json", {
        "run": "toy/one", "name": "again", "kind": "scored", "identity": "0123abcd", "root": str(tmp_path),
        "inputs": {role: str(path) for role, path in inputs.items()}, "config": plain(config)})
    done = subprocess.run([sys.executable, "-m", "ouroboros.stages.scored", str(place)], cwd=files.HOME,
                          capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert files.is_complete(place)
    for number in (1, 2):
        rows = tables.read(tables.step_file(place, "experience", number), records.Experience).to_pylist()
        assert len(rows) == 6
        assert {row["reward"] for row in rows if row["status"] == "ok"} == {
            len(row["response"]) for row in rows if row["status"] == "ok"}


def test_too_many_failures_end_the_stage(score):
    with refuses(StageError, "4 of 6"):
        score(PICKY, "explorer.max_failed_ratio=0.1")


def test_a_set_without_rewards_here_is_named(score):
    with refuses(ConfigError, "'countdown_train'"):
        score(LONGER, "buffer.explorer_input.taskset.name=other")


STAGES = ("stages=[{stage_name: look, mode: explore, buffer: {total_steps: 2}}, "
          "{stage_name: judge, mode: score, buffer: {explorer_input: {default_reward_fn_type: "
          "'tests.stages.test_rescore:characters'}}}, {stage_name: learn, mode: train}]")


def test_a_plan_reads_what_was_explored_and_trains_on_the_new_rewards():
    plan = make_plan(overridden(STAGES))
    stages = {stage.name: stage for stage in plan.stages}
    look, judge, learn = stages["look"], stages["judge"], stages["learn"]
    assert (judge.kind, judge.gpus) == ("scored", 0)
    assert judge.inputs == {"experience": look.directory, "tasks": look.inputs["tasks"], "model": look.inputs["model"]}
    assert learn.inputs["experience"] == judge.directory
    other = make_plan(overridden(STAGES.replace(":characters", ":solved")))
    changed = {one.name for one in other.stages} - {
        one.name for one in other.stages if one.directory in {s.directory for s in plan.stages}}
    assert {"judge", "learn"} <= changed
    assert "look" not in changed


def test_a_stage_that_scores_has_the_tasks_of_the_other():
    sets = "taskset: {name: countdown_train, split: test, limit: 3}"
    named = [(one.key.rpartition(".")[2], one.stages) for one in unfit_order(Recipe(overridden(STAGES.replace(
        "default_reward_fn_type:", f"{sets}, default_reward_fn_type:"))))]
    assert named == [("split", ("judge",)), ("limit", ("judge",))]


def test_what_a_stage_explored_that_trained_is_scored_and_not_trained_on():
    both = STAGES.replace("mode: explore", "mode: both")
    assert {one.stages for one in unfit_order(Recipe(overridden(both)))} == {("learn",)}
    assert unfit_order(Recipe(overridden(both.replace(", {stage_name: learn, mode: train}", "")))) == []


def test_scoring_needs_something_explored():
    (problem,) = unfit_order(Recipe(overridden("stages=[{stage_name: judge, mode: score}]")))
    assert (problem.key, problem.found, problem.stages) == ("mode", "score", ("judge",))


def test_groups_are_compared_as_they_were_explored(score, monkeypatch):
    """t0 and t3, twice each; t2 has no response."""
    seen = []
    monkeypatch.setattr("ouroboros.stages.rescore.add_own_rewards", lambda outcomes, tasks, functions, groups, config: (
        seen.append((len(outcomes), groups))))
    _, before, _ = score(LONGER)
    groups = [r["group_id"] for r in before if r["task_id"] != "t2"]
    assert seen[-1] == (4, groups)
    assert sorted(map(groups.count, set(groups))) == [2, 2]


def test_rewards_of_players_are_not_made_again(score):
    players = "buffer.explorer_input.default_workflow_type=tests.stages.test_explore:two_players"
    with refuses(DataError, "role white"):
        score(LONGER, explored=(players,))
