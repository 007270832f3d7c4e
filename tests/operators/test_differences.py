"""The examples of docs/algorithms.md, "Where ours differs": ours by the code, the other side by its formula."""

import math
import re
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import duckdb
import numpy as np
import pytest
import torch

from ouroboros.operators.aggregation import token_weights, token_weights_by_kind
from ouroboros.operators.correction import importance_correction, rejected
from ouroboros.operators.kl import adaptive_coefficient, k2, penalise
from ouroboros.operators.priority import PRIORITIES
from ouroboros.operators.sampling import mix
from ouroboros.operators.shaping import overlong_penalty
from ouroboros.pipeline.settings.algorithms import parts
from ouroboros.pipeline.settings.declared import ADVANTAGES, POLICY_LOSSES
from ouroboros.pipeline.settings.train_batch import divided
from ouroboros.stages.learner.engine.rates import learning_rate
from tests.factories import advantage_batch

PAGE = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()


def advantage(name, columns, **given):
    made = ADVANTAGES[name](**given)(advantage_batch(**columns))
    found = dict(zip(made["experience_id"].to_pylist(), made["advantage"].to_pylist(), strict=True))
    return [found[key] for key in sorted(found)]


def loss(name, ratios, advantages, rows=None, **given):
    """Loss of tokens whose probability went from 1/10 to ratio / 10, and its gradient by their log-probs."""
    old = torch.full((len(ratios),), math.log(0.1), dtype=torch.float64)
    new = (old + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_()
    columns = {"logprobs": new, "old_logprobs": old, "rollout_logprobs": old,
               "advantages": torch.tensor(advantages, dtype=torch.float64)}
    if rows is not None:
        columns["rows"] = torch.tensor(rows)
    model = POLICY_LOSSES[name]
    found, _ = model(**given)(**{column: columns[column] for column in model.columns})
    (gradient,) = torch.autograd.grad(found.sum(), new)
    return found.tolist(), gradient.tolist()


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def test_every_line_of_the_table_has_an_example():
    begin = PAGE.index("## Where ours differs")
    lines = [line for line in PAGE[begin:PAGE.index("\n## ", begin + 1)].splitlines() if line.startswith("| ")]
    for line in lines:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        assert len(cells) == 4, line
        assert all(cells), line
    assert len(lines) > 45


def test_groups_of_one_and_of_two():
    assert advantage("grpo", {"group_id": ["g"], "reward": [1.0]}) == [0]
    assert (2 * 0.5**2, 2 * 0.5**8) == (1 / 2, 1 / 128)  # all right or all wrong
    alone = {"group_id": ["g"], "reward": [1.0]}
    assert [advantage(name, alone) for name in ("maxrl", "grpo_passk")] == [[0], [0]]
    two = {"group_id": ["g", "h"], "action_mask": [[1], [1]], "reward_components": [[("a", 1.0)], [("a", 0.0)]]}
    assert advantage("gdpo", two) == [[0], [0]]


def test_one_bound_alone_leaves_the_other():
    assert loss("ppo", [0.5], [-1.0], [0], clip_range_high=0.28)[0] == pytest.approx([0.8])


def test_gspo_is_averaged_over_rows():
    losses = loss("gspo", [1.0] * 4, [1.0, 1, 1, -1], [0, 0, 0, 1])[0]
    assert np.mean(losses) == -0.5
    weights = np.repeat(token_weights(POLICY_LOSSES["gspo"]().aggregation, [3, 1]), [3, 1])
    assert np.dot(losses, weights) == pytest.approx(0)


def test_raft_takes_the_best_row():
    made = ADVANTAGES["raft"]()(advantage_batch(group_id=["g"] * 3, reward=[0.0, 1.0, 1.0]))
    assert made["experience_id"].to_pylist() == ["e1"]


def test_tokens_that_are_left_out_count_in_averages():
    kept = ~rejected(torch.tensor([-1.0, -9.0]), torch.tensor([-1.0, -1.0]), torch.tensor([0, 1]), {"token_k2": 1.0})
    assert np.dot([1, 3] * kept.numpy(), token_weights("token-mean", [1, 1])[[0, 1]]) == 1 / 2
    assert token_weights("token-mean", [2, 0])[0] * 2 == 1  # a row that was cut has no action tokens


def test_kl_cov_with_the_coefficient_of_the_paper():
    """One token has the largest covariance."""
    given = torch.tensor([-1.0]), torch.tensor([-1.5]), torch.zeros(1)
    assert [POLICY_LOSSES["kl_cov"](**more)(*given)[0].item() for more in ({}, {"ppo_kl_coef": 0.1})] == [
        pytest.approx(0.5), pytest.approx(0.05)]


def test_grpo_beside_the_papers():
    """By the aggregation and the bounds of `grpo_original`."""
    losses, original = [-1.0, -1, -1, 1], parts("grpo_original")
    assert np.dot(losses, np.repeat(token_weights("token-mean", [3, 1]), [3, 1])) == pytest.approx(-0.5)
    assert np.dot(losses, np.repeat(token_weights(original["loss_agg_mode"], [3, 1]), [3, 1])) == pytest.approx(0)
    assert loss("ppo", [5.0], [-1.0], [0])[0] == pytest.approx([3])
    assert loss("ppo", [5.0], [-1.0], [0], **original["policy_loss_fn_args"])[0] == pytest.approx([5])


def test_grpo_with_a_rank_penalty():
    """Rewards 1 and 3/4 in mean and std: 1/8 over 0.177; there the numerator is 1 - 7/8 for both."""
    columns = {"group_id": ["g"] * 2, "reward": [1.0] * 2, "action_mask": [[1]] * 2,
               "rollout_logprobs": [[-2.0], [-1.0]]}
    assert advantage("grpo", columns, rank_penalty=0.5) == pytest.approx([0.7071, -0.7071], abs=1e-4)
    assert (1 - 0.875) / np.std([1, 0.75], ddof=1) == pytest.approx(0.7071, abs=1e-4)


def test_rec():
    assert advantage("rec", {"group_id": ["g"], "reward": [1.0]}) == [1]
    assert loss("rec", [4.0, 1.0], [1.0, 1.0], [0, 0], weight="gspo_importance_sampling")[1] == pytest.approx([-2, -2])
    weight = -loss("rec", [1.0], [1.0], [0], weight="advantage", temp=1 / 30)[1][0]
    assert (math.exp(30), weight) == (pytest.approx(1.07e13, rel=0.01), pytest.approx(4.85e8, rel=0.01))


def test_dpo_of_two_pairs():
    margins = torch.tensor([0.3, 0.0, -0.2, 0.0])
    found, _ = POLICY_LOSSES["dpo"](beta=1.0)(margins, torch.zeros(4), torch.arange(4), torch.ones(4))
    assert found[::2].tolist() == pytest.approx([0.554, 0.798], abs=5e-4)
    assert (-math.log(sigmoid(0.1)), found.mean()) == (pytest.approx(0.644, abs=5e-4), pytest.approx(0.676, abs=5e-4))


@pytest.mark.parametrize(("b", "p", "there", "here"), [
    (0.5, 0.1, 0.059, -0.144), (0.5, 0.6, 0.144, 0.347), (0, 0.6, 1.10, 2), (1, 0.6, -1.10, 1.10),
    (1e-6, 0.6, 0, 2.0e-6)])
def test_jsd(b, p, there, here):
    q = 0.2
    columns = {"action_mask": [[1]], "old_logprobs": [[math.log(q)]], "teacher_logprobs": [[math.log(p)]]}
    ((found,),) = advantage("jsd", columns, lambda_coef=b)
    log_m = math.log(b * p + (1 - b) * q)
    apart = {0: math.log(q / p), 1: math.log(p / q)}.get(b, b * (math.log(p) - log_m) + (1 - b) * (math.log(q) - log_m))
    assert (-apart, found) == (pytest.approx(there, abs=0.002), pytest.approx(here, rel=0.005))


def test_a_temperature_of_the_sampled_token_is_no_distribution():
    there = np.sqrt([0.8, 0.2])
    assert (there, there.sum()) == (pytest.approx([0.894, 0.447], abs=5e-4), pytest.approx(1.34, abs=0.005))
    assert there / there.sum() == pytest.approx([2 / 3, 1 / 3])


@pytest.mark.parametrize(("ratio", "there", "here"), [(1.0, 2, 1), (5.0, 3.93, 0.35)])
def test_sapo(ratio, there, here):
    assert 4 * sigmoid(ratio - 1) == pytest.approx(there, abs=0.005)
    assert -loss("sapo", [ratio], [1.0])[1][0] == pytest.approx(here, abs=0.005)


def test_topr_looks_at_the_response_and_reads_the_engines_log_probs():
    for level, weights in (("token", [0.5, 1]), ("sequence", [1, 1])):
        assert loss("topr", [0.5, 4.0], [-1.0, -1.0], [0, 0], level=level)[1] == pytest.approx(weights)
    # Engine -1, policy -1.69: the ratio is 1/2, which weighs a failure. Old log-probs are not read.
    columns = {"logprobs": torch.tensor([-1.0 - math.log(2)]), "rollout_logprobs": torch.tensor([-1.0]),
               "advantages": torch.tensor([-1.0]), "rows": torch.tensor([0])}
    _, statistics = POLICY_LOSSES["topr"]()(**columns)
    assert statistics["alpha"].tolist() == pytest.approx([0.5])


def test_the_kl_penalty_and_its_coefficient():
    given = {"action_mask": np.ones(2), "estimator": "k1", "coefficient": 0.1}
    rewards, _ = penalise(2.0, np.array([-1.0, -1.0]), np.array([-1.5, -2.0]), **given)
    assert (rewards.tolist(), rewards.sum()) == (pytest.approx([-0.05, 1.9]), pytest.approx(1.85))
    assert adaptive_coefficient(0.2, 0.11, 0.1, 1000, 100) == pytest.approx(0.2 * 1.01)
    assert (np.mean([0.4, 0]), np.mean([0.4, 0, 0, 0])) == (0.2, 0.1)


def test_gae_and_discounted_returns_skip_what_is_no_action():
    there = [0.0 + 9 - 0.5, 0.0 + 0.25 - 9, 1 - 0.25]
    assert there[0] + 0.5 * (there[1] + 0.5 * there[2]) == pytest.approx(4.31, abs=0.005)
    batch = advantage_batch(action_mask=[[1, 0, 1]], values=[[0.5, 9.0, 0.25]], reward=[1.0])
    assert ADVANTAGES["ppo"](lam=0.5)(batch)["returns"][0][0].as_py() - 0.5 == 0.125
    assert ADVANTAGES["reinforceplusplus"](gamma=0.5)(batch)["returns"].to_pylist() == [[0.5, 0, 1]]


def test_gigpo():
    turns = {"run_index": [0, 1], "turn": [0, 0]}
    tasks = {"group_id": ["g", "h"], "reward": [1.0, 101.0], "state_hash": ["s", "s"]}
    assert advantage("gigpo", turns | tasks) == [0, 0]
    runs = {"group_id": ["g", "g"], "reward": [0.0, 1.0], "state_hash": ["s", "z"]}
    assert advantage("gigpo", turns | runs, epsilon=0.1) == [-0.5, 0.5]
    assert round(0.5 / (1 + 0.1), 3) == 0.455


def test_mix_takes_shares_of_losses_and_of_rows():
    expert = torch.tensor([False, False, True])
    logprobs = torch.tensor([-1.0, -1.0, -2.0])
    losses, _ = POLICY_LOSSES["mix"](mu=0.25)(logprobs, logprobs, torch.ones(3), torch.arange(3), expert)
    assert np.dot(losses, token_weights_by_kind("token-mean", [1, 1, 1], expert)) == pytest.approx(-1 / 4)
    assert 3 / 4 * 2 * -1 + 1 / 4 * 1 * 2 == -1
    with duckdb.connect() as session:
        session.execute("CREATE TABLE candidates AS SELECT 'e' AS experience_id, 0 AS position, 0 AS weights_version")
        session.execute("CREATE TABLE experts AS SELECT 'x' AS experience_id, 0 AS position")
        rows = session.execute(mix(1, 100, expert_data_ratio=0.07)).fetchall()
    assert (math.ceil(0.07 * 100), sum(is_expert for _, is_expert, _ in rows)) == (8, 7)


def test_m2po_looks_at_each_row():
    moments, ratios = np.square([0.3, 0.1, 0.1, 0.1]), [math.exp(x) for x in (0.3, 0.1, 0.1, 0.1)]
    assert (moments.mean(), moments[0]) == (pytest.approx(0.03), pytest.approx(0.09))
    assert loss("m2po", ratios, [1.0] * 4, [0, 1, 1, 1])[0] == pytest.approx([0, *(-r for r in ratios[1:])])
    assert loss("m2po", ratios, [1.0] * 4, [0, 0, 0, 0])[0] == pytest.approx([-r for r in ratios])  # as one row: all


def test_preferences():
    chosen = torch.tensor([1.0, 0.0])
    for z, expected in ((0.0, 0.269), (0.5, 0.378)):
        found, _ = POLICY_LOSSES["kto"](beta=1.0, reference_point=z)(chosen, torch.zeros(2), torch.arange(2))
        assert found[0].item() == pytest.approx(expected, abs=5e-4)
    rows = torch.tensor([0, 0, 0, 0, 1, 1])
    found, _ = POLICY_LOSSES["orpo"](beta=0.0)(torch.tensor([-1.0, -1.0]), torch.arange(2))
    assert found[0].item() == 1
    found, _ = POLICY_LOSSES["ipo"]()(torch.tensor([0.5] * 4 + [-0.5] * 2), torch.zeros(6), rows)
    assert (found[0].item(), (2 / 4 + 1 / 2 - 5) ** 2) == (pytest.approx(4), 16)


def test_gspo_with_an_advantage_of_each_token():
    assert loss("gspo_token", [4.0, 1.0], [-1.0, 3.0], [0, 0])[0] == pytest.approx([2, -3.0012])
    assert loss("gspo", [4.0, 1.0], [-1.0, 3.0], [0, 0])[0] == pytest.approx([-1.0004, -1.0004])


def test_weights_above_a_bound():
    near, far = torch.tensor([math.log(0.2)]), torch.tensor([math.log(0.1)])
    found, _ = POLICY_LOSSES["decoupled_ppo"](behave_weight_cap=1.5)(near, far, near, torch.ones(1))
    assert found.item() == pytest.approx(-1.5)
    for mode, expected in (("truncate", 2), ("mask", 0)):
        weight, _ = importance_correction(far + math.log(4), far, torch.zeros(1, dtype=torch.int64), mode=mode)
        assert weight.item() == expected


def test_a_row_without_tokens_counts():
    assert token_weights("seq-mean-token-mean", [3, 1, 0]).tolist() == pytest.approx([1 / 9, 1 / 3, 0])


def test_k2_of_a_rollout_and_of_an_expert():
    found = k2(torch.tensor([1.0, 2.0]), torch.zeros(2))
    assert (0.001 * found[0].item(), (0.1 * found).tolist()) == (0.0005, pytest.approx([0.05, 0.2]))


def test_priorities_are_numbers_that_come_again():
    with duckdb.connect() as session:
        session.execute("CREATE TABLE rows AS SELECT 'g' AS group_id, 3 AS weights_version, 1 AS use_count")
        priority = PRIORITIES["decay_limit_randomization"](sigma=1.0)
        ((found,),) = session.execute(f"SELECT {priority} FROM rows").fetchall()
    assert found == pytest.approx(0.566, abs=5e-4)


def test_the_overlong_penalty():
    assert [overlong_penalty(length, 100, 20) for length in (85, 100)] == [-0.25, -1]


def test_learning_rates():
    """Warmup over 10 of 100 steps; a cosine over two steps, half way down in the second: 0.5 + 0.01 / 2 of it there."""
    shape = {"lr_warmup_steps_ratio": 0.0, "lr_scheduler_type": "cosine"}
    rising = SimpleNamespace(lr=1.0, min_lr_ratio=0.0, lr_warmup_steps=10, **shape)
    assert [learning_rate(step, 100, rising) for step in (1, 10)] == [0.1, 1]
    for share, second in ((0.0, 5e-7), (0.01, 5.05e-7)):
        falling = SimpleNamespace(lr=1e-6, min_lr_ratio=share, lr_warmup_steps=0, **shape)
        assert [learning_rate(step, 2, falling) for step in (1, 2)] == pytest.approx([1e-6, second])


def test_a_replay_is_of_whole_groups():
    made = divided(96, explored=96, group=8, experts=Fraction(0), replayed=Fraction("0.3"))
    assert (made.replayed, made.fresh) == (24, 72)
