"""Explorer steps whose groups are replaced, or have a greedy response beside them: rows, and what is cut from them."""

import hashlib

import pytest

from ouroboros.pipeline.store import files, records, tables
from ouroboros.pipeline.store.errors import StageError
from ouroboros.stages.explorer.groups import tail
from ouroboros.stages.follow import TOTAL
from ouroboros.stages.learner.batches.recorded import Recorded
from ouroboros.stages.learner.batches.rollouts import Rollouts
from ouroboros.workflows.protocol.engine import Request
from tests.golden.messages import refuses, wording
from tests.stages.conftest import publish_model

# tasks of each kind, by what their responses are rewarded with; three tasks four times an explorer step
KINDS = ("always", "chance", "always", "chance", "always", "chance", "always", "chance")
SMALL = ("buffer.batch_size=3", "algorithm.repeat_times=4", "buffer.total_steps=4", "synchronizer.sync_offset=0",
         "synchronizer.sync_timeout=10", "explorer.max_failed_ratio=0.5",
         "buffer.explorer_input.default_reward_fn_type=tests.stages.test_groups:by_kind")
COLUMNS = ("slot", "status", "resample_round")


def by_kind(response, answer):
    """always: right; never: wrong; chance: right for half of all texts; broken: no judgement."""
    if answer == "broken":
        raise ValueError("no judgement")
    even = hashlib.sha256(response.encode()).digest()[0] % 2
    return {"accuracy": {"always": 1.0, "never": 0.0, "chance": float(even)}[answer]}


@pytest.fixture
def stage(of_kinds):
    return lambda *overrides, kinds=KINDS, life="first": of_kinds(kinds, *SMALL, *overrides, life=life)


def explored(context, number=1):
    """The rows of an explorer step, by slot, and its record."""
    explorer = publish_model(context, 0)
    rollout = explorer.step(number)
    explorer.writer.finish()
    table = tables.read(tables.step_file(context.directory, "experience", number), records.Experience)
    return table.drop(["unix_seconds"]).to_pylist(), rollout


@pytest.mark.parametrize(("ends", "seconds"), [([], 0.0), ([3.0], 0.0), ([*range(20)], 2.0), ([1.0] * 9 + [8.0], 7.0)])
def test_the_tail_of_a_step(ends, seconds):
    """Of 20 attempts 18 have ended after 17 seconds, all after 19."""
    assert tail(ends) == seconds


def test_groups_that_teach_nothing_are_replaced_beside_the_others(stage):
    """The step takes tasks 0, 1, 2: always, chance, always. 0 and 2 are given up, and what comes for them is another
    task; only responses that differ are left in the first 12 slots."""
    rows, rollout = explored(stage("algorithm.max_resample_rounds=10"))
    assert [r["slot"] for r in rows] == list(range(len(rows)))
    assert (rollout.rows, rollout.failed_rows, rollout.missing_groups) == (12, 0, 0)
    assert {r["status"] for r in rows[:12]} == {"ok"}
    assert {r["status"] for r in rows[12:]} == {"no_variance"}
    assert len(rows) == 12 + 4 * rollout.resampled_groups
    assert rollout.resample_rounds == max(r["resample_round"] for r in rows) >= 1
    assert rollout.tokens == sum(len(r["response_tokens"]) for r in rows)
    groups = {r["group_id"]: [o["accuracy"] for o in rows if o["group_id"] == r["group_id"]] for r in rows}
    assert {len(set(values)) for group, values in groups.items() if group in {r["group_id"] for r in rows[:12]}} == {2}
    first = [r for r in rows if r["resample_round"] == 0]
    assert {(r["group_id"], r["task_id"]) for r in first} == {("1/0", "t0"), ("1/1", "t1"), ("1/2", "t2")}
    assert {r["task_id"] for r in rows if r["resample_round"] == 1}.isdisjoint({"t0", "t1", "t2"})
    assert len({r["experience_id"] for r in rows}) == len({r["seed"] for r in rows}) == len(rows)
    again = next(r for r in rows if r["resample_round"] == 1)
    place = again["group_id"].removeprefix("1/").removesuffix(".1")
    assert again["experience_id"].endswith(f"/1/{place}.1/{again['run_index']}")


