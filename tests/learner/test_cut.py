"""The gradient of a batch is the sum of those of its parts, however it is cut into ranks and micro-batches.

Every loss with its KL, entropy and correction, through `pack` and `Objective`, on a model of one table, in float64.
tests/learner/test_ranks.py does some of it with DeepSpeed on real ranks.
"""

import random

import numpy as np
import pytest
import torch

from ouroboros.operators.aggregation import AGGREGATIONS
from ouroboros.pipeline.settings.algorithms import MIXED_LOSSES, OF_PAIRS
from ouroboros.pipeline.settings.declared import POLICY_LOSSES
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.packing import pack
from ouroboros.stages.learner.objective import Objective
from tests.configs import overridden

WORDS = 11
CUTS = [(1, 24), (3, 24), (13, 1000)]  # ranks, token budget of a micro-batch; of 13 ranks one has no row at all
PARTS = ("algorithm.kl_loss_fn=corrected_k3", "algorithm.kl_loss_fn_args.kl_coef=0.3",
         "algorithm.policy_loss_fn_args={}", "algorithm.entropy_loss_fn_args.entropy_coef=0.2",
         "algorithm.bypass_old_logprobs=false", "algorithm.rollout_correction.level=sequence")


def rows() -> list[Row]:
    """Twelve rows of 4 to 12 tokens, some not the policy's own, log-probs about those of the table."""
    source, made = random.Random(5), []
    for i in range(12):
        prompt, response = source.randint(1, 4), source.randint(3, 8)
        mask = [int(source.random() < 0.8) for _ in range(response - 1)] + [1]
        columns = {"advantages": [source.gauss(0, 1) for _ in range(response)], "is_expert": i % 3 == 1,
                   "chosen": [(i + j) % 2 for j in range(response)], "margin": 0.1 * i}
        for name in ("old_logprobs", "rollout_logprobs", "ref_logprobs"):
            columns[name] = [source.gauss(-2.4, 0.5) for _ in range(response)]
        columns["teacher_top_ids"] = np.array([source.sample(range(WORDS), 2) for _ in range(response)])
        columns["teacher_top_logprobs"] = np.log(np.full((response, 3), [0.5, 0.2, 0.3]))
        tokens = [source.randrange(WORDS) for _ in range(prompt + response)]
        made.append(Row(f"r{i}", tokens, prompt, mask, columns))
    return made


def learnt(objective: Objective, ranks: int, budget: int) -> tuple[float, torch.Tensor]:
    """Loss and gradient by the table, summed over all micro-batches of all ranks."""
    torch.manual_seed(0)
    table = torch.randn(WORDS, WORDS, dtype=torch.float64, requires_grad=True)
    total = torch.zeros((), dtype=torch.float64)
    for rank in range(ranks):
        for micro in pack(rows(), budget, rank, ranks, objective.row_columns, objective.aggregation):
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


@pytest.mark.parametrize(("name", "mode"), [*((name, None) for name in POLICY_LOSSES), *(
    ("mix", mode) for mode in AGGREGATIONS)])
def test_no_cut_changes_loss_or_gradient(algorithm, name, mode):
    own = {"algorithm_type": name if name in OF_PAIRS else "grpo", "policy_loss_fn": name, "loss_agg_mode": mode,
           "entropy_loss_fn": "mix" if name in MIXED_LOSSES else "default"}
    if "rollout_logprobs" in POLICY_LOSSES[name].columns:  # its ratio is the correction
        own["rollout_correction"] = {"level": "none"}
    objective = Objective(algorithm.merged({"algorithm": own}))
    loss, gradient = learnt(objective, 1, 1000)
    assert (gradient.abs() > 1e-5).double().mean() > 0.5
    for ranks, budget in CUTS:
        of_parts, in_parts = learnt(objective, ranks, budget)
        assert of_parts == pytest.approx(loss, rel=1e-9)
        torch.testing.assert_close(in_parts, gradient, rtol=1e-9, atol=1e-11)
