"""Attempts of several rows: counted once where rewards are compared, one sequence where returns are summed."""

import math

import numpy as np
import pyarrow as pa
import pytest

from ouroboros.operators.advantages import group, token
from ouroboros.operators.terms import KLTerm
from ouroboros.pipeline.settings.declared import ADVANTAGES
from ouroboros.pipeline.store.errors import DataError
from ouroboros.stages.learner.penalty import penalised
from tests.factories import advantage_batch, called
from tests.golden.messages import refuses
from tests.learner.test_penalty import table

asymre, dr_grpo, grpo, opmd, raft, rec, rloo = map(called, (
    group.Asymre, group.DrGrpo, group.Grpo, group.Opmd, group.Raft, group.Rec, group.Rloo))
ppo, reinforceplusplus, remax = map(called, (token.Ppo, token.Reinforceplusplus, token.Remax))


def runs(*given, group="g", **columns):
    """given: (reward, rows) of each attempt, its rows from the last turn to the first; only the last has the reward."""
    made = [(run, turn, reward if turn == count - 1 else 9.0)
            for run, (reward, count) in enumerate(given) for turn in reversed(range(count))]
    run_index, turn, reward = map(list, zip(*made, strict=True))
    return advantage_batch(group_id=[group] * len(made), run_index=run_index, turn=turn, reward=reward, **columns)


def by_run(made, batch) -> dict[int, list]:
    """The advantages of the rows of each attempt, as often as they are given."""
    run_of = dict(zip(batch["experience_id"].to_pylist(), batch["run_index"].to_pylist(), strict=True))
    found: dict[int, list] = {}
    for id_, value in zip(made["experience_id"].to_pylist(), made["advantage"].to_pylist(), strict=True):
        found.setdefault(run_of[id_], []).append(value)
    return found


@pytest.mark.parametrize(("function", "arguments", "first", "others"), [
    (grpo, {}, 1.5, -0.5), (dr_grpo, {}, 0.75, -0.25), (rloo, {}, 1.0, -1 / 3), (opmd, {}, 0.75, -0.25),
    (asymre, {}, 0.85, -0.15), (rec, {}, 0.75, -0.25),
    (opmd, {"opmd_baseline": "logavgexp"}, 1 - math.log((math.e + 3) / 4), -math.log((math.e + 3) / 4)),
    (rec, {"std_normalize": True}, 0.75 / math.sqrt(3 / 16), -0.25 / math.sqrt(3 / 16))])
def test_an_attempt_counts_once_however_many_rows_it_has(function, arguments, first, others):
    """1 in five rows, 0 0 0 in one each: mean 1/4, std sqrt((9 + 3) / 16 / 3) = 1/2, so 1.5 to each of the five; by
    rows it would be 5/8, 0.5175 and 0.72. The population std is sqrt(3) / 4."""
    batch = runs((1.0, 5), (0.0, 1), (0.0, 1), (0.0, 1))
    found = by_run(function(batch, **arguments), batch)
    assert found[0] == pytest.approx([first] * 5, abs=5e-6)
    assert [*found[1], *found[2], *found[3]] == pytest.approx([others] * 3, abs=5e-6)


def test_the_best_attempt_is_kept_and_balance_counts_attempts_with_all_of_their_rows():
    batch = runs((0.0, 2), (1.0, 3), (0.5, 1))
    assert by_run(raft(batch), batch) == {1: [1.0] * 3}
    # One attempt at least at the mean of 1/3, in three rows, and two below: one of them is kept, with all its rows.
    batch = runs((1.0, 3), (0.0, 2), (0.0, 2))
    found = by_run(rec(batch, drop="balance"), batch)
    assert found[0] == [0.5] * 3
    assert sorted([found[1], found[2]]) == [[-0.5, -0.5], [0.0, 0.0]]


def test_the_std_of_the_batch_is_over_attempts():
    """1 in three rows, 0, 3 and 3: mean 7/4, std 3/2 (see grpo of single rows): gaps of 1/2 become 1/3."""
    one, two = runs((1.0, 3), (0.0, 1)), runs((3.0, 1), (3.0, 2), group="h")
    both = advantage_batch(**{name: one[name].to_pylist() + two[name].to_pylist()
                              for name in ("group_id", "run_index", "turn", "reward")})
    found = grpo(both, std_cal_level="batch").sort_by("experience_id")["advantage"].to_pylist()
    assert found == pytest.approx([1 / 3] * 3 + [-1 / 3] + [0] * 3, abs=1e-6)


