"""Losses on pairs against TRL's own, each on 100 random batches: `make test-frameworks` fetches them."""

import sys
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from ouroboros.operators.aggregation import token_weights
from ouroboros.operators.losses.cpo import Cpo
from ouroboros.operators.losses.dpo import FORMS, ORDERED, Dpo
from ouroboros.pipeline.store.files import HOME

pytestmark = pytest.mark.frameworks
LISTS = (["sigmoid", "bco_pair", "sft"], [0.8, 0.2, 1.0])  # MPO


@pytest.fixture(autouse=True)
def trl(monkeypatch):
    monkeypatch.syspath_prepend(HOME / ".scorers")
    for name in [name for name in sys.modules if name.partition(".")[0] == "trl"]:
        monkeypatch.delitem(sys.modules, name)


def batch(seed: int, pairs: int = 5, longest: int = 6):
    """Log-probs of policy and reference, [2 pairs, longest], chosen ones first as TRL has them, and lengths."""
    torch.manual_seed(seed)
    ours, reference = (-torch.rand(2 * pairs, longest, dtype=torch.float64) * 3 for _ in range(2))
    return ours.requires_grad_(), reference, torch.randint(1, longest + 1, (2 * pairs,))


def of_trl(ours, reference, lengths, **settings):
    """The loss of DPOTrainer, called with a stand-in for the trainer and the log-probs in place of a model's."""
    from trl.trainer.dpo_trainer import DPOTrainer

    mask = (torch.arange(ours.shape[1])[None] < lengths[:, None]).long()
    mask = torch.nn.functional.pad(mask, (1, 0))  # a prompt of one token
    zeros = torch.zeros_like(ours)
    outputs = SimpleNamespace(log_probs=ours * mask[:, 1:], entropy=zeros, mean_logits=zeros, is_top1=zeros.bool())
    chosen, rejected = (reference * mask[:, 1:]).sum(1).chunk(2)
    as_it_is = SimpleNamespace(device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x)
    kinds = settings["loss_type"]
    trainer = SimpleNamespace(
        model=torch.nn.Identity(), accelerator=as_it_is, aux_loss_enabled=False, ld_alpha=None,
        precompute_ref_logps=True, f_divergence_type="reverse_kl", loss_types=kinds, use_weighting=False,
        loss_weights=settings.get("loss_weights") or [1.0] * len(kinds), beta=settings.get("beta", 0.1),
        label_smoothing=settings.get("label_smoothing", 0.0), args=SimpleNamespace(discopop_tau=0.05),
        _metrics=defaultdict(lambda: defaultdict(list)), _total_train_tokens=0, _tp_size=1)
    inputs = {"input_ids": torch.ones_like(mask), "completion_mask": mask, "attention_mask": mask,
              "ref_chosen_logps": chosen, "ref_rejected_logps": rejected}
    return DPOTrainer._compute_loss(trainer, lambda **given: outputs, inputs, False)


def of_ours(loss, ours, lengths, **columns):
    """The average that the learner forms, of rows in our order: pair after pair."""
    pairs = len(lengths) // 2
    order = torch.arange(2 * pairs).reshape(2, pairs).T.flatten()
    rows = torch.repeat_interleave(torch.arange(2 * pairs), lengths[order])
    flat = {name: torch.cat([values[i, : lengths[i]] for i in order.tolist()])
            for name, values in {"logprobs": ours, **columns}.items()}
    mean = torch.full_like(flat["logprobs"], lengths[:pairs].double().mean().item())
    found, _ = loss(**flat, rows=rows, chosen_tokens=mean)
    weights = torch.from_numpy(token_weights("seq-mean-token-mean", lengths[order].tolist()))[rows]
    return (found * weights).sum()


def equal(mine, theirs, ours):
    (gradient,), (other,) = (torch.autograd.grad(one, ours) for one in (mine, theirs))
    assert mine.item() == pytest.approx(theirs.item(), rel=1e-6, abs=1e-6)
    assert torch.allclose(gradient, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("kinds", "weights"), [*(([name], None) for name in FORMS), LISTS])
def test_a_loss_is_that_of_trl_by_this_name(kinds, weights):
    smoothing = 0.1 if {"robust", "exo_pair", *ORDERED} & set(kinds) else 0.0
    settings = {"loss_type": kinds, "loss_weights": weights, "label_smoothing": smoothing, "beta": 0.3}
    for seed in range(100):
        ours, reference, lengths = batch(seed)
        equal(of_ours(Dpo(**settings), ours, lengths, ref_logprobs=reference),
              of_trl(ours, reference, lengths, **settings), ours)


def test_cpo_is_that_of_trl():
    """But for the likelihood of prompts, which TRL's adds: here it is of responses in both."""
    from trl.experimental.cpo.cpo_trainer import CPOTrainer

    for seed in range(100):
        ours, _, lengths = batch(seed)
        inside = torch.arange(ours.shape[1])[None] < lengths[:, None]
        trainer = SimpleNamespace(alpha=0.0, beta=0.3, label_smoothing=0.1, loss_type="sigmoid",
                                  accelerator=SimpleNamespace(device="cpu"))
        losses, _, _ = CPOTrainer.cpo_loss(trainer, *(ours * inside).sum(1).chunk(2))
        chosen = inside[: len(ours) // 2]
        likelihood = -ours[: len(chosen)][chosen].mean()
        equal(of_ours(lambda **given: Cpo(beta=0.3, label_smoothing=0.1, cpo_alpha=0.7)(**given), ours, lengths),
              losses.mean() + 0.7 * likelihood, ours)
