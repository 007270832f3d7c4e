"""The examples of docs/algorithms.md, "Where ours differs": those of which no other test here has the number."""

import math
import re
from pathlib import Path

import duckdb
import numpy as np
import pytest
import torch

from ouroboros.operators.aggregation import token_weights, token_weights_by_kind
from ouroboros.operators.correction import rejected
from ouroboros.operators.priority import PRIORITIES
from ouroboros.pipeline.settings.algorithms import parts
from ouroboros.pipeline.settings.declared import ADVANTAGES, POLICY_LOSSES
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


def test_every_line_of_the_table_has_an_example():
    begin = PAGE.index("## Where ours differs")
    lines = [line for line in PAGE[begin:PAGE.index("\n## ", begin + 1)].splitlines() if line.startswith("| ")]
    for line in lines:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        assert len(cells) == 4, line
        assert all(cells), line
    assert len(lines) > 45


def test_gdpo_of_groups_of_one():
    two = {"group_id": ["g", "h"], "action_mask": [[1], [1]], "reward_components": [[("a", 1.0)], [("a", 0.0)]]}
    assert advantage("gdpo", two) == [[0], [0]]


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


def test_rec():
    assert loss("rec", [4.0, 1.0], [1.0, 1.0], [0, 0], weight="gspo_importance_sampling")[1] == pytest.approx([-2, -2])
    weight = -loss("rec", [1.0], [1.0], [0], weight="advantage", temp=1 / 30)[1][0]
    assert (math.exp(30), weight) == (pytest.approx(1.07e13, rel=0.01), pytest.approx(4.85e8, rel=0.01))


def test_gae_skips_what_is_no_action():
    batch = advantage_batch(action_mask=[[1, 0, 1]], values=[[0.5, 9.0, 0.25]], reward=[1.0])
    assert ADVANTAGES["ppo"](lam=0.5)(batch)["returns"][0][0].as_py() - 0.5 == 0.125


def test_gigpo():
    turns = {"run_index": [0, 1], "turn": [0, 0]}
    runs = {"group_id": ["g", "g"], "reward": [0.0, 1.0], "state_hash": ["s", "z"]}
    assert advantage("gigpo", turns | runs, epsilon=0.1) == [-0.5, 0.5]


def test_mix_takes_shares_of_losses():
    expert = torch.tensor([False, False, True])
    logprobs = torch.tensor([-1.0, -1.0, -2.0])
    losses, _ = POLICY_LOSSES["mix"](mu=0.25)(logprobs, logprobs, torch.ones(3), torch.arange(3), expert)
    assert np.dot(losses, token_weights_by_kind("token-mean", [1, 1, 1], expert)) == pytest.approx(-1 / 4)


def test_m2po_looks_at_each_row():
    ratios = [math.exp(x) for x in (0.3, 0.1, 0.1, 0.1)]
    assert loss("m2po", ratios, [1.0] * 4, [0, 1, 1, 1])[0] == pytest.approx([0, *(-r for r in ratios[1:])])
    assert loss("m2po", ratios, [1.0] * 4, [0, 0, 0, 0])[0] == pytest.approx([-r for r in ratios])  # as one row: all


def test_preferences():
    chosen = torch.tensor([1.0, 0.0])
    for z, expected in ((0.0, 0.269), (0.5, 0.378)):
        found, _ = POLICY_LOSSES["kto"](beta=1.0, reference_point=z)(chosen, torch.zeros(2), torch.arange(2))
        assert found[0].item() == pytest.approx(expected, abs=5e-4)
    rows = torch.tensor([0, 0, 0, 0, 1, 1])
    found, _ = POLICY_LOSSES["ipo"]()(torch.tensor([0.5] * 4 + [-0.5] * 2), torch.zeros(6), rows)
    assert found[0].item() == pytest.approx(4)


def test_gspo_with_an_advantage_of_each_token():
    assert loss("gspo_token", [4.0, 1.0], [-1.0, 3.0], [0, 0])[0] == pytest.approx([2, -3.0012])
    assert loss("gspo", [4.0, 1.0], [-1.0, 3.0], [0, 0])[0] == pytest.approx([-1.0004, -1.0004])


def test_priorities_are_numbers_that_come_again():
    with duckdb.connect() as session:
        session.execute("CREATE TABLE rows AS SELECT 'g' AS group_id, 3 AS weights_version, 1 AS use_count")
        priority = PRIORITIES["decay_limit_randomization"](sigma=1.0)
        ((found,),) = session.execute(f"SELECT {priority} FROM rows").fetchall()
    assert found == pytest.approx(0.566, abs=5e-4)