def test_a_group_of_one_attempt_is_left_out_and_drawn_ones_come_with_all_their_rows():
    """Group g: 1 in two rows and 0; h: one attempt in three rows, which is no group to compare; g comes twice."""
    one, two = runs((1.0, 2), (0.0, 1)), runs((1.0, 3), group="h")
    both = advantage_batch(**{name: one[name].to_pylist() + two[name].to_pylist()
                              for name in ("group_id", "run_index", "turn", "reward")})
    assert sorted(grpo(both, std_threshold=0)["experience_id"].to_pylist()) == ["e0", "e1", "e2"]
    drawn = grpo(both, std_threshold=0, duplicate_experiences=True)["experience_id"].to_pylist()
    assert sorted(drawn) == ["e0", "e0", "e1", "e1", "e2", "e2"]


def test_a_rank_is_of_the_attempts_mean_log_prob():
    """Rewards 1 and 1. Attempt 0: tokens -3, -3 and -1 in two rows, -7/3 on average; attempt 1: -2, the likelier one,
    worth 3/4 at a penalty of 1/2. By its last row alone attempt 0 would be."""
    batch = runs((1.0, 2), (1.0, 1), action_mask=[[1, 0], [1, 1], [1]],
                 rollout_logprobs=[[-1.0, 9.0], [-3.0, -3.0], [-2.0]])
    found = by_run(grpo(batch, rank_penalty=0.5), batch)
    assert found == {0: pytest.approx([math.sqrt(0.5)] * 2, abs=1e-5), 1: pytest.approx([-math.sqrt(0.5)], abs=1e-5)}


def test_gae_runs_through_the_turns():
    """V = 0.2 throughout, gamma 1, lam 1/2, reward 1 at the end of the second row. A return is 0.2 / 2 plus half of the
    next: 1, 0.6, 0.4. A row for itself would have 1 and 0.6 in the first turn."""
    batch = advantage_batch(group_id=["g"] * 2, run_index=[0, 0], turn=[1, 0], reward=[1.0, 1.0],
                            action_mask=[[0, 1], [1, 0, 1]], values=[[math.nan, 0.2], [0.2, 7.0, 0.2]])
    made = ppo(batch, lam=0.5)
    assert made["returns"].to_pylist() == [pytest.approx([0, 1.0]), pytest.approx([0.4, 0, 0.6])]
    gains = np.array([0.8, 0.2, 0.4])
    wanted = (gains - gains.mean()) / gains.std(ddof=1)
    (_, last), (first, _, second) = made["advantage"].to_pylist()
    assert [last, first, second] == pytest.approx(wanted, abs=1e-6)


def test_the_value_of_the_next_turn_is_bootstrapped_from():
    """lam 0, gamma 1/2: a return is half the next value: V = 0.2, 0.6 in turn 0 and 0.8 in turn 1, reward 1."""
    batch = advantage_batch(group_id=["g"] * 2, run_index=[0, 0], turn=[0, 1], reward=[1.0, 1.0],
                            action_mask=[[1, 1], [1]], values=[[0.2, 0.6], [0.8]])
    assert ppo(batch, gamma=0.5, lam=0)["returns"].to_pylist() == [pytest.approx([0.3, 0.4]), [1.0]]


def test_a_discount_runs_through_the_turns_and_the_reward_is_the_last_rows():
    """gamma 1/2, three action tokens in two rows and one in another attempt: 1/4, 1/2, 1 and -1."""
    batch = advantage_batch(group_id=["g"] * 3, run_index=[0, 0, 1], turn=[0, 1, 0], reward=[5.0, 1.0, -1.0],
                            action_mask=[[1, 0, 1], [1], [1]])
    made = reinforceplusplus(batch, gamma=0.5)
    assert made["returns"].to_pylist() == [[0.25, 0, 0.5], [1.0], [-1.0]]


