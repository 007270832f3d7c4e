"""The gradient of every loss, in float64, against central differences of the paper's objective (tests/objectives.py).

The value is compared too, so a loss and its objective are the same function of the log-probs and of what is constant.
"""

import math
import random
from collections import Counter
from itertools import product

import pytest
import torch

from ouroboros.operators.entropy import ENTROPY_LOSSES
from ouroboros.operators.kl import KL_ESTIMATORS
from ouroboros.pipeline.settings.arguments.users import needed_columns
from ouroboros.pipeline.settings.declared import POLICY_LOSSES
from tests import objectives
from tests.factories import called
from tests.objectives import Batch, differences

SEEDS = range(3)
LENGTHS = [3, 1, 4, 2, 2, 4, 1, 3]  # four pairs of rows, twenty tokens
# by how much log-probs have changed: within every trust region, beyond the bounds, beyond the dual clip at ln 3
CHANGES = [0.05, -0.05, 0.12, -0.12, 0.4, -0.5, 0.8, -1.1, 1.3, -2.0]


def batch(seed: int) -> tuple[Batch, list[float]]:
    """(batch, log-probs). The response ratios of rows 0 and 3 are e^0.0001: GSPO's bounds are as narrow as that."""
    source = random.Random(seed)
    row = [r for r, length in enumerate(LENGTHS) for _ in range(length)]
    rows = [[t for t, of in enumerate(row) if of == r] for r in range(len(LENGTHS))]

    def near(changes: list[float]) -> list[float]:
        return [x - change + source.uniform(-0.02, 0.02) for x, change in zip(new, changes, strict=True)]

    new = [-source.uniform(0.2, 3.0) for _ in row]
    changes, signs = zip(*source.sample(list(product(CHANGES, (-1, 1))), 20), strict=True)
    old = near(changes)
    for tokens in (rows[0], rows[3]):
        gap = sum(new[t] - old[t] for t in tokens) / len(tokens)
        for t in tokens:
            old[t] += gap - 1e-4
    prox = near(source.sample(CHANGES * 2, 20))
    ref = near([2 * change for change in source.sample(CHANGES * 2, 20)])
    advantages = [sign * source.uniform(0.3, 2.0) for sign in signs]
    return Batch(rows, row, old, prox, ref, advantages, [r % 2 == 1 for r in row], step=3), new


def tensors(given: Batch) -> dict[str, torch.Tensor]:
    """The columns that the learner hands to a function beside log-probs and entropy."""
    named = {"old_logprobs": given.old, "rollout_logprobs": given.old, "prox_logprobs": given.prox,
             "ref_logprobs": given.ref, "advantages": given.advantages, "margin": [abs(a) for a in given.advantages]}
    return {**{name: torch.tensor(values, dtype=torch.float64) for name, values in named.items()},
            "rows": torch.tensor(given.row), "is_expert": torch.tensor(given.is_expert),
            "step": torch.tensor(given.step),
            "chosen_tokens": torch.full((20,), 2.5, dtype=torch.float64)}  # 3 + 4 + 2 + 1 of four pairs


def compare(function, objective, extra: dict) -> Counter:
    """Value and gradient of both, weighted by row, for every seed. Returns how often each branch was taken."""
    met = Counter()
    for seed in SEEDS:
        given, held = batch(seed)
        weights = [(1 + r) / (20 * LENGTHS[r]) for r in given.row]

        def total(new, given=given, held=held, weights=weights):
            return sum(w * objective(t, new, held, given, **extra)[0] for t, w in enumerate(weights))

        new = torch.tensor(held, dtype=torch.float64, requires_grad=True)
        columns = tensors(given) | {"logprobs": new, "entropy": new, "scores": new}
        columns |= {key: torch.stack([columns[of], -columns[of]], 1).log_softmax(1) for key, of in (
            ("top_logprobs", "logprobs"), ("teacher_top_logprobs", "ref_logprobs"))}
        made = function(**{name: columns[name] for name in needed_columns(function)}, **extra)
        loss = made[0] if isinstance(made, tuple) else made
        loss = (loss * torch.tensor(weights, dtype=torch.float64)).sum()
        found = torch.autograd.grad(loss, new)[0].tolist() if loss.requires_grad else [0.0] * len(held)
        assert loss.item() == pytest.approx(total(held), rel=1e-9, abs=1e-12)
        assert found == pytest.approx(differences(total, held), rel=1e-6, abs=1e-8)
        assert objective is objectives.nothing or sum(abs(x) > 1e-3 for x in found) >= 5
        met.update(objective(t, held, held, given, **extra)[1] for t in range(len(held)))
    return met


