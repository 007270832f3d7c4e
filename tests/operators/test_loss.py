"""What holds of every policy loss: shapes, no dependence on how the batch is cut, no overflow."""

import pytest
import torch

from ouroboros.operators.aggregation import AGGREGATIONS, token_weights, token_weights_by_kind
from ouroboros.pipeline.settings.algorithms import MIXED_LOSSES, OF_PAIRS
from ouroboros.pipeline.settings.declared import POLICY_LOSSES
from tests.golden.messages import refuses

# beside the defaults: what switches a branch on
VARIANTS = [(name, {}) for name in POLICY_LOSSES] + [
    ("cispo", {"enable_mask_clip": True}), ("dpo", {"label_smoothing": 0.2}),
    ("dpo", {"loss_type": "hinge"}), ("dpo", {"loss_type": "robust", "label_smoothing": 0.2}),
    ("dpo", {"loss_type": ["bco_pair", "discopop", "sft"], "loss_weights": [0.5, 1.0, 2.0]}),
    ("m2po", {"level": "batch"}), ("clip_cov", {"clip_cov_lb": 0.2, "clip_cov_ratio": 0.3}),
    ("dppo_tv", {"clip_ratio_c": 1.5}), ("ipo", {"length_normalized": True}), ("ppo", {"clip_ratio_c": None}),
    ("kto", {"reference_point": 0.3}), ("reward_model", {"center_rewards_coefficient": 0.1}),
    ("decoupled_ppo", {"behave_weight_cap": 1.1}), ("mix_chord", {"enable_phi_function": False}),
    ("ppo", {"enable_sequence_masking": True}), ("ppo", {"fallback_to_policy_gradient": True}),
    ("sft_phi", {"cutoff_prob": 0.5}), ("topr", {"level": "token"}),
    *[("rec", {"clip_mode": mode}) for mode in ("two-side", "one-side", "ring", "gspo-one-side")],
    *[("rec", {"weight": weight}) for weight in ("importance_sampling", "gspo_importance_sampling", "advantage")],
    *[("rec", {"regularizer": kind, "regularizer_coef": 0.5}) for kind in ("k2", "forward-kl")],
]


def batch(lengths, seed, spread=0.5):
    """Columns of float64 for rows of `lengths` tokens; every second row is an expert's."""
    source = torch.Generator().manual_seed(seed)
    rows = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    count = len(rows)

    def normal():
        return torch.randn(count, generator=source, dtype=torch.float64)

    logprobs = -1.5 + normal()
    sampled = logprobs + spread * normal()
    return {"logprobs": logprobs, "rows": rows, "old_logprobs": sampled, "rollout_logprobs": sampled,
            "prox_logprobs": logprobs + spread * normal(), "ref_logprobs": logprobs + spread * normal(),
            "advantages": torch.randn(len(lengths), generator=source, dtype=torch.float64)[rows],
            "is_expert": rows % 2 == 1, "step": torch.tensor(3), "entropy": normal().abs(),
            "chosen_tokens": torch.full_like(logprobs, 2.5)}


def call(name, columns, extra=None):
    model = POLICY_LOSSES[name]
    chosen = {"chosen": columns["chosen"]} if "chosen" in columns else {}
    given = columns | {"scores": columns["logprobs"], "margin": columns["old_logprobs"].abs()}  # of a reward model
    given |= {key: torch.stack([given[of], -given[of]], 1).log_softmax(1) for key, of in (
        ("top_logprobs", "logprobs"), ("teacher_top_logprobs", "ref_logprobs"))}  # of a distillation
    return model(**extra or {})(**{column: given[column] for column in model.columns}, **chosen)


def weights(name, columns):
    lengths = torch.bincount(columns["rows"])
    mode = POLICY_LOSSES[name]().aggregation
    kinds = [bool(columns["is_expert"][columns["rows"] == row][0]) for row in range(len(lengths))]
    made = (token_weights_by_kind(mode, lengths, kinds) if name in MIXED_LOSSES else token_weights(mode, lengths))
    return torch.from_numpy(made)[columns["rows"]]


def test_what_losses_are_averaged_over():
    own = {name: model().aggregation for name, model in POLICY_LOSSES.items()}
    assert {name for name, mode in own.items() if mode == "seq-mean-token-mean"} == {
        "cpo", "dpo", "gmpo", "gspo", "gspo_token", "ipo", "kto", "orpo", "reward_model", "sapo", "simpo"}
    assert {*own.values()} <= set(AGGREGATIONS)
    assert (OF_PAIRS, MIXED_LOSSES) == (
        ("cpo", "dpo", "ipo", "kto", "orpo", "reward_model", "simpo"), ("mix", "mix_chord"))


@pytest.mark.parametrize(("name", "extra"), VARIANTS)
def test_a_loss_and_its_statistics_are_one_number_a_token_and_only_the_loss_has_a_gradient(name, extra):
    columns = batch([2, 3, 1, 4], seed=0)
    columns["logprobs"].requires_grad_()
    loss, statistics = call(name, columns, extra)
    assert loss.shape == (10,)
    assert loss.requires_grad
    assert all(value.shape == (10,) and not value.requires_grad for value in statistics.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("far", [1000.0, -1000.0, 88.0, -88.0])
@pytest.mark.parametrize(("name", "extra"), VARIANTS)
def test_a_token_that_became_impossible_or_was_does_not_overflow(name, extra, far, dtype):
    columns = {key: value.to(dtype) if value.is_floating_point() else value
               for key, value in batch([2, 3, 1, 4], seed=2).items()}
    other = {"old_logprobs", "rollout_logprobs", "prox_logprobs", "ref_logprobs"}
    columns = {key: value - far if key in other else value for key, value in columns.items()}
    columns["logprobs"].requires_grad_()
    loss, statistics = call(name, columns, extra)
    loss.sum().backward()
    assert all(torch.isfinite(x).all() for x in (loss, columns["logprobs"].grad, *statistics.values()))


@pytest.mark.parametrize(("name", "extra"), [v for v in VARIANTS if v[0] not in ("clip_cov", "mix", "mix_chord")
                                             and "advantages" in POLICY_LOSSES[v[0]].columns])
def test_where_nothing_has_changed_the_gradient_is_the_policy_gradient(name, extra):
    """At ratio 1 each of these losses pushes log pi with -A, up to a constant that the loss is known for."""
    columns = batch([2, 3, 1, 4], seed=3, spread=0.0)
    columns["logprobs"].requires_grad_()
    loss, _ = call(name, columns, extra)
    (found,) = torch.autograd.grad((loss * weights(name, columns)).sum(), columns["logprobs"])
    factor = {"opmd": 0.5}.get(name, 1.0)
    expected = -columns["advantages"] * weights(name, columns) * factor
    if extra.get("weight") == "advantage":
        expected = expected * columns["advantages"].exp()
    if extra.get("regularizer") == "forward-kl":
        expected = expected - 0.5 * weights(name, columns)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", sorted(set(POLICY_LOSSES) - set(OF_PAIRS)))
def test_a_micro_batch_without_tokens_is_zero(name):
    empty = {key: column[:0] if column.dim() else column for key, column in batch([1], seed=0).items()}
    loss, _ = call(name, empty)
    assert loss.sum() == 0


def test_pairs_that_were_split_are_our_mistake():
    columns = batch([2, 1, 3], seed=0)
    for name in OF_PAIRS:
        with refuses(AssertionError, "split"):
            call(name, columns)
