"""Loss and gradient of a batch do not depend on how it is cut: micro-batches, ranks, order of rows, packing.

Every loss with its KL, entropy and correction, through `pack` and `Objective`, on a model of one table, in float64.
tests/learner/test_ranks.py does some of it with DeepSpeed on real ranks.
"""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ouroboros.operators.aggregation import AGGREGATIONS
from ouroboros.pipeline.settings.algorithms import MIXED_LOSSES, OF_PAIRS
from ouroboros.pipeline.settings.declared import POLICY_LOSSES
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.packing import Fill, pack
from ouroboros.stages.learner.objective import Objective
from tests.configs import overridden
from tests.operators.test_loss import VARIANTS

WORDS = 11
CUTS = st.tuples(st.integers(1, 13), st.integers(24, 90))  # ranks, of 13 one has no row; tokens of a micro-batch
PARTS = ("algorithm.kl_loss_fn=corrected_k3", "algorithm.kl_loss_fn_args.kl_coef=0.3",
         "algorithm.policy_loss_fn_args={}", "algorithm.entropy_loss_fn_args.entropy_coef=0.2",
         "algorithm.bypass_old_logprobs=false", "algorithm.rollout_correction.level=sequence")


def rows(seed: int) -> list[Row]:
    """Six pairs of rows of 4 to 12 tokens, the rows of two pairs with one prompt; some tokens are not the policy's own,
    log-probs are about those of the table."""
    source, made = random.Random(seed), []
    for i in range(12):
        if i % 4 == 0:
            prompt = [source.randrange(WORDS) for _ in range(source.randint(1, 4))]
        response = [source.randrange(WORDS) for _ in range(source.randint(3, 8))]
        mask = [int(source.random() < 0.8) for _ in response[1:]] + [1]
        columns = {"advantages": [source.gauss(0, 1) for _ in response], "is_expert": i % 3 == 1,
                   "chosen": [(i + j) % 2 for j in range(len(response))], "margin": 0.1 * i}
        for name in ("old_logprobs", "rollout_logprobs", "ref_logprobs"):
            columns[name] = [source.gauss(-2.4, 0.5) for _ in response]
        columns["teacher_top_ids"] = np.array([source.sample(range(WORDS), 2) for _ in response])
        columns["teacher_top_logprobs"] = np.log(np.full((len(response), 3), [0.5, 0.2, 0.3]))
        made.append(Row(f"r{i}", prompt + response, len(prompt), mask, columns))
    for row in made:
        row.columns["chosen_tokens"] = sum(sum(one.mask) for one in made[0::2]) / 6
    return made


def learnt(objective: Objective, some: list[Row], ranks: int, budget: int, fill: Fill) -> tuple[float, torch.Tensor]:
    """Loss and gradient by the table, summed over all micro-batches of all ranks."""
    torch.manual_seed(0)
    table = torch.randn(WORDS, WORDS, dtype=torch.float64, requires_grad=True)
    total = torch.zeros((), dtype=torch.float64)
    for rank in range(ranks):
        for micro in pack(some, budget, rank, ranks, objective.row_columns, objective.aggregation, fill):
            scores = table[torch.from_numpy(micro.input_ids[micro.source])].log_softmax(-1)
            columns = {name: torch.from_numpy(values) for name, values in micro.columns.items()}
            columns |= {"logprobs": scores.gather(-1, torch.from_numpy(micro.targets)[:, None])[:, 0],
                        "entropy": -(scores.exp() * scores).sum(-1), "rows": torch.from_numpy(micro.row_in_micro),
                        "step": torch.tensor(3)}
            columns["prox_logprobs"], columns["scores"] = columns["logprobs"].detach(), columns["logprobs"]
            if "teacher_top_ids" in columns:
                likely = scores.gather(-1, columns["teacher_top_ids"].long())
                columns["top_logprobs"] = torch.cat([likely, (1 - likely.exp().sum(-1, keepdim=True)).log()], dim=1)
            loss, _ = objective(columns)
            total = total + (loss * torch.from_numpy(micro.weights)).sum()
    return total.item(), torch.autograd.grad(total, table)[0]


@pytest.fixture(scope="module")
def algorithm():
    return overridden(*PARTS)


@pytest.mark.parametrize(("name", "extra"), VARIANTS)
@settings(max_examples=3, deadline=None)  # the first is the plain cut
@given(st.integers(0, 99), st.sampled_from([None, *AGGREGATIONS]), st.sampled_from(Fill), CUTS,
       st.permutations(range(6)))
def test_no_cut_changes_loss_or_gradient(algorithm, name, extra, seed, mode, fill, cut, order):
    masks = any(key.startswith("enable_") and key.endswith(("clip", "masking")) for key in extra)
    own = {"algorithm_type": name if name in OF_PAIRS else "grpo", "policy_loss_fn": name,
           "policy_loss_fn_args": extra, "loss_agg_mode": mode, "bypass_old_logprobs": masks,
           "entropy_loss_fn": "mix" if name in MIXED_LOSSES else "default"}
    if masks or "rollout_logprobs" in POLICY_LOSSES[name].columns:  # its ratio is the correction
        own["rollout_correction"] = {"level": "none"}
    objective, some = Objective(algorithm.merged({"algorithm": own})), rows(seed)
    loss, gradient = learnt(objective, some, 1, 1000, Fill.FLAT)
    assert (gradient.abs() > 1e-5).double().mean() > 0.3
    of_parts, in_parts = learnt(objective, [some[2 * pair + i] for pair in order for i in (0, 1)], *cut, fill)
    assert of_parts == pytest.approx(loss, rel=1e-6)
    torch.testing.assert_close(in_parts, gradient, rtol=1e-6, atol=1e-8)