CLIPPED = "free above below"
CASES = [
    ("cispo", {}, "free above"), ("cispo", {"clip_range_low": 0.3}, CLIPPED),
    ("cispo", {"enable_mask_clip": True, "mask_clip_range_low": 0.3}, "free above masked"),
    ("clip_cov", {"clip_cov_ratio": 1.0, "clip_cov_lb": 0.5}, "free above below left-out"),
    ("clip_cov", {"clip_cov_ratio": 1.0, "clip_cov_lb": 9.0, "clip_cov_ub": 9.0, "clip_range_high": 0.3}, CLIPPED),
    ("kl_cov", {}, "free held"), ("kl_cov", {"kl_cov_ratio": 0.3, "ppo_kl_coef": 0.5}, "free held"),
    ("decoupled_ppo", {}, CLIPPED), ("decoupled_ppo", {"behave_weight_cap": 1.1}, "free above below capped"),
    ("dpo", {}, "pair"), ("dpo", {"beta": 0.4, "label_smoothing": 0.2}, "pair"),
    ("dpo", {"beta": 0.4, "loss_type": "hinge"}, "pair beyond"),
    ("dpo", {"beta": 0.4, "loss_type": "robust", "label_smoothing": 0.2}, "pair"),
    ("dpo", {"loss_type": ["nca_pair", "sft"], "loss_weights": [0.5, 2.0], "beta": 0.4}, "both"),
    ("cpo", {}, "pair"), ("cpo", {"beta": 0.4, "label_smoothing": 0.2, "cpo_alpha": 0.5}, "pair"),
    ("dppo_kl", {}, "free far"), ("dppo_kl", {"clip_range_low": 0.2, "clip_range_high": 0.4, "clip_ratio_c": 1.4},
                                  "free far cut"),
    ("dppo_tv", {}, "free far"), ("dppo_tv", {"clip_range_low": 0.1, "clip_range_high": 0.3, "clip_ratio_c": 1.4},
                                  "free far cut"),
    ("forward_kl_topk", {}, "free"),
    ("gmpo", {}, CLIPPED), ("gmpo", {"clip_range_low": 0.1, "clip_range_high": 0.8}, CLIPPED),
    ("gspo", {}, CLIPPED), ("gspo", {"clip_range_low": 0.1, "clip_range_high": 0.2}, CLIPPED),
    ("gspo_token", {}, CLIPPED), ("gspo_token", {"clip_range_low": 0.1, "clip_range_high": 0.2}, CLIPPED),
    ("importance_sampling", {}, "free"), ("ipo", {}, "pair"), ("ipo", {"beta": 0.5}, "pair"),
    ("ipo", {"length_normalized": True}, "pair"), ("orpo", {}, "pair"), ("orpo", {"beta": 1.0}, "pair"),
    ("luspo", {}, CLIPPED), ("luspo", {"clip_range_low": 0.1, "clip_range_high": 0.2}, CLIPPED),
    ("kto", {}, "chosen rejected"),
    ("kto", {"beta": 0.4, "desirable_weight": 0.5, "undesirable_weight": 2.0, "reference_point": 0.3},
     "chosen rejected"),
    ("m2po", {"level": "batch"}, "free dropped"),
    ("m2po", {}, "free dropped"), ("m2po", {"m2_threshold": 0.5}, "free dropped"),
    ("mix", {}, f"{CLIPPED} dual expert"), ("mix", {"mu": 0.6}, f"{CLIPPED} dual expert"),
    ("mix_chord", {}, f"{CLIPPED} dual expert"),
    ("mix_chord", {"mu_warmup_steps": 2, "mu_decay_steps": 4, "mu_peak": 0.9, "cutoff_prob": 0.4},
     f"{CLIPPED} dual expert"),
    ("mix_chord", {"enable_phi_function": False}, f"{CLIPPED} dual expert"),
    ("opmd", {}, "free"), ("opmd", {"tau": 3.0}, "free"),
    ("ppo", {}, f"{CLIPPED} dual"), ("ppo", {"clip_range": 0.3, "clip_ratio_c": 2.5}, f"{CLIPPED} dual"),
    ("ppo", {"clip_range_low": 0.1, "clip_range_high": 0.6}, f"{CLIPPED} dual"),
    ("ppo", {"enable_sequence_masking": True, "delta_sequence_masking": 0.2}, f"{CLIPPED} dual masked"),
    ("ppo", {"clip_ratio_c": None}, CLIPPED), ("simpo", {}, "pair"),
    ("simpo", {"beta": 0.5, "simpo_gamma": 0.0, "label_smoothing": 0.1}, "pair"),
    ("ppo", {"fallback_to_policy_gradient": True}, "free"),
    ("sapo", {}, "up down"), ("sapo", {"tau_pos": 0.7, "tau_neg": 2.0}, "up down"), ("sft", {}, "free"),
    ("sft_is", {}, "free"), ("sft_phi", {}, "free"), ("sft_phi", {"cutoff_prob": 0.4}, "free known"),
    ("reward_model", {}, "pair"), ("reward_model", {"center_rewards_coefficient": 0.3}, "pair"),
    ("sppo", {}, "inside outside"), ("sppo", {"epsilon": 1.0}, "inside outside"),
    ("topr", {}, "success tapered whole"), ("topr", {"level": "token"}, "success tapered whole"),
    ("vespo", {}, "up down"), ("vespo", {"vespo_k_pos": 0.5, "vespo_lambda_neg": 1.0}, "up down"),
    ("topr", {"advantage_threshold": 0.8}, "success tapered whole"),
]
INDICATORS = {"none": "taught", "two-side": "taught dropped", "one-side": "taught dropped",
              "ring": "taught dropped returning", "gspo-one-side": "taught dropped"}
