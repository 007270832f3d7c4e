"""Advantages of whole responses, on groups that were worked out by hand."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ouroboros.operators.advantages import group
from ouroboros.operators.advantages.clipb import Clipb
from ouroboros.operators.advantages.clipv import Clipv
from ouroboros.operators.advantages.gpg import Gpg
from ouroboros.operators.advantages.opo import Opo
from ouroboros.pipeline.store.errors import DataError
from tests.factories import advantage_batch, called

asymre, dr_grpo, grpo, grpo_passk, maxrl, opmd, raft, rec, reinforce, rloo = map(called, (
    group.Asymre, group.DrGrpo, group.Grpo, group.GrpoPassk, group.Maxrl, group.Opmd, group.Raft, group.Rec,
    group.Reinforce, group.Rloo))

HALF = 1 / math.sqrt(2)


def ask(function, *groups, **given) -> list:
    """The advantages of groups of rewards, row by row, one list a group; None where a row was left out."""
    ids = [f"{g}{i}" for g, group in enumerate(groups) for i in range(len(group))]
    made = function(advantage_batch(experience_id=ids, group_id=[i[0] for i in ids],
                                    reward=[float(r) for group in groups for r in group]), **given)
    found = dict(zip(made["experience_id"].to_pylist(), made["advantage"].to_pylist(), strict=True))
    return [[found.get(f"{g}{i}") for i in range(len(group))] for g, group in enumerate(groups)]


def close(found, *expected, tolerance=3e-6):
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, abs=tolerance)
    return True


def test_grpo_compares_within_the_group_and_epsilon_damps():
    """1 0 0 1: mean 1/2, std = sqrt(4 (1/2)^2 / 3) = 0.577350, so +-0.866025.  0 1 2: mean 1, std 1."""
    assert close(ask(grpo, [1, 0, 0, 1], [0, 1, 2]), [0.8660254, -0.8660254, -0.8660254, 0.8660254], [-1, 0, 1])
    # 0 1 2 with epsilon 1: (r - 1) / (1 + 1).
    assert close(ask(grpo, [0, 1, 2], epsilon=1), [-0.5, 0, 0.5])


def test_grpo_of_one_row_and_of_equal_rewards_teaches_nothing():
    """Exactly 0: the mean of three times 0.1 is not 0.1 in binary."""
    assert ask(grpo, [3], [0.1, 0.1, 0.1]) == [[0.0], [0.0] * 3]
    assert ask(grpo, [3], std_cal_level="batch") == [[0.0]]
    assert ask(dr_grpo, [3], [0.1, 0.1, 0.1]) == [[0.0], [0.0] * 3]


def test_grpo_leaves_out_groups_of_little_spread():
    """std of 0 1 is 0.707107, of 0 0.1 it is 0.070711; a group of one has none."""
    groups = ([0, 1], [0, 0.1], [5], [2, 2])
    assert close(ask(grpo, *groups, std_threshold=0.1)[:1], [-HALF, HALF])
    assert ask(grpo, *groups, std_threshold=0.1)[1:] == [[None] * 2, [None], [None] * 2]
    assert [None] * 2 not in ask(grpo, *groups, std_threshold=0)[:2]
    assert ask(grpo, [5], [2, 2], std_threshold=0) == [[None], [None] * 2]


def test_grpo_draws_kept_groups_for_those_left_out_and_always_the_same():
    batch = advantage_batch(group_id=["a", "a", "b", "b", "c", "d", "d"], reward=[0.0, 1, 2, 2, 5, 0, 3])
    drawn = grpo(batch, std_threshold=0, duplicate_experiences=True)
    ids = drawn["experience_id"].to_pylist()
    assert len(ids) == 8  # a and d, and one of them for each of b and c
    assert set(ids) == {"e0", "e1", "e5", "e6"}
    assert all(ids.count(a) == ids.count(b) for a, b in (("e0", "e1"), ("e5", "e6")))
    shuffled = grpo(batch.take([6, 5, 4, 3, 2, 1, 0]), std_threshold=0, duplicate_experiences=True)
    assert sorted(shuffled["experience_id"].to_pylist()) == sorted(ids)
    assert len(grpo(batch.slice(2, 3), std_threshold=0, duplicate_experiences=True)) == 0


def test_grpo_rank_penalty_lessens_likely_successes_and_still_sums_to_zero():
    """Rewards 1 1, log-probs -3 and -1. The likelier one is worth 1 - 1/2 * 1/2 = 3/4: mean 7/8, std 1/4 / sqrt 2.

    What stands at the token that is no action is not read: with it the first would be the likelier one.
    """
    batch = advantage_batch(group_id=["a", "a"], reward=[1.0, 1.0], action_mask=[[1, 0], [1, 1]],
                            rollout_logprobs=[[-3.0, 9.0], [-1.5, -0.5]])
    found = grpo(batch, rank_penalty=0.5)["advantage"].to_pylist()
    assert found == pytest.approx([HALF, -HALF], abs=1e-5)


def test_grpo_rank_penalty_takes_a_share_of_the_rank_among_all_members():
    """Ranks 1, 2, 0 of three, p = 3/4: 3/4, 1/2 and 0. Gaps from 5/12: 4, 1, -5 twelfths; std sqrt(42 / 2) twelfths."""
    batch = advantage_batch(group_id=["a"] * 3, reward=[1.0, 1.0, 0.0], action_mask=[[1]] * 3,
                            rollout_logprobs=[[-2.0], [-1.0], [-3.0]])
    found = grpo(batch, rank_penalty=0.75)["advantage"].to_pylist()
    assert found == pytest.approx([x / math.sqrt(21) for x in (4, 1, -5)], abs=1e-5)


def test_grpo_rank_penalty_of_equally_likely_responses_is_equal():
    batch = advantage_batch(group_id=["a"] * 2, reward=[1.0, 1.0], action_mask=[[1]] * 2, rollout_logprobs=[[-1.0]] * 2)
    assert grpo(batch, rank_penalty=0.5)["advantage"].to_pylist() == [0.0, 0.0]


def test_dr_grpo_keeps_the_spread():
    assert close(ask(dr_grpo, [0, 1, 2], [0, 10]), [-1, 0, 1], [-5, 5])


def test_reinforce_is_the_reward():
    assert ask(reinforce, [1, 0.25], [3]) == [[1, 0.25], [3]]


def test_rloo_compares_with_the_others():
    """1 of 1 0 0 1: 1 - (0 + 0 + 1) / 3 = 2/3. A row alone has no others."""
    assert close(ask(rloo, [1, 0, 0, 1], [3], [0.1] * 3), [2 / 3, -2 / 3, -2 / 3, 2 / 3], [3], [0] * 3)


def test_opmd_baselines():
    """0 and ln 3 at temperature 1: ln((1 + 3) / 2) = ln 2."""
    assert close(ask(opmd, [1, 0], [3]), [0.5, -0.5], [3])
    logs = {"opmd_baseline": "logavgexp"}
    assert close(ask(opmd, [0, math.log(3)], [3], **logs), [-math.log(2), math.log(1.5)], [3], tolerance=1e-12)
    assert close(ask(opmd, [0, 1e4], **logs), [-1e4 + math.log(2), math.log(2)], tolerance=1e-8)  # no overflow
    assert close(ask(opmd, [0, 1], **logs, tau=1e6), [-0.5, 0.5])  # a large tau is the mean


def test_asymre_shifts_the_baseline():
    assert close(ask(asymre, [1, 0], [3]), [0.6, -0.4], [3])
    assert close(ask(asymre, [1, 0], baseline_shift=0.25), [0.25, -0.75])


def test_rec_balances():
    """1 0 0 0: one at least at the mean, three below; one of the three is kept, the mean of the two is 1/2."""
    assert close(ask(rec, [1, 0, 0, 0]), [0.75, -0.25, -0.25, -0.25])
    (balanced,) = ask(rec, [1, 0, 0, 0], drop="balance")
    assert balanced[0] == 0.5
    assert sorted(balanced[1:]) == [-0.5, 0, 0]
    (scaled,) = ask(rec, [1, 0, 0, 0], drop="balance", std_normalize=True)  # population std 1/2
    assert close([[scaled[0]]], [1.0])
    assert close(ask(rec, [1, 1, 0], drop="balance"), [1 / 3, 1 / 3, -2 / 3])  # fewer below than not: all are kept


def test_rec_keeps_as_many_below_the_mean_as_are_not():
    """1 1 0 0 0: two of the three below 2/5 are kept; the mean of the four is 1/2, their population std too."""
    for scaled in ({}, {"std_normalize": True, "epsilon": 0.5}):  # std 1/2 and epsilon 1/2 make 1
        (balanced,) = ask(rec, [1, 1, 0, 0, 0], drop="balance", **scaled)
        assert balanced[:2] == [0.5, 0.5]
        assert sorted(balanced[2:]) == [-0.5, -0.5, 0]


def test_rec_of_one_row_and_of_equal_rewards():
    assert ask(rec, [3], [0.1] * 3, drop="balance") == [[3.0], [0.0] * 3]
    assert close(ask(rec, [3], std_normalize=True), [3 / (1 + 1e-6)], tolerance=1e-12)


def test_raft_keeps_the_best_of_each_group():
    assert ask(raft, [0, 1, 1], [-1], [0, 0]) == [[None, 1.0, None], [1.0], [1.0, None]]


REWARDS = st.lists(st.integers(-8, 8).map(lambda n: n / 4), min_size=2, max_size=9)


@settings(max_examples=8, deadline=None)
@given(REWARDS, st.sampled_from([dr_grpo, grpo, opmd, rec, rloo]), st.integers(-40, 40))
def test_a_group_sums_to_zero_and_a_shift_of_its_rewards_changes_nothing(rewards, function, shift):
    (found,) = ask(function, rewards)
    assert math.fsum(found) == pytest.approx(0, abs=1e-9)
    assert close(ask(function, [r + shift for r in rewards]), found, tolerance=1e-9)


@settings(max_examples=8, deadline=None)
@given(REWARDS, st.sampled_from([0.25, 3.0, 100.0]))
def test_grpo_does_not_know_the_scale_of_the_rewards_and_the_others_keep_it(rewards, scale):
    (found,) = ask(grpo, rewards, epsilon=1e-9)
    assert close(ask(grpo, [r * scale for r in rewards], epsilon=1e-9), found, tolerance=1e-6)
    for function in (dr_grpo, opmd, rec, rloo, reinforce):
        (plain,) = ask(function, rewards)
        assert close(ask(function, [r * scale for r in rewards]), [a * scale for a in plain], tolerance=1e-9)


def test_maxrl_divides_by_the_mean():
    """1 0 0 0: mean 1/4, so 3 and -1; 1 1 0 0: mean 1/2, so 1 and -1. Twice the reward is the same."""
    assert close(ask(maxrl, [1, 0, 0, 0], [2, 2, 0, 0]), [3, -1, -1, -1], [1, 1, -1, -1], tolerance=2e-5)
    assert ask(maxrl, [0, 0], [1], [0.1, 0.1, 0.1]) == [[0, 0], [0], [0, 0, 0]]
    with pytest.raises(DataError):
        ask(maxrl, [1, -1])


def test_grpo_passk_gives_the_lead_to_the_best():
    """0 1 3: lead 2, std sqrt(7 / 3) = 1.527525."""
    assert close(ask(grpo_passk, [0, 1, 3]), [0, 0, 1.309307])
    assert ask(grpo_passk, [0, 1, 3], [1, 1, 0], [5], norm_adv_by_std_in_grpo=False) == [[0, 0, 2], [0, 0, 0], [0]]


def test_gpg_makes_up_for_groups_that_teach_nothing():
    """Of three groups one teaches: 3 times (1 - 1/2); as the authors' program, whose loss is divided by 1/3."""
    made = Gpg()(advantage_batch(group_id=list("aabbcc"), reward=[1.0, 0.0, 1.0, 1.0, 0.0, 0.0]))
    assert made.sort_by("experience_id")["advantage"].to_pylist() == [1.5, -1.5, 0.0, 0.0, 0.0, 0.0]
    assert Gpg()(advantage_batch(group_id=list("aa"), reward=[1.0, 1.0]))["advantage"].to_pylist() == [0.0, 0.0]


