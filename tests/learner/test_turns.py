"""Train batches of attempts that are several rows, one for each turn, and of rows that a teacher has read."""

import numpy as np
import pytest

from ouroboros.pipeline.store import records, tables
from ouroboros.pipeline.store.errors import DataError
from ouroboros.stages.learner.batches.rollouts import Rollouts, _with_estimates
from ouroboros.stages.learner.penalty import penalised
from tests.factories import row
from tests.golden.messages import refuses
from tests.learner.test_rollouts import SMALL


@pytest.fixture
def stage(tmp_path, context_of):
    """stage("key=value", ...): the context of an rft stage with two train tasks, each attempted twice a step."""
    tasks = [row(records.Task, task_id=f"t{i}", row=i, split="train") for i in range(2)]
    tables.write(tmp_path / "curate" / "tasks.parquet", records.Task, tasks)
    return lambda *overrides: context_of(tmp_path / "rft", *SMALL, *overrides, tasks=tmp_path / "curate")


def batch_of(context):
    source = Rollouts(context)
    return source.with_advantages(source.cut(1))


TURNS = [("a", 0, 0, 0, 0.0), ("b", 0, 1, 1, 1.0), ("c", 0, 1, 0, 1.0), ("d", 1, 0, 0, 1.0), ("e", 1, 1, 1, 1.0),
         ("f", 1, 1, 0, 1.0)]  # id, group, run, turn, reward: two groups of two runs; the second run has two turns


def explore_turns(context, state="s", step=1):
    """Both groups' runs as turns, out of order in the file; every row answers two tokens."""
    made = [row(records.Experience, experience_id=name, step=step, slot=2 * group + run, group_id=f"{step}/{group}",
                run_index=run, turn=turn, state_hash=state and f"{state}{turn}", prompt_tokens=[7],
                response_tokens=[9, 9], rollout_logprobs=[-0.5] * 2, action_mask=[1, 1], reward=reward, accuracy=reward,
                status="ok")
            for name, group, run, turn, reward in TURNS]
    tables.write(tables.step_file(context.directory, "experience", step), records.Experience, made)
    tables.write(tables.step_file(context.directory, "rollouts", step), records.Rollout,
                 [row(records.Rollout, step=step, rows=6, attempts=4)])


def test_all_turns_of_an_attempt_are_in_its_batch_in_order(stage):
    """Half a step is two attempts: one group, three rows. Rewards of its runs 0 and 1, so +-0.7071 to every turn."""
    context = stage("buffer.train_batch_size=2", "algorithm.algorithm_type=multi_step_grpo")
    explore_turns(context)
    source = Rollouts(context)
    batch = source.with_advantages(source.cut(1))
    assert [r.id for r in batch.rows] == ["a", "c", "b"]
    assert [r.columns["advantages"] for r in batch.rows] == pytest.approx([-0.7071, 0.7071, 0.7071], abs=1e-4)
    assert [r.id for r in source.with_advantages(source.cut(2)).rows] == ["d", "f", "e"]
    assert (batch.metrics.reward, batch.metrics.solve_rate) == (0.5, 0.5)  # by attempts; by rows it would be 2/3


def test_a_penalty_of_any_turn_is_taken_off_the_attempts_reward(stage):
    """k1 = 0.5 a token in turn c alone, two tokens, coefficient 0.2: run 1 of group 0 keeps 1 - 0.2 in both its turns.
    Rewards 0 and 0.8 of the group: still +-0.7071. Group 1: f loses nothing."""
    context = stage("algorithm.algorithm_type=multi_step_grpo", "algorithm.kl_penalty_fn=k1",
                    "algorithm.kl_penalty_fn_args.kl_coef=0.2")
    explore_turns(context)
    source = Rollouts(context)
    cut = source.cut(1)
    for row_ in cut.rollouts:
        row_.columns["ref_logprobs"] = np.full(2, -1.0 if row_.id == "c" else -0.5, np.float32)
    table, kl = penalised(_with_estimates(cut), source.penalty)
    assert dict(zip(table["experience_id"].to_pylist(), table["reward"].to_pylist(), strict=True)) == pytest.approx(
        {"a": 0.0, "c": 0.8, "b": 0.8, "d": 1.0, "f": 1.0, "e": 1.0})
    assert kl == pytest.approx(0.5 * 2 / 12)


def test_gigpo_compares_turns_that_begin_in_the_same_state(stage):
    """Group 0: runs' rewards 0 and 1, so -+1/2. State s0: turns a (gain 0) and c (gain 1, its run's reward to come):
    -+1/2 too. State s1: b alone, 0."""
    context = stage("algorithm.algorithm_type=gigpo")
    explore_turns(context)
    advantages = {r.id: r.columns["advantages"] for r in batch_of(context).rows}
    assert advantages == pytest.approx({"a": -1.0, "c": 1.0, "b": 0.5, "d": 0.0, "f": 0.0, "e": 0.0})


def test_without_states_gigpo_says_who_makes_them(stage):
    context = stage("algorithm.algorithm_type=gigpo")
    explore_turns(context, state=None)
    with refuses(DataError, "'state_hash'", "6 of 6"):
        batch_of(context)


def test_distillation_takes_the_teachers_column_and_measures_the_divergence(stage):
    """log-probs -0.5 of the policy, -1.0 of the teacher: A = -0.5 everywhere, and 0.5 nats a token."""
    context = stage("algorithm.algorithm_type=on_policy_distill")
    explore_turns(context)
    source = Rollouts(context)
    cut = source.cut(1)
    for row_ in cut.rollouts:
        row_.columns["teacher_logprobs"] = np.full(len(row_.mask), -1.0, np.float32)
    batch = source.with_advantages(cut)
    assert batch.rows[2].columns["advantages"] == pytest.approx([-0.5] * 2)
    assert batch.metrics.teacher_kl == pytest.approx(0.5)