WEIGHTS = ("none", "importance_sampling", "gspo_importance_sampling", "advantage")
REGULARIZERS = ("none", "k2", "forward-kl")


@pytest.mark.parametrize(("name", "extra", "branches"), CASES)
def test_policy_losses(name, extra, branches):
    assert set(compare(called(POLICY_LOSSES[name]), objectives.POLICY[name], extra)) == set(branches.split())


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("mode", INDICATORS)
def test_every_mode_of_rec(mode, weight):
    for regularizer in REGULARIZERS:
        extra = {"clip_mode": mode, "weight": weight, "regularizer": regularizer, "regularizer_coef": 0.7, "temp": 1.5}
        found = compare(called(POLICY_LOSSES["rec"]), objectives.POLICY["rec"], extra)
        assert set(found) == set(INDICATORS[mode].split())


@pytest.mark.parametrize(("name", "branches"), [
    ("abs", "above below"), ("corrected_k3", "free above"), ("k1", "free"), ("k2", "free"), ("k3", "free"),
    ("low_var_kl", "free far"), ("none", "free")])
def test_kl_losses(name, branches):
    assert set(compare(KL_ESTIMATORS[name], objectives.KL[name], {})) == set(branches.split())


@pytest.mark.parametrize(("name", "extra", "branches"), [
    ("default", {"entropy_coef": 0.3}, "free"), ("mix", {"entropy_coef": -0.2}, "free expert"), ("none", {}, "free")])
def test_entropy_losses(name, extra, branches):
    """By the entropy of each token; that by the logits is the policy's (tests/learner/test_policy.py)."""
    assert set(compare(ENTROPY_LOSSES[name], objectives.ENTROPY[name], extra)) == set(branches.split())


def test_no_loss_is_left_out():
    assert {name for name, _, _ in CASES} | {"rec"} == set(POLICY_LOSSES) == set(objectives.POLICY)
    assert set(objectives.KL) == set(KL_ESTIMATORS)
    assert set(objectives.ENTROPY) == set(ENTROPY_LOSSES)


def test_the_inputs_are_on_both_sides_of_every_bound_with_both_signs():
    """Of the ratio: rec's outer bounds 0.4 and 3, which is the dual clip's too, and PPO's 0.8 and 1.2."""
    met = Counter()
    for given, new in map(batch, SEEDS):
        for t, a in enumerate(given.advantages):
            ratio = math.exp(new[t] - given.old[t])
            met[a > 0, sum(ratio > bound for bound in (0.4, 0.8, 1.2, 3.0))] += 1
    assert set(met) == set(product((True, False), range(5)))
