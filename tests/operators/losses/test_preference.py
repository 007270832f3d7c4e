"""Preference losses by hand: two pairs in one micro-batch, responses of different lengths."""

import math

import pytest
import torch

from ouroboros.operators.aggregation import token_weights
from ouroboros.operators.losses.cpo import Cpo
from ouroboros.operators.losses.dpo import Dpo
from ouroboros.operators.losses.preference import Kto, Orpo, Simpo
from ouroboros.pipeline.store.errors import ConfigError
from tests.factories import called
from tests.golden.messages import refuses

dpo, kto, orpo, simpo = map(called, (Dpo, Kto, Orpo, Simpo))

# log-ratios: pair 0 chosen 1 + 1, rejected -1; pair 1 chosen 0, rejected 0.5 + 0.5 + 0.5 + 0.5
GAPS = [1.0, 1.0, -1.0, 0.0, 0.5, 0.5, 0.5, 0.5]
ROWS = [0, 0, 1, 2, 3, 3, 3, 3]


def losses(function, **given):
    """(loss of each token, the mean that the learner forms, statistics)"""
    gaps = torch.tensor(GAPS, dtype=torch.float64, requires_grad=True)
    more = {"chosen_tokens": torch.ones(8)} if function is dpo else {}
    loss, statistics = function(gaps - 2.0, torch.full_like(gaps, -2.0), torch.tensor(ROWS), **more | given)
    weights = torch.from_numpy(token_weights("seq-mean-token-mean", [2, 1, 1, 4]))[torch.tensor(ROWS)]
    return loss.tolist(), (loss * weights).sum(), gaps, {name: value.tolist() for name, value in statistics.items()}


def minus_log_sigmoid(x):
    return math.log1p(math.exp(-x))


def test_dpo_sums_by_row_and_means_over_pairs():
    """Margins 0.1 (2 + 1) = 0.3 and 0.1 (0 - 2) = -0.2. One sum over the micro-batch would give 0.1 (2 - 1)."""
    found, mean, _, statistics = losses(dpo)
    first, second = minus_log_sigmoid(0.3), minus_log_sigmoid(-0.2)
    assert found == pytest.approx([first] * 3 + [second] * 5)
    assert mean.item() == pytest.approx((first + second) / 2)
    assert statistics["chosen_reward"] == pytest.approx([0.2] * 3 + [0.0] * 5)
    assert statistics["rejected_reward"] == pytest.approx([-0.1] * 3 + [0.2] * 5)
    assert statistics["accuracy"] == [1] * 3 + [0] * 5


def test_kto_judges_each_response_by_itself_with_a_given_or_estimated_kl():
    """beta 1, z = 1/2: sigmoid(0.5 - 2), sigmoid(-1 - 0.5), sigmoid(0.5 - 0), sigmoid(2 - 0.5)."""
    found, mean, _, _ = losses(kto, beta=1.0, reference_point=0.5, undesirable_weight=2.0)
    s = [1 / (1 + math.exp(-x)) for x in (-1.5, -1.5, 0.5, 1.5)]
    assert found == pytest.approx([s[0]] * 2 + [2 * s[1], s[2]] + [2 * s[3]] * 4)
    assert mean.item() == pytest.approx((s[0] + 2 * s[1] + s[2] + 2 * s[3]) / 4)
    found, _, _, statistics = losses(kto, beta=1.0, estimated_kl=torch.full((8,), 0.5), estimate_kl=True)
    assert found == losses(kto, beta=1.0, reference_point=0.5)[0]
    assert statistics["estimated_kl"] == [0.5] * 8


def test_robust_is_right_in_the_mean_over_flipped_labels():
    """Of the true margin 3: flipped with chance 1/4, the mean of the loss is that of dpo on true labels."""
    given = {"ref_logprobs": torch.zeros(2, dtype=torch.float64), "rows": torch.tensor([0, 1]), "beta": 1.0,
             "loss_type": "robust", "label_smoothing": 0.25, "chosen_tokens": torch.ones(2)}
    kept, flipped = (dpo(torch.tensor(gaps, dtype=torch.float64), **given)[0][0].item()
                     for gaps in ([3.0, 0.0], [0.0, 3.0]))
    assert 0.75 * kept + 0.25 * flipped == pytest.approx(minus_log_sigmoid(3))


def without_reference(function, logprobs, rows, **given):
    columns = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    loss, statistics = function(columns, torch.tensor(rows), **given)
    return loss, columns, {name: value.tolist() for name, value in statistics.items()}


def test_simpo_compares_means_with_a_margin():
    """Means -1 and -2 over 2 and 1 tokens: 2 (-1 + 2) - 1 = 1. Each chosen token has half of -beta sigmoid(-1)."""
    loss, columns, statistics = without_reference(simpo, [-0.5, -1.5, -2.0], [0, 0, 1])
    assert loss.tolist() == pytest.approx([minus_log_sigmoid(1)] * 3)
    loss[0].backward()
    assert columns.grad.tolist() == pytest.approx([-1 / (1 + math.e), -1 / (1 + math.e), 2 / (1 + math.e)])
    assert statistics["chosen_reward"] == pytest.approx([-2.0] * 3)


def test_orpo_adds_the_odds_to_the_likelihood():
    """p = 3/4 and 1/2: odds 3 and 1, so -log(3/4) - 0.1 log sigmoid(log 3) = -log(3/4) - 0.1 log(3/4)."""
    loss, _, statistics = without_reference(orpo, [2 * math.log(0.75), 0.0, math.log(0.5)], [0, 0, 1])
    assert loss.tolist() == pytest.approx([-1.1 * math.log(0.75)] * 3)
    assert statistics["log_odds_ratio"] == pytest.approx([math.log(3)] * 3)
    same, columns, _ = without_reference(orpo, [-1.0, -1.0], [0, 1])
    same[0].backward()
    assert columns.grad.sum().item() == pytest.approx(-1)  # of the likelihood; the odds' cancel
    certain = without_reference(orpo, [0.0, math.log(0.5)], [0, 1])[2]  # log p is at most -2^-24 there
    assert certain["log_odds_ratio"] == pytest.approx([24 * math.log(2)] * 2)


