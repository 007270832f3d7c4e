"""Explorer steps whose tasks are chosen by features, or by what earlier steps measured."""

import re
from pathlib import Path

import pytest

from ouroboros.pipeline.settings.data import DataSelector
from ouroboros.pipeline.store import records, tables
from ouroboros.pipeline.store.errors import DataError
from ouroboros.stages.explorer.profiles import write_profile
from ouroboros.stages.explorer.selections import measured
from tests.factories import row
from tests.stages.conftest import publish_model

SMALL = ("buffer.batch_size=2", "algorithm.repeat_times=4", "buffer.total_steps=4", "synchronizer.sync_interval=100",
         "buffer.explorer_input.default_reward_fn_type=tests.stages.test_groups:by_kind")
KINDS = ("never", "chance", "always", "chance", "always")


@pytest.fixture
def stage(of_kinds):
    """stage(selector settings, "key=value", ...): a context with five tasks, of a feature each."""

    def make(selector, *overrides, life="first", features=(0.1, 0.9, 0.5, 0.7, 0.3)):
        context = of_kinds(KINDS, *SMALL, *overrides, life=life, features=[
            [("rate", value)] if value is not None else None for value in features])
        context.config.buffer.explorer_input.taskset.data_selector = DataSelector(**selector)
        return context

    return make


def explore(context, first, last):
    explorer = publish_model(context, 0)
    for step in range(first, last + 1):
        explorer.step(step)
    explorer.writer.finish()


def chosen(context, step):
    return tables.read(tables.step_file(context.directory, "selection", step), records.Selection).to_pylist()


def test_easy_tasks_come_first_and_the_table_says_so(stage):
    context = stage({"selector_type": "offline_easy2hard", "feature_keys": ["rate"]})
    explore(context, 1, 3)
    rows = [one for step in (1, 2, 3) for one in chosen(context, step)]
    assert [one["task_id"] for one in rows] == ["t1", "t3", "t2", "t4", "t0", "t1"]
    assert [one["score"] for one in rows] == [0.9, 0.7, 0.5, 0.3, 0.1, 0.9]
    assert {one["selector"] for one in rows} == {"offline_easy2hard"}
    experience = tables.read(tables.step_file(context.directory, "experience", 1), records.Experience).to_pylist()
    assert {(one["group_id"], one["task_id"]) for one in experience} == {
        (one["group_id"], one["task_id"]) for one in chosen(context, 1)}


@pytest.mark.parametrize(("offset", "until"), [(0, [None, 1, 2, 3]), (2, [None, None, None, 1])])
def test_a_step_knows_the_experience_that_is_surely_there_and_a_resumed_stage_the_same(stage, offset, until):
    selector = {"selector_type": "solve_rate_pools", "kwargs": {"solved_weight": 0.0, "hard_weight": 0.0}}
    given = f"synchronizer.sync_offset={offset}"
    whole, parts = stage(selector, given), stage(selector, given, life="second")
    explore(whole, 1, 4)
    explore(parts, 1, 2)
    explore(parts, 3, 4)
    made = [chosen(whole, step) for step in range(1, 5)]
    assert made == [chosen(parts, step) for step in range(1, 5)]
    assert [{one["measured_until"] for one in rows} for rows in made] == [{one} for one in until]
    for rows, last in zip(made, until, strict=True):
        known = {}
        for step in range(1, (last or 0) + 1):
            known |= measured(whole.directory, step, 4)
        assert [one["rate"] for one in rows] == [known.get((one["taskset"], one["task_id"])) for one in rows]
        assert all(one["reason"] == "unseen" for one in rows if one["rate"] is None)


def test_a_rate_is_the_accuracy_of_a_task_whatever_other_sets_are_rewarded_by(tmp_path):
    """(1 + 0) / 2 of a set with accuracies, beside one whose rewards 0.5 and 1 are all there is."""
    made = [row(records.Experience, slot=slot, taskset=name, task_id="t", run_index=slot % 2, status="ok",
                reward=reward, accuracy=accuracy)
            for slot, (name, reward, accuracy) in enumerate([
                ("exact", 1.5, 1.0), ("exact", -0.5, 0.0), ("free", 0.5, None), ("free", 1.0, None)])]
    tables.write(tables.step_file(tmp_path, "experience", 1), records.Experience, made)
    assert measured(tmp_path, 1, 2) == {("exact", "t"): 0.5, ("free", "t"): 0.75}


def test_a_rate_of_players_is_the_mean_of_their_rewards_and_not_that_of_the_last_mover(tmp_path):
    """White moves twice and earns 1, black 0: 0.5 of the first attempt; of the second, which white has alone, 1."""
    moves = [(0, "white", 1.0), (0, "black", 0.0), (0, "white", 1.0), (1, "white", 1.0)]
    made = [row(records.Experience, step=1, slot=slot, turn=turn, taskset="s", task_id="t", run_index=slot, status="ok",
                role=role, reward=reward) for turn, (slot, role, reward) in enumerate(moves)]
    tables.write(tables.step_file(tmp_path, "experience", 1), records.Experience, made)
    tables.write(tables.step_file(tmp_path, "rollouts", 1), records.Rollout, [row(records.Rollout, step=1)])
    assert measured(tmp_path, 1, 2) == {("s", "t"): 0.75}
    write_profile(tmp_path, 2)
    (found,) = tables.read(tmp_path / "profile.parquet", records.Profile).to_pylist()
    assert (found["attempts"], found["avg_at_k"], found["pass_at_k"]) == (2, 0.75, 1.0)


