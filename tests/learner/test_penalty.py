"""The KL penalty: whatever an advantage is made of, the penalty is off it."""

from contextlib import nullcontext

import numpy as np
import pyarrow as pa
import pytest

from ouroboros.operators.advantages import steps, token
from ouroboros.operators.terms import KLTerm
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.declared import ADVANTAGES
from ouroboros.pipeline.store.errors import DataError
from ouroboros.stages.learner.penalty import penalised, refuse_dense
from tests.factories import advantage_batch, called

gigpo = called(steps.Gigpo)
jsd, on_policy_distill = map(called, (token.Jsd, token.OnPolicyDistill))

K1 = KLTerm("k1", kl_coef=0.2)


def table(kls: list[list[float]], **columns: list) -> pa.Table:
    """Rows whose tokens are k1 = kls away from the reference, each an attempt of its own unless `position` says so."""
    count = len(kls)
    plain = {"reward": [1.0] * count, "step_reward": [None] * count, "action_mask": [[1] * len(kl) for kl in kls],
             "old_logprobs": [[-0.5] * len(kl) for kl in kls], "turn": [0] * count, "taskset": [""] * count,
             "role": [""] * count, "use_count": [0] * count, "group_id": ["g"] * count}
    made = advantage_batch(**plain | {name: values for name, values in columns.items()
                                      if name not in ("position", "is_candidate")})
    made = made.append_column("position", pa.array(columns.get("position", list(range(count))), pa.int64()))
    made = made.append_column("is_candidate", pa.array(columns.get("is_candidate", [True] * count)))
    return made.append_column("ref_logprobs", pa.array([[-0.5 - k for k in kl] for kl in kls], pa.list_(pa.float64())))


def numbers(found: pa.Table) -> dict[str, np.ndarray]:
    return {id_: np.ravel(value) for id_, value in zip(*(found[name].to_pylist()
                                                         for name in ("experience_id", "advantage")), strict=True)}


@pytest.mark.parametrize("step_rewards", [[None, None, None, None], [0.5, 0.7, 0.2, 0.1]])
@pytest.mark.parametrize("name", [name for name, one in ADVANTAGES.items() if not one.reads_components])
def test_a_penalty_changes_every_advantage(name, step_rewards):
    """Three attempts at one task, the second better than the first by less than its penalty, 0.2 x 2; then another."""
    batch = table([[0.0, 0.0], [1.0, 1.0], [0.0, 0.5], [0.25, 0.0]], group_id=["a", "a", "a", "b"],
                  run_index=[0, 1, 2, 0], reward=[1.0, 1.1, 0.0, 1.0], step_reward=step_rewards, state_hash=["s"] * 4,
                  baseline_reward=[0.5] * 4, values=[[0.1, 0.2]] * 4, entropies=[[1.0] * 2] * 4,
                  teacher_logprobs=[[-0.4, -0.7]] * 4, rollout_logprobs=[[-0.5] * 2] * 4, mean_scores=[[0.5] * 2] * 4)
    without, left = numbers(ADVANTAGES[name]()(batch)), numbers(ADVANTAGES[name]()(penalised(batch, K1)[0]))
    assert any(id_ not in without or not np.allclose(left[id_], without[id_]) for id_ in left)


@pytest.mark.parametrize(("earned", "steps", "rewards"), [
    # gains of state s 1 and 0.8, of state u 0 and 0
    ([1.0, None, 1.0, None], [1.0, 0.0, 0.8, 0.0], [1.0, 1.0, 0.8, 0.8]),
    # no turn earned anything: the reward stands on the last; gains of s are 1 and 0.8, of u 1 and 1
    ([None] * 4, [0.0, 1.0, -0.2, 1.0], [1.0, 1.0, 0.8, 0.8])])
def test_gigpo_takes_the_penalty_off_the_turn_that_earned_it(earned, steps, rewards):
    """Run 0 earns 1 in two turns, run 1 the same; k1 = 0.5 in both tokens of run 1's first turn, coefficient 0.2: 0.2
    off its step. Episodes 1 and 0.8, so +-0.1; +-0.1 more in state s."""
    batch = table([[0.0, 0.0], [0.0, 0.0], [0.5, 0.5], [0.0, 0.0]], group_id=["a"] * 4, run_index=[0, 0, 1, 1],
                  turn=[0, 1, 0, 1], position=[0, 0, 1, 1], state_hash=["s", "u", "s", "u"], step_reward=earned)
    left, _ = penalised(batch, K1)
    assert left["step_reward"].to_pylist() == pytest.approx(steps)
    assert left["reward"].to_pylist() == pytest.approx(rewards)
    assert gigpo(left).sort_by("experience_id")["advantage"].to_pylist() == pytest.approx([0.2, 0.1, -0.2, -0.1])