def test_a_step_that_was_cut_off_is_made_again_with_the_same_rows(stage):
    """Nothing is kept between rounds but what the weights, the seed and the step say."""
    first, _ = explored(stage("algorithm.max_resample_rounds=3"))
    again, _ = explored(stage("algorithm.max_resample_rounds=3", life="again"))
    assert len(first) > 12
    assert first == again


def test_without_rounds_the_rows_are_those_that_were_asked_first(stage):
    plain, rollout = explored(stage("algorithm.max_resample_rounds=0"))
    assert (len(plain), rollout.resampled_groups, rollout.resample_rounds, rollout.missing_groups) == (12, *[None] * 3)
    assert {r["status"] for r in plain} == {"ok"}
    resampled, _ = explored(stage("algorithm.max_resample_rounds=3", life="other"))
    seeds = {(r["group_id"], r["run_index"]): (r["seed"], r["response"]) for r in resampled}
    assert all(seeds[r["group_id"], r["run_index"]] == (r["seed"], r["response"]) for r in plain)


def test_what_is_missing_is_left_out_of_the_batch_and_counted(stage):
    """One task in eight teaches something, and the number of rounds is limited."""
    context = stage("algorithm.max_resample_rounds=1", kinds=("chance", *["always"] * 7))
    rows, rollout = explored(context)
    assert (rollout.resampled_groups, rollout.resample_rounds, rollout.missing_groups) == (2, 1, 2)
    assert [r["status"] for r in rows] == ["ok"] * 4 + ["no_variance"] * 16
    source = Rollouts(context)
    batch = source.with_advantages(source.cut(1))
    assert [r.id for r in batch.rows] == [r["experience_id"] for r in rows[:4]]
    metrics, (explored_step,) = batch.metrics, batch.explored
    assert (metrics.failed_rows, explored_step.resampled_groups, explored_step.missing_groups) == (0, 2, 2)
    assert metrics.zero_variance_groups == 0


def test_a_step_without_any_group_left_names_what_is_missing(stage):
    context = stage("algorithm.max_resample_rounds=2", kinds=["never"] * 4)
    rows, rollout = explored(context)
    assert (len(rows), rollout.missing_groups) == (12 * 3, 3)
    with refuses(StageError, "12 needed", "12 are", "no_variance: 3", "2 round"):
        Rollouts(context).cut(1)


def test_tasks_that_cannot_be_rewarded_are_replaced_too_and_stay_failures(stage):
    """Asked first: broken, chance, chance. The row of a failure behind the batch is no failed row of the batch."""
    rows, rollout = explored(stage("algorithm.max_resample_rounds=10", kinds=("broken", *["chance"] * 7)))
    assert {r["status"] for r in rows[:12]} == {"ok"}
    assert [r["status"] for r in rows if r["task_id"] == "t0"] == ["reward_failed"] * 4
    assert rollout.failed_rows == 0


def test_what_was_explored_alone_is_trained_on_later_without_the_rows_behind_it(stage, tmp_path, context_of):
    """Two steps, a batch of both: rows of groups that were given up stand between, neither trained nor failed."""
    context = stage("mode=explore", "algorithm.max_resample_rounds=1", "explorer.max_failed_ratio=1",
                    kinds=("broken", *["chance"] * 5, "always"))
    made = [explored(context, number)[0] for number in (1, 2)]
    assert [len(rows) for rows in made] != [12, 12]
    source = Recorded(context_of(tmp_path / "learn", "buffer.train_batch_size=24", "buffer.total_steps=1",
                                 experience=context.directory))
    batch = source.with_advantages(source.cut(1))
    cut = [r for rows in made for r in rows[:12]]
    assert [r.id for r in batch.rows] == [r["experience_id"] for r in cut if r["status"] == "ok"]
    assert batch.metrics.failed_rows == sum(r["status"] == "reward_failed" for r in cut)