def test_the_query_of_the_guide_gives_the_rates_of_every_task(stage):
    """Five tasks in five steps of one, in the order of the file."""
    page = (Path(__file__).parents[2] / "docs" / "modes.md").read_text()
    (query,) = (block for block in re.findall(r"```sql\n(.*?)```", page, re.S) if "profile AS p" in block)
    context = stage({"selector_type": "sequential"}, "buffer.batch_size=1", "buffer.total_steps=5")
    explore(context, 1, 5)
    write_profile(context.directory, 4)
    session = tables.connect([("run", context.directory), ("run", context.inputs["tasks"])])
    found = session.sql(query).fetchall()
    rates = {f"{int(task[1:])} + {int(task[1:])}": rate for step in range(1, 6)
             for (_, task), rate in measured(context.directory, step, 4).items()}
    assert {question: rate for question, _, rate, _, _ in found} == rates
    assert len(rates) == 5
    best = {answer: best for _, answer, _, best, _ in found}
    assert (best["never"], best["always"]) == (0.0, 1.0)
    assert {attempts for *_, attempts in found} == {4}


def test_rates_that_an_earlier_stage_measured_are_features(stage, tmp_path, tiny_model):
    """Tasks t2 and t4 are always solved, t0 never; one that the stage did not attempt is an error."""
    look = stage({"selector_type": "sequential"}, "buffer.batch_size=1", "buffer.total_steps=5", life="look")
    explore(look, 1, 5)
    assert write_profile(look.directory, 4) == 5
    table = tables.read(look.directory / "profile.parquet", records.Profile).to_pylist()
    rates = {task: rate for step in range(1, 6) for (_, task), rate in measured(look.directory, step, 4).items()}
    assert {one["task_id"]: one["avg_at_k"] for one in table} == rates
    assert [(one["attempts"], one["rewarded"]) for one in table] == [(4, 4)] * 5
    assert [table[place]["pass_at_k"] for place in (0, 2)] == [0.0, 1.0]
    selector = {"selector_type": "offline_easy2hard", "feature_keys": ["stages.look.avg_at_k"]}
    context = stage(selector, "buffer.batch_size=5")
    context.inputs["profile_look"] = look.directory
    explore(context, 1, 1)
    assert [one["score"] for one in chosen(context, 1)] == sorted(rates.values(), reverse=True)
    late = stage(selector, life="late")
    late.inputs["profile_look"] = look.directory
    for left, is_of_steps in ((table[1:], True), ([one | {"taskset": "sums"} for one in table], False)):
        tables.write(look.directory / "profile.parquet", records.Profile, [records.Profile(**one) for one in left])
        with pytest.raises(DataError) as error:
            publish_model(late, 0)
        assert ("buffer.total_steps" in str(error.value), "sums" in str(error.value)) == (is_of_steps, not is_of_steps)


def test_an_attempt_that_failed_does_not_count_and_a_task_of_such_alone_has_no_rate(tmp_path):
    """t: accuracies 1 and 0 of three attempts, its greedy one aside; u: no attempt was rewarded; v: rewards alone."""
    made = [row(records.Experience, step=1, slot=slot, taskset="s", task_id=task, run_index=run, status=status,
                reward=reward, accuracy=accuracy) for slot, (task, run, status, reward, accuracy) in enumerate([
                    ("t", 0, "ok", 5.0, 1.0), ("t", 1, "ok", 5.0, 0.0), ("t", 2, "reward_failed", 0.0, None),
                    ("u", 0, "reward_failed", 0.0, None), ("v", 0, "ok", 0.5, None), ("v", 1, "ok", 0.25, 1.0),
                    ("t", 3, "ok", 1.0, 1.0)])]
    tables.write(tables.step_file(tmp_path, "experience", 1), records.Experience, made)
    tables.write(tables.step_file(tmp_path, "rollouts", 1), records.Rollout, [row(records.Rollout, step=1)])
    write_profile(tmp_path, 3)
    found = tables.read(tmp_path / "profile.parquet", records.Profile).to_pylist()
    assert [(one["task_id"], one["attempts"], one["rewarded"], one["avg_at_k"], one["pass_at_k"]) for one in found] == [
        ("t", 3, 2, 0.5, 1.0), ("u", 1, 0, None, None), ("v", 2, 2, 0.375, 0.5)]


def test_a_set_without_a_feature_is_refused_and_one_without_a_selector_has_no_table(stage):
    with pytest.raises(DataError) as error:
        publish_model(stage({"selector_type": "offline_easy2hard", "feature_keys": ["rate"]},
                            features=(None, 0.9, 0.5, 0.7, 0.3)), 0)
    assert "rate" in str(error.value)
    with pytest.raises(DataError):
        publish_model(stage({"selector_type": "difficulty_based", "feature_keys": ["rate", "rate2"]}), 0)
    context = stage({"selector_type": "random"}, life="third")
    explore(context, 1, 1)
    assert tables.steps_present(context.directory, "selection") == []