def test_players_of_an_attempt_lose_the_penalties_of_their_own_tokens():
    """White earns 1 with k1 = 0.5 in both tokens, 0.2 off; black loses 1 in the next turn, and has no penalty."""
    batch = table([[0.5, 0.5], [0.0, 0.0]], group_id=["a/white", "a/black"], position=[0, 0], turn=[0, 1],
                  role=["white", "black"], reward=[1.0, -1.0])
    left, _ = penalised(batch, K1)
    assert left["reward"].to_pylist() == left["step_reward"].to_pylist() == pytest.approx([0.8, -1.0])
    assert np.ravel(left["token_rewards"].to_pylist()) == pytest.approx([-0.1, 0.9, 0.0, -1.0])


def test_rewards_of_single_tokens_lose_the_penalty_of_their_own():
    """0.2 x (1, 0, 2) off (0.5, -, 1.5), whose sum is the reward 2; the row before it has no reward of its own."""
    given = table([[1.0], [1.0, 5.0, 2.0]], reward=[2.0, 2.0], turn=[0, 1], position=[0, 0],
                  action_mask=[[1], [1, 0, 1]], token_rewards=[None, [0.5, 0.0, 1.5]])
    made, _ = penalised(given, K1)
    assert made["token_rewards"].to_pylist() == [pytest.approx([-0.2]), pytest.approx([0.3, 0.0, 1.1])]
    assert made["reward"].to_pylist() == pytest.approx([1.2, 1.2])
    assert made["kl_penalties"].to_pylist() == [pytest.approx([0.2]), pytest.approx([0.2, 0.0, 0.4])]


def dense(advantage, rewards, **more):
    algorithm = Config().algorithm.merged({"advantage_fn": advantage, **more})
    refuse_dense(table([[1.0, 1.0]] * 2, reward=rewards, token_rewards=[None, [0.5, 1.5]]), algorithm)


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_advantages_that_compare_sums_refuse_rewards_of_single_tokens(name):
    able = name in ("ppo", "reinforceplusplus", "remax", "jsd", "on_policy_distill")  # the last two read no reward
    with nullcontext() if able else pytest.raises(DataError):
        dense(name, [1.0, 2.0])


@pytest.mark.parametrize(("rewards", "more"), [([1.0, 2.5], {}), ([1.0, 2.0], {"reward_weights": {"accuracy": 2.0}})])
def test_what_changes_the_sum_alone_is_refused_beside_rewards_of_single_tokens(rewards, more):
    with pytest.raises(DataError):
        dense("ppo", rewards, **more)
    dense("mine:advantage", [1.0, 2.0])


@pytest.mark.parametrize("distil", [on_policy_distill, jsd])
def test_distillation_loses_it_token_by_token(distil):
    """k1 = 0.5 on the second token, coefficient 0.2: 0.1 less there. The third is no action: 0."""
    batch = table([[0.0, 0.5, 9.0]], action_mask=[[1, 1, 0]], teacher_logprobs=[[-0.4, -0.7, -0.1]])
    (without,), (left,) = (numbers(distil(given)).values() for given in (batch, penalised(batch, K1)[0]))
    assert (without - left).tolist() == pytest.approx([0.0, 0.1, 0.0])


def test_the_kl_is_that_of_the_action_tokens_of_the_batchs_own_rows():
    """Three tokens of the batch, 0.2, 0.2 and 0.5: 0.3. The row that they are compared with has 9."""
    _, kl = penalised(table([[0.2, 0.2], [0.5], [9.0]], is_candidate=[True, True, False]), K1)
    assert kl == pytest.approx(0.3)
    left, kl = penalised(table([[0.2, 0.2], [0.5]], action_mask=[[0, 0], [1]], is_candidate=[True, False]), K1)
    assert kl is None
    assert left["reward"].to_pylist() == pytest.approx([1.0, 0.9])
    assert left["token_rewards"].to_pylist()[0] == [0.0, 0.0]
    assert penalised(table([[0.2, 0.2]], action_mask=[[0, 0]]), K1)[1] is None