# c = 0.2, r = -0.1 and c = 0, r = 0.2 by GAPS and beta 0.1; l(x) = -log sigmoid(x)
MARGINS = ((0.2, -0.1), (0.0, 0.2))


@pytest.mark.parametrize(("name", "by_hand"), [
    ("nca_pair", lambda c, r: minus_log_sigmoid(c) + (minus_log_sigmoid(-c) + minus_log_sigmoid(-r)) / 2),
    ("bco_pair", lambda c, r: minus_log_sigmoid(c) + minus_log_sigmoid(-r)),
    ("sppo_hard", lambda c, r: 100 * ((c - 0.5) ** 2 + (r + 0.5) ** 2)),
    ("apo_zero", lambda c, r: 1 / (1 + math.exp(c)) + 1 / (1 + math.exp(-r))),
    ("apo_down", lambda c, r: 1 / (1 + math.exp(-c)) + 1 / (1 + math.exp(c - r)))])
def test_losses_of_the_two_responses_of_a_pair(name, by_hand):
    found = losses(dpo, loss_type=name)[0]
    assert found == pytest.approx([by_hand(*MARGINS[0])] * 3 + [by_hand(*MARGINS[1])] * 5)


def test_aot_compares_what_has_the_same_rank_in_the_batch():
    """beta 1. Policy, chosen less rejected: -2 + 3 = 1 and -2 + 6 = 4; reference -2 and 6, in the same order. Unpaired:
    c = 2, 0 and r = -1, 2, so 0 goes with -1 and 2 with 2."""
    given = {"beta": 1.0}
    found, mean, gaps, _ = losses(dpo, loss_type="aot", **given)
    assert found == pytest.approx([minus_log_sigmoid(1 + 2)] * 3 + [minus_log_sigmoid(4 - 6)] * 5)
    found, mean, gaps, _ = losses(dpo, loss_type="aot_unpaired", **given)
    assert mean.item() == pytest.approx((minus_log_sigmoid(1) + minus_log_sigmoid(0)) / 2)
    mean.backward()  # -sigmoid(-1) / 2 and -1/4 for the responses that are compared, each token of them
    one = 1 / (1 + math.e) / 2
    assert gaps.grad.tolist() == pytest.approx([-0.25, -0.25, one, -one] + [0.25] * 4)
    # three pairs, chosen 1 5 3 and rejected 0 2 1: a response goes with the other side's of its rank; as pairs 1 3 2,
    # and the reference's are 3 1 2
    ours, rows = torch.tensor([1.0, 0, 5, 2, 3, 1]), torch.arange(6)
    for name, theirs, partners in (("aot_unpaired", [0.0] * 6, [0, 1, 2, 5, 1, 3]),
                                   ("aot", [3.0, 0, 1, 0, 2, 0], [-2, -2, 2, 2, 0, 0])):
        assert Dpo(loss_type=[name], beta=1.0).choose(ours, torch.tensor(theirs), rows).tolist() == partners


def test_a_list_is_a_weighted_sum_and_the_likelihood_is_over_all_chosen_tokens():
    """Chosen log-probs -1 -1 and -2, of 3 tokens in 2 pairs: 2 / 1.5 and 2 / 1.5, whose mean is 4 / 3."""
    found, mean, _, _ = losses(dpo, loss_type=["sigmoid", "sft"], loss_weights=[0.5, 2.0],
                               chosen_tokens=torch.full((8,), 1.5))
    assert found[0] == pytest.approx(0.5 * minus_log_sigmoid(0.3) + 2 * 2 / 1.5)
    assert mean.item() == pytest.approx((minus_log_sigmoid(0.3) + minus_log_sigmoid(-0.2)) / 4 + 2 * 4 / 3)


def test_cpo_adds_the_likelihood_to_the_margin():
    """beta 1: log 2 where both are equally likely; two chosen tokens of -1 over 2 of them."""
    loss, columns, _ = without_reference(called(Cpo), [-1.0, -1.0, -2.0], [0, 0, 1], beta=1.0, cpo_alpha=0.5,
                                         chosen_tokens=torch.full((3,), 2.0))
    assert loss.tolist() == pytest.approx([math.log(2) + 0.5] * 3)
    loss[0].backward()
    assert columns.grad.tolist() == pytest.approx([-0.75, -0.75, 0.5])


@pytest.mark.parametrize(("wrong", "named"), [
    ({"loss_type": "sigmiod"}, "loss_type.0"), ({"loss_type": []}, "loss_type"), ({"loss_type": 3}, "loss_type"),
    ({"loss_type": ["aot", "aot_unpaired"]}, "loss_type"), ({"loss_weights": ["one"]}, "loss_weights.0"),
    ({"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0]}, "loss_weights"),
    ({"loss_weights": [math.nan]}, "loss_weights.0"), ({"loss_type": "exo_pair"}, "label_smoothing"),
    ({"loss_type": "bco_pair", "label_smoothing": 0.1}, "label_smoothing")])
def test_lists_that_are_no_losses_or_no_weights_are_refused(wrong, named):
    with refuses(ConfigError, f"algorithm.policy_loss_fn_args.{named}"):
        Dpo.bind("dpo", wrong, "algorithm.policy_loss_fn_args")
