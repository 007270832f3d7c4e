"""What holds of every advantage: one answer a row, whatever the order of the rows; bad columns are named."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ouroboros.pipeline.settings.declared import ADVANTAGES
from ouroboros.pipeline.store.errors import DataError
from tests.factories import advantage_batch
from tests.golden.messages import refuses

NEEDS = {
    **dict.fromkeys(("asymre", "dr_grpo", "grpo", "grpo_passk", "maxrl", "opmd", "raft", "rec", "rloo"),
                    ("group_id", "reward")),
    "clipb": ("action_mask", "group_id", "reward", "old_logprobs", "entropies"),
    "clipv": ("action_mask", "group_id", "reward", "old_logprobs", "entropies", "mean_scores"),
    "gdpo": ("action_mask", "group_id", "reward_components"),
    "gigpo": ("group_id", "run_index", "turn", "state_hash", "reward"),
    "jsd": ("action_mask", "teacher_logprobs", "old_logprobs"),
    "gpg": ("group_id", "reward"), "opo": ("action_mask", "group_id", "reward"),
    "on_policy_distill": ("action_mask", "teacher_logprobs", "old_logprobs"),
    "ppo": ("action_mask", "values", "reward"),
    "reinforce": ("reward",), "reinforceplusplus": ("action_mask", "reward"),
    "reinforceplusplus_baseline": ("action_mask", "group_id", "reward"),
    "remax": ("action_mask", "baseline_reward", "reward"),
    "rae": ("position", "taskset", "role", "is_candidate", "use_count", "reward"),
    "rlcr": ("group_id", "reward_components"), "step_wise_grpo": ("group_id", "run_index", "turn", "reward"),
}


def random_batch(rows: int, seed: int) -> pa.Table:
    """Groups of four rows, runs of two turns, one to four tokens of which the first may be no action."""
    source = np.random.default_rng(seed)
    masks = [[int(source.integers(2)), *[1] * int(source.integers(1, 4))] for _ in range(rows)]

    def logprobs():
        return [(-source.exponential(size=len(mask))).tolist() for mask in masks]

    return advantage_batch(
        position=[i // 2 for i in range(rows)], taskset=["t"] * rows, role=["a", "a", "b", "b"] * (rows // 4),
        is_candidate=[True] * rows, use_count=[0] * rows,
        group_id=[f"g{i // 4}" for i in range(rows)], run_index=[i % 4 // 2 for i in range(rows)],
        turn=[i % 2 for i in range(rows)], reward=(10 + source.normal(size=rows)).tolist(), action_mask=masks,
        reward_components=[[("accuracy", float(source.integers(2))), ("confidence", source.random())]
                           for _ in range(rows)],
        rollout_logprobs=logprobs(), old_logprobs=logprobs(), teacher_logprobs=logprobs(), values=logprobs(),
        mean_scores=logprobs(), entropies=[[-value for value in row] for row in logprobs()],
        baseline_reward=source.normal(size=rows).tolist(), state_hash=[str(source.integers(2)) for _ in range(rows)])


def answer(name: str, batch: pa.Table) -> dict:
    made = ADVANTAGES[name]()(batch)
    return dict(zip(made["experience_id"].to_pylist(), made["advantage"].to_pylist(), strict=True))


@pytest.mark.parametrize("name", ADVANTAGES)
def test_every_row_has_one_answer_as_long_as_its_response_and_no_rows_have_none(name):
    batch = random_batch(12, seed=0)
    found = answer(name, batch)
    lengths = dict(zip(batch["experience_id"].to_pylist(), map(len, batch["action_mask"].to_pylist()), strict=True))
    assert found.keys() == (lengths.keys() if name != "raft" else found.keys())
    assert all(len(value) == lengths[id_] for id_, value in found.items() if isinstance(value, list))
    assert answer(name, batch.slice(0, 0)) == {}


@settings(max_examples=10, deadline=None)
@given(st.permutations(range(12)), st.sampled_from(sorted(ADVANTAGES)), st.integers(0, 99))
def test_the_order_of_the_rows_changes_nothing(order, name, seed):
    batch = random_batch(12, seed)
    straight, shuffled = answer(name, batch), answer(name, batch.take(pa.array(order)))
    assert straight.keys() == shuffled.keys()
    for id_, value in straight.items():
        assert np.allclose(value, shuffled[id_], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("name", "column"), [(name, column) for name in ADVANTAGES for column in NEEDS[name]])
def test_a_column_that_is_absent_or_null_is_named_with_the_stage_that_makes_it(name, column):
    batch = random_batch(8, seed=1)
    place = batch.column_names.index(column)
    holes = pa.array([None, *batch[column].to_pylist()[1:]], batch[column].type)
    with refuses(DataError, f"'{column}'"):
        answer(name, batch.drop_columns(column))
    with refuses(DataError, f"'{column}'", "1 of 8"):
        answer(name, batch.set_column(place, column, holes))


@pytest.mark.parametrize("name", [name for name in ADVANTAGES if "reward" in NEEDS[name]])
@pytest.mark.parametrize("reward", [float("nan"), float("inf"), float("-inf")])
def test_a_reward_that_is_no_number_is_refused_with_its_row(name, reward):
    batch = random_batch(8, seed=1)
    rewards = pa.array([*batch["reward"].to_pylist()[:-1], reward])
    batch = batch.set_column(batch.column_names.index("reward"), "reward", rewards)
    with refuses(DataError, "'reward' is", "in row e7,"):
        answer(name, batch)