def test_colocated_the_device_is_given_back_after_the_last_round(stage, monkeypatch):
    context = stage("mode=colocate", "algorithm.max_resample_rounds=2", kinds=["never"] * 4)
    files.write_json(context.directory / TOTAL, {"total_steps": 4, "overlap": False})
    explorer, seen = publish_model(context, 0), []
    submit = explorer.engine.submit
    monkeypatch.setattr(explorer.engine, "submit", lambda r: seen.append(len(r)) or submit(r))
    monkeypatch.setattr(explorer.engine, "sleep", lambda: seen.append("asleep"))
    explorer.step(1)
    explorer.writer.finish()
    assert seen == [12, 12, 12, "asleep"]


REMAX = ("algorithm.algorithm_type=remax", "algorithm.advantage_fn=remax", "algorithm.greedy_baseline=true")


def test_a_greedy_response_stands_beside_each_group_and_its_reward_is_the_baseline(stage):
    """12 rows to train on and 3 beside them; advantages are the row's reward less that of its group's greedy one."""
    context = stage(*REMAX, kinds=["chance"] * 8)
    rows, rollout = explored(context)
    assert (len(rows), rollout.rows) == (15, 12)
    greedy = rows[12:]
    assert [(r["status"], r["run_index"], r["temperature"]) for r in greedy] == [("baseline", 4, 0.0)] * 3
    assert [r["group_id"] for r in greedy] == ["1/0", "1/1", "1/2"]
    engine = publish_model(context, 0).engine
    asked = [Request(r["prompt_tokens"], 24, 0.0, 1.0, -1, 0) for r in greedy]
    assert [reply.tokens for reply in engine.generate(asked)] == [r["response_tokens"] for r in greedy]
    rewards = {r["group_id"]: r["reward"] for r in greedy}
    source = Rollouts(context)
    batch = source.with_advantages(source.cut(1))
    assert [r.id for r in batch.rows] == [r["experience_id"] for r in rows[:12]]
    found = [(set(one.columns["advantages"]), one.mask) for one in batch.rows]
    assert found == [({r["reward"] - rewards[r["group_id"]]}, [1] * len(r["response_tokens"])) for r in rows[:12]]
    assert batch.metrics.failed_rows == 0


def test_the_sampled_responses_are_those_without_a_baseline(stage):
    with_baseline, _ = explored(stage(*REMAX))
    without, _ = explored(stage("algorithm.advantage_fn=reinforce", life="other"))
    assert [r["response_tokens"] for r in with_baseline[:12]] == [r["response_tokens"] for r in without]


def test_a_group_whose_greedy_response_cannot_be_rewarded_has_no_baseline(stage, monkeypatch):
    """The judge fails on greedy responses alone: those of the first task."""
    from ouroboros.stages.explorer import groups

    reward = groups.add_own_rewards

    def failing(outcomes, *others):
        reward(outcomes, *others)
        outcomes[12].fail("reward_failed", "no judgement")

    monkeypatch.setattr(groups, "add_own_rewards", failing)
    context = stage(*REMAX)
    rows, rollout = explored(context)
    assert [r["status"] for r in rows] == ["reward_failed"] * 4 + ["ok"] * 8 + ["reward_failed", "baseline", "baseline"]
    wording(rows[0]["reason"], "judgement")
    assert (rows[0]["reward"], rollout.failed_rows) == (None, 4)
    source = Rollouts(context)
    assert len(source.with_advantages(source.cut(1)).rows) == 8


def test_rewards_know_the_group_of_each_response_also_of_equal_prompts(stage, monkeypatch):
    """Three tasks, four times each; a function that compares sees three groups, whatever their prompts."""
    from ouroboros.stages.explorer import groups

    reward, seen = groups.add_own_rewards, []

    def watched(outcomes, tasks, functions, members, config):
        seen.append(members)
        reward(outcomes, tasks, functions, members, config)

    monkeypatch.setattr(groups, "add_own_rewards", watched)
    monkeypatch.setattr("ouroboros.workflows.rewards.task_turns",
                        lambda task, config: [{"role": "user", "content": "the same"}])
    explored(stage())
    assert seen == [["0"] * 4 + ["1"] * 4 + ["2"] * 4]