def test_opo_weighs_the_baseline_by_length():
    """Rewards 1 0 0 of 1, 1 and 2 action tokens: 1 less 1/4; of equal length dr_grpo; alone the reward itself."""
    masks = [[1], [0, 1], [1, 1], [1], [1]]
    made = Opo()(advantage_batch(group_id=list("aaabc"), reward=[1.0, 0.0, 0.0, 0.3, -2.0], action_mask=masks))
    assert made["advantage"].to_pylist() == [0.75, -0.25, -0.25, 0.3, -2.0]
    equal = advantage_batch(group_id=list("aaa"), reward=[0.1] * 3, action_mask=[[1], [1, 1], [1]])
    assert Opo()(equal)["advantage"].to_pylist() == [0.0] * 3
    same = advantage_batch(group_id=list("aab"), reward=[1.0, 0.5, 3.0], action_mask=[[1]] * 3)
    assert Opo()(same)["advantage"].to_pylist()[:2] == dr_grpo(same)["advantage"].to_pylist()[:2]


def test_opo_counts_an_attempt_of_two_rows_once():
    """Two turns of 1 and 2 tokens that earn 1, and one of 1 token without: 3 / 4 is the baseline."""
    made = Opo()(advantage_batch(group_id=list("aaa"), run_index=[0, 0, 1], turn=[0, 1, 0], reward=[1.0, 1.0, 0.0],
                                 action_mask=[[1], [1, 1], [1]]))
    assert made["advantage"].to_pylist() == [0.25, 0.25, -0.75]


