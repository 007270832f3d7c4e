"""The KL that kto estimates over a train batch: which rows, and their log-ratios by plain torch."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from ouroboros.stages.learner.actor import Actor
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.objective import Objective
from ouroboros.stages.learner.steps import estimated_kl, mismatched
from tests.configs import TINY, overridden

SETTINGS = ("algorithm.algorithm_type=kto", "algorithm.policy_loss_fn_args={beta: 1.0, estimate_kl: true}")


def pairs():
    """Three pairs: a prompt of 2, 3, 4 tokens, and responses of 1 to 6; the first response has a token of others."""
    source, made = torch.Generator().manual_seed(3), []
    for pair in range(3):
        prompt = torch.randint(3, 99, (2 + pair,), generator=source).tolist()
        for which in range(2):
            response = torch.randint(3, 99, (1 + 2 * pair + which,), generator=source).tolist()
            mask = [1] * len(response) if pair + which else [1]
            made.append(Row(f"{pair}/{which}", prompt + response, len(prompt), mask))
    made[5].mask[0] = 0
    return made


def test_each_prompt_has_the_responses_of_the_next_pair():
    rows = pairs()
    for place, made in enumerate(mismatched(rows)):
        other = rows[(place + 2) % 6]
        assert made.tokens[: made.prompt_length] == rows[place].tokens[: rows[place].prompt_length]
        assert (made.tokens[made.prompt_length :], made.mask) == (other.tokens[other.prompt_length :], other.mask)


def test_pairs_of_one_prompt_are_not_taken_with_each_other():
    def row(name, prompt, response):
        return Row(name, [*prompt, response], len(prompt), [1])

    rows = [row(f"{pair}{which}", prompt, 10 * pair + which)
            for pair, prompt in enumerate(([1, 2], [1, 2], [3], [1, 2])) for which in range(2)]
    assert [made.tokens for made in mismatched(rows)] == [
        [1, 2, 20], [1, 2, 21], [1, 2, 20], [1, 2, 21], [3, 30], [3, 31], [1, 2, 20], [1, 2, 21]]
    assert mismatched(rows[:4]) == []
    assert estimated_kl(None, rows[:4]) is None


def sums(model, rows):
    with torch.no_grad():
        scored = [model(torch.tensor([row.tokens])).logits[0].double().log_softmax(-1) for row in rows]
    return [sum(scores[row.prompt_length + place - 1, row.tokens[row.prompt_length + place]].item()
                for place, acts in enumerate(row.mask) if acts) for row, scores in zip(rows, scored, strict=True)]


def test_the_estimate_is_the_mean_log_ratio_of_the_policy_now_and_no_less_than_zero(tiny_model, process):
    config, rows = overridden(*TINY, *SETTINGS), pairs()
    actor, objective = Actor(tiny_model, config, process, 1.0, keep_initial=True), Objective(config)
    assert "estimated_kl" in objective.row_columns
    assert estimated_kl(actor, rows) == pytest.approx(0.0, abs=1e-6)
    for row, found in zip(rows, actor.reference_logprobs(rows), strict=True):
        row.columns |= {"ref_logprobs": row.spread(found), "estimated_kl": 0.25}
    result = actor.step(rows, objective, 1e-2, 1)
    assert result.statistics["estimated_kl"] == pytest.approx(0.25)
    assert result.loss == pytest.approx((1 / (1 + 2.718281828 ** -0.25) + 1 / (1 + 2.718281828 ** 0.25)) / 2, abs=1e-6)
    plain, others = AutoModelForCausalLM.from_pretrained(tiny_model, local_files_only=True), mismatched(rows)
    before = sums(plain, others)
    actor.step(others, Objective(overridden(*TINY, "algorithm.algorithm_type=sft")), 1e-2, 2)
    plain.load_state_dict(actor.full_state(), strict=False)
    mean = (sum(sums(plain, others)) - sum(before)) / 6
    assert mean > 0.1  # likelier than under the reference, so that zero is no bound
    assert estimated_kl(actor, rows) == pytest.approx(mean, rel=1e-4)
    actor.follow(2.0)  # to twice the way from where it was: there the responses are likelier still
    assert sum(map(sum, actor.score_rows(others))) < sum(map(sum, actor.reference_logprobs(others))) - 0.1
    assert estimated_kl(actor, rows) == 0.0