def test_rewards_of_single_tokens_in_the_last_turn_reach_the_tokens_before():
    """The last turn earns 1 and, after a token of the environment, 2; the turn before it nothing of its own. gamma 1/2:
    2, 1 + 2/2 = 2, 1. The other attempt's -1 is on its last action. The sums less a greedy reward of 1/2: 3, 3, 2."""
    batch = advantage_batch(group_id=["g"] * 3, run_index=[0, 0, 1], turn=[0, 1, 0], reward=[3.0, 3.0, -1.0],
                            action_mask=[[1], [1, 0, 1], [1, 1]], token_rewards=[None, [1.0, 9.0, 2.0], None])
    assert reinforceplusplus(batch, gamma=0.5)["returns"].to_pylist() == [[1.0], [2.0, 0.0, 2.0], [-0.5, -1.0]]
    greedy = batch.append_column("baseline_reward", pa.array([0.5] * 3))
    assert remax(greedy)["advantage"].to_pylist() == [[2.5], [2.5, 0.0, 1.5], [-1.5, -1.5]]


def test_a_last_row_without_an_action_leaves_the_reward_on_the_attempts_last_action():
    batch = advantage_batch(group_id=["g"] * 2, run_index=[0, 0], turn=[0, 1], reward=[1.0, 1.0],
                            action_mask=[[1, 1], [0]])
    assert reinforceplusplus(batch, gamma=0.5)["returns"].to_pylist() == [[0.5, 1.0], [0.0]]


def test_a_penalty_of_a_later_turn_reaches_the_earlier_ones():
    """Reward 1 in two turns of one token, k1 = 0.5 in the second, coefficient 0.2: 0.9 to come from either; the greedy
    response had 0.5."""
    batch = table([[0.0], [0.5]], group_id=["a"] * 2, run_index=[0, 0], turn=[0, 1], position=[0, 0],
                  baseline_reward=[0.5] * 2)
    left, _ = penalised(batch, KLTerm("k1", kl_coef=0.2))
    assert left["token_rewards"].to_pylist() == [[0.0], [pytest.approx(0.9)]]
    assert left["reward"].to_pylist() == pytest.approx([0.9, 0.9])
    assert remax(left)["advantage"].to_pylist() == [pytest.approx([0.4]), pytest.approx([0.4])]


def single(rows: int, seed: int) -> dict[str, list]:
    """Columns of attempts of one row each, in groups of four."""
    source = np.random.default_rng(seed)
    masks = [[int(source.integers(2)), *[1] * int(source.integers(1, 6))] for _ in range(rows)]

    def numbers():
        return [source.normal(size=len(mask)).tolist() for mask in masks]

    return {"group_id": [f"g{i // 4}" for i in range(rows)], "reward": source.normal(size=rows).round(1).tolist(),
            "action_mask": masks, "values": numbers(), "rollout_logprobs": numbers(), "turn": [0] * rows,
            "baseline_reward": source.normal(size=rows).tolist(), "run_index": [i % 4 for i in range(rows)]}


@pytest.mark.parametrize("name", ["asymre", "dr_grpo", "grpo", "opmd", "ppo", "raft", "rec", "reinforceplusplus",
                                  "remax", "rloo"])
def test_knowing_that_each_row_is_an_attempt_changes_no_bit(name):
    """As in a batch without the columns that tell attempts apart, rows in any order."""
    for seed in range(5):
        batch = advantage_batch(**single(40, seed)).take(np.random.default_rng(seed).permutation(40))
        advantage = ADVANTAGES[name]()
        plain, known = advantage(batch.drop_columns(["run_index", "turn"])), advantage(batch)
        assert plain.equals(known)


@pytest.mark.parametrize("function", [grpo, reinforceplusplus])
def test_rows_of_one_attempt_need_an_order(function):
    batch = runs((1.0, 2), (0.0, 1), action_mask=[[1]] * 3)
    with refuses(DataError, "'turn'"):
        function(batch.drop_columns("turn"))
    turns = batch.column_names.index("turn")
    with refuses(DataError, "e0", "e1", "0 of"):
        function(batch.set_column(turns, "turn", advantage_batch(turn=[0, 0, 0])["turn"]))
    with refuses(DataError, "'turn'", "1 of 3"):
        function(batch.set_column(turns, "turn", advantage_batch(turn=[None, 0, 0])["turn"]))
    with refuses(DataError, "'run_index'", "3 of 3"):
        function(batch.set_column(batch.column_names.index("run_index"), "run_index",
                                  advantage_batch(run_index=[None] * 3)["run_index"]))