def test_clipb_leaves_out_failures_that_would_lower_the_entropy():
    """p = 1/2 each, H = 1 + ln 2, but 0 at the third token: S = 1/2, 1/2, -0.346574 and 1/2; the mean is 0.288357, the
    std 0.366574: two of these below the mean is -0.444792, one is -0.078218."""
    half, full = math.log(0.5), 1 + math.log(2)
    given = advantage_batch(group_id=list("aa"), reward=[1.0, 0.0], action_mask=[[1], [1, 1, 0, 1]],
                            old_logprobs=[[half], [half, half, 0.0, half]],
                            entropies=[[full], [full, 0.0, math.nan, full]])
    kept, held = (Clipb(mu=mu)(given)["advantage"].to_pylist() for mu in (2.0, 1.0))
    assert kept[1] == pytest.approx([-HALF, -HALF, 0, -HALF], abs=1e-5)
    assert held == [pytest.approx([HALF], abs=1e-5), pytest.approx([-HALF, 0, 0, -HALF], abs=1e-5)]
    better = given.set_column(given.column_names.index("reward"), "reward", [[0.0, 1.0]])
    assert Clipb(mu=1.0)(better)["advantage"].to_pylist()[1] == pytest.approx([HALF, HALF, 0, HALF], abs=1e-5)
    assert Clipb(mu=2.0, epsilon=1.0)(given)["advantage"].to_pylist()[0] == pytest.approx([0.5 / (HALF + 1)])
    near = given.set_column(given.column_names.index("entropies"), "entropies", [
        [[full], [full - 8e-9, full, math.nan, full]]])
    assert Clipb(mu=0.0)(near)["advantage"].to_pylist()[1][:2] == pytest.approx([0, -HALF], abs=1e-5)  # 3e-9 below


def test_clipv_leaves_out_the_few_failures_that_lower_the_entropy_most():
    """p = 1/2 and H = 1 + ln 2, so S = 1/2; D = 0 in the first row, and 0.9, 1, -1 in the second: std 0.807, so with mu
    1 the first two are beyond, and one of them is left out, or of half of the tokens both."""
    half, full = math.log(0.5), 1 + math.log(2)
    given = advantage_batch(group_id=list("aa"), reward=[1.0, 0.0], action_mask=[[1], [1, 1, 1]],
                            old_logprobs=[[half], [half] * 3], entropies=[[full], [full] * 3],
                            mean_scores=[[0.5], [1.4, 1.5, -0.5]])
    found = [Clipv(mu=mu, max_frac=share)(given)["advantage"].to_pylist() for mu, share in (
        (8.5, 1.0), (1.0, 1e-4), (1.0, 0.5))]
    assert [rows[1] for rows in found] == [pytest.approx(values, abs=1e-5) for values in (
        [-HALF, -HALF, -HALF], [-HALF, 0, -HALF], [0, 0, -HALF])]
    assert found[2][0] == pytest.approx([HALF], abs=1e-5)
    # a success with the largest D takes no failure's place: D = 1.1 and 0.9, 0, 0, std 0.505
    lower = given.set_column(given.column_names.index("mean_scores"), "mean_scores", [[[1.6], [1.4, 0.5, 0.5]]])
    assert Clipv(mu=1.0)(lower)["advantage"].to_pylist()[1] == pytest.approx([0, -HALF, -HALF], abs=1e-5)
