"""The assembled loss: its parts by hand on two tokens, and what does not fit together."""

import math

import numpy as np
import pytest
import torch

from ouroboros.operators.terms import KLTerm
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.packing import Aggregation
from ouroboros.stages.learner.objective import Objective
from tests.golden.messages import refuses
from tests.plans import planned

PLAIN = ("algorithm.kl_loss_fn=none", "algorithm.entropy_loss_fn=default",
         "algorithm.policy_loss_fn_args.clip_range_high=0.28")


@pytest.fixture
def objective(tiny_settings):
    return lambda *overrides: Objective(tiny_settings(*PLAIN, *overrides))


def columns():
    """Two tokens of one row: ratio 1 and 2 to the old log-probs, 1/2 of them to the rollout's; both advantages 1."""
    logprobs = torch.tensor([-1.0, -1.0], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([-1.0, -1.0 - math.log(2)], dtype=torch.float64)
    return {
        "logprobs": logprobs, "entropy": logprobs * -2, "rows": torch.tensor([0, 0]), "step": torch.tensor(1),
        "prox_logprobs": logprobs.detach(), "old_logprobs": old, "rollout_logprobs": old + math.log(2),
        "ref_logprobs": torch.tensor([-1.0, -2.0], dtype=torch.float64), "advantages": torch.ones(2)}


def test_without_more_it_is_the_policy_loss(objective):
    """Ratios 1 and 2, the second clipped at 1.28 (conf/recipe): -1 and -1.28."""
    made = objective()
    loss, statistics = made(columns())
    assert loss.tolist() == pytest.approx([-1.0, -1.28])
    assert statistics["clip_fraction"].tolist() == [0.0, 1.0]
    assert made.row_columns == ("advantages", "old_logprobs")
    assert made.aggregation == Aggregation()
    assert not made.needs_entropy_gradient


def test_a_kl_to_the_reference_is_added_with_its_coefficient(objective):
    """k2 = gap^2 / 2: 0 and 1/2; times 0.1. Its gradient is the gap: 0 and 1, times 0.1."""
    made, given = objective("algorithm.kl_loss_fn=k2", "algorithm.kl_loss_fn_args.kl_coef=0.1"), columns()
    loss, statistics = made(given)
    assert loss.tolist() == pytest.approx([-1.0, -1.28 + 0.05])
    assert statistics["kl_loss"].tolist() == [0.0, 0.5]
    assert made.row_columns == ("advantages", "old_logprobs", "ref_logprobs")
    loss.sum().backward()
    assert given["logprobs"].grad.tolist() == pytest.approx([-1.0, 0.1])  # the clipped token learns from the KL alone


def test_an_entropy_bonus_is_learnt_from(objective):
    """The stand-in for entropy is -2 log p = 2: 0.5 of it is taken off."""
    made, given = objective("algorithm.entropy_loss_fn_args.entropy_coef=0.5"), columns()
    loss, _ = made(given)
    assert made.needs_entropy_gradient
    assert loss.tolist() == pytest.approx([-2.0, -2.28])
    loss.sum().backward()
    assert given["logprobs"].grad.tolist() == pytest.approx([-1.0 + 1.0, 0.0 + 1.0])
    assert not objective("algorithm.entropy_loss_fn=none").needs_entropy_gradient


def test_recomputed_log_probs_are_corrected_for_the_engine_that_sampled(objective):
    """old / rollout is 1/2 on both tokens: each counts half; over the row 1/4."""
    made = objective("algorithm.bypass_old_logprobs=false")
    assert made.row_columns == ("advantages", "old_logprobs", "rollout_logprobs")
    assert made(columns())[0].tolist() == pytest.approx([-0.5, -0.64])
    of_row = objective("algorithm.bypass_old_logprobs=false", "algorithm.rollout_correction.level=sequence")
    assert of_row(columns())[0].tolist() == pytest.approx([-0.25, -0.32])
    never = objective("algorithm.bypass_old_logprobs=false", "algorithm.rollout_correction.level=none")
    assert never(columns())[0].tolist() == pytest.approx([-1.0, -1.28])


def test_a_mask_leaves_out_what_the_trainer_finds_too_likely(objective):
    """Rollout a third and a half as likely as old: weights 3, over the threshold of 2.5, and 2."""
    made = objective("algorithm.bypass_old_logprobs=false", "algorithm.rollout_correction.mode=mask",
                     "algorithm.rollout_correction.threshold=2.5")
    given = columns()
    given["rollout_logprobs"] = given["old_logprobs"] - torch.tensor([3.0, 2.0]).log()
    assert made(given)[0].tolist() == pytest.approx([0.0, -2.56])


def test_a_rejection_leaves_tokens_out_of_every_term(objective):
    """The engine is twice as likely as the ratio's old log-probs: token 1 by 2, token 2 by 1, over the policy's."""
    made, given = objective("algorithm.rollout_rejection.token_k1=[0.5,1.5]",
                            "algorithm.entropy_loss_fn_args.entropy_coef=0.5"), columns()
    assert made.row_columns == ("advantages", "old_logprobs", "rollout_logprobs")
    loss, statistics = made(given)
    assert loss.tolist() == pytest.approx([0.0, -2.28])
    assert statistics["rejected"].tolist() == [1, 0]


def rows(*lengths, **more):
    return [Row(str(i), [1] * (2 + n), 2, [1] * n, {"advantages": 1.0, "old_logprobs": [-1.0] * n,
                "rollout_logprobs": [-1.0] * n, **more}) for i, n in enumerate(lengths)]


def test_what_is_chosen_is_chosen_over_all_rows(objective):
    """Entropies 1 to 5: the highest two of five teach. kl_cov holds the largest of five covariances."""
    made, given = objective("algorithm.top_entropy_quantile=0.4"), rows(2, 3)
    made.choose(given, [np.array([[-1.0, 1], [-1, 5]], np.float32), np.array([[-1, 2], [-1, 4], [-1, 3]], np.float32)])
    assert [row.columns["teaches"].tolist() for row in given] == [[0, 1], [0, 1, 0]]
    assert made.row_columns == ("advantages", "old_logprobs", "teaches")
    loss, _ = made(columns() | {"teaches": torch.tensor([0.0, 1.0])})
    assert loss.tolist() == pytest.approx([0.0, -1.28])
    held = objective("algorithm.policy_loss_fn=kl_cov", "algorithm.policy_loss_fn_args={}")
    given[0].columns["advantages"] = -1.0
    held.choose(given, [np.array([[-1.0, 1], [-9, 5]], np.float32), np.array([[-1, 2], [-1, 4], [-1, 3]], np.float32)])
    assert [row.columns["chosen"].tolist() for row in given] == [[0, 1], [0, 0, 0]]


def test_an_expert_always_teaches(objective):
    made = objective("algorithm.top_entropy_quantile=0.5")
    given = rows(2) + rows(1, is_expert=True)
    made.choose(given, [np.array([[-1.0, 1], [-1, 5]], np.float32), np.array([[-1.0, 0]], np.float32)])
    assert [row.of_actions("teaches").tolist() for row in given] == [[0, 1], [1]]
    for given, of_tokens, expected in ((rows(1, 1, 1, 1), [1, 5, 2, 4], [[0], [1], [0], [1]]),
                                       (rows(1, is_expert=True), [9], [[1]])):
        made.choose(given, [np.array([[-1.0, entropy]], np.float32) for entropy in of_tokens])
        assert [row.of_actions("teaches").tolist() for row in given] == expected


RAFT = ("algorithm.algorithm_type=raft", "algorithm.advantage_fn=raft", "algorithm.policy_loss_fn=sft",
        "algorithm.policy_loss_fn_args={}", "algorithm.advantage_fn_args={}")


@pytest.mark.parametrize("bypass", ["true", "false"])
def test_a_loss_without_a_ratio_is_weighed_by_the_policy_over_the_engine(objective, bypass):
    """The rollout's log-probs are -1 + log 2 and -1, the policy's -1: weights 1/2 and 1 of -log p = 1, no gradient of
    their own. A token that the engine found a quarter as likely would weigh 4, and weighs 2."""
    made, given = objective(*RAFT, f"algorithm.bypass_old_logprobs={bypass}"), columns()
    assert made.row_columns == ("rollout_logprobs",)
    loss, _ = made(given)
    assert loss.tolist() == pytest.approx([0.5, 1.0])
    loss.sum().backward()
    assert given["logprobs"].grad.tolist() == pytest.approx([-0.5, -1.0])
    likelier = columns() | {"rollout_logprobs": torch.tensor([-1.0, -1.0 - math.log(4)])}
    assert made(likelier)[0].tolist() == pytest.approx([1.0, 2.0])
    assert objective(*RAFT, "algorithm.rollout_correction.level=none")(columns())[0].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("kind", "corrected"), [
    ("raft", True), ("opmd", False), ("asymre", False), ("rec", False), ("grpo", False), ("cispo", False),
    ("topr", False), ("sft", False)])
def test_algorithms_for_rows_of_other_policies_take_no_weight(tmp_path, kind, corrected):
    stage = {"stage_name": "it", "algorithm": {"algorithm_type": kind}}
    plan = planned(tmp_path, {"stages": [stage]})
    config = next(s for s in plan.stages if s.name == "it").config
    assert bool(Objective(config).algorithm.correction) == corrected


def test_a_ratio_to_the_rollout_takes_no_second_weight(objective):
    with refuses(ConfigError, "would"):
        objective("algorithm.rollout_correction.level=token")
    assert objective(*RAFT, "algorithm.rollout_correction.level=sequence").algorithm.correction["level"] == "sequence"


@pytest.mark.parametrize("bypass", ["true", "false"])
def test_what_acts_on_staleness_reads_the_engines_log_probs(objective, bypass):
    """The rollout's log-probs are -1 + log 2 and -1, the policy's -1 twice, so the row's ratio is 1/2: topr weighs its
    failures by 1/2 (loss = 1/2 * A * 1), whether old log-probs are scored again or not; decoupled_ppo weighs the
    tokens by 1/2 and 1; m2po drops the first token of A < 0, whose squared log ratio is 0.48."""
    given = columns() | {"advantages": -torch.ones(2), "old_logprobs": columns()["prox_logprobs"]}
    words = (f"algorithm.bypass_old_logprobs={bypass}", "algorithm.policy_loss_fn_args={}")
    found = {name: objective(f"algorithm.policy_loss_fn={name}", *words) for name in ("topr", "decoupled_ppo", "m2po")}
    assert not any(made.algorithm.correction for made in found.values())
    assert {name: made(given)[0].tolist() for name, made in found.items()} == {
        "topr": pytest.approx([-0.5, -0.5]), "decoupled_ppo": pytest.approx([0.5, 1.0]),
        "m2po": pytest.approx([0.0, 1.0])}


@pytest.mark.parametrize("bypass", ["true", "false"])
def test_the_plain_policy_gradient_is_corrected_like_a_loss_without_a_ratio(objective, bypass):
    """Weights 1/2 and 1 of the policy over the engine; the ratio of the loss is 1."""
    words = (f"algorithm.bypass_old_logprobs={bypass}",
             "algorithm.policy_loss_fn_args.fallback_to_policy_gradient=true")
    assert objective(*words)(columns())[0].tolist() == pytest.approx([-0.5, -1.0])
    plain = objective(*words, "algorithm.rollout_correction.level=none")
    assert plain(columns())[0].tolist() == pytest.approx([-1.0, -1.0])
    assert objective(*words, "algorithm.rollout_correction.level=token").algorithm.correction["level"] == "token"


def test_rows_of_an_expert_take_no_weight(objective, mine):
    """Likelihood of all tokens; the second, an expert's, has no engine's log-prob but a 0 in its place."""
    made = objective("algorithm.policy_loss_fn=objective_parts:likelihood", "algorithm.policy_loss_fn_args={}",
                     "algorithm.sample_strategy=mix")
    assert made.row_columns == ("is_expert", "rollout_logprobs")
    given = columns() | {"is_expert": torch.tensor([False, True]),
                         "rollout_logprobs": torch.tensor([-1.0 + math.log(2), 0.0], dtype=torch.float64)}
    assert made(given)[0].tolist() == pytest.approx([0.5, 1.0])


def test_demonstrations_have_one_loss_whatever_the_run_is_told(objective):
    made = objective("algorithm.algorithm_type=sft", "algorithm.policy_loss_fn=ppo", "algorithm.kl_loss_fn=k2",
                     "algorithm.bypass_old_logprobs=false", "algorithm.entropy_loss_fn_args.entropy_coef=1")
    loss, statistics = made(columns())
    assert (loss.tolist(), made.row_columns, made.needs_entropy_gradient) == ([1.0, 1.0], (), False)
    assert "kl_loss" not in statistics


@pytest.mark.parametrize(("loss", "arguments", "given", "wanted"), [
    ("ppo", "", "null", ("token-mean",)), ("gspo", "", "null", ("seq-mean-token-mean",)),
    ("gspo", "", "token-mean", ("token-mean",)), ("rec", "clip_mode: one-side", "null", ("token-mean",)),
    ("rec", "clip_mode: gspo-one-side", "null", ("seq-mean-token-mean",)),
    ("rec", "clip_mode: gspo-one-side", "token-mean", ("token-mean",)),
    ("ppo", "", "seq-mean-token-sum-norm", ("seq-mean-token-sum-norm", 24.0))])  # the longest response that is allowed
def test_the_aggregation_is_the_losss_own_unless_it_is_set(objective, loss, arguments, given, wanted):
    made = objective(f"algorithm.policy_loss_fn={loss}", f"algorithm.policy_loss_fn_args={{{arguments}}}",
                     f"algorithm.loss_agg_mode={given}")
    assert made.aggregation == Aggregation(*wanted)


def test_pairs_stay_together(objective):
    settings = ("algorithm.algorithm_type=dpo", "algorithm.policy_loss_fn=dpo", "algorithm.policy_loss_fn_args={}")
    made = objective(*settings)
    assert made.aggregation == Aggregation("seq-mean-token-mean", unit=2)
    assert made.row_columns == ("chosen_tokens", "ref_logprobs")


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of the user's: likelihood of the given tokens, an entropy bonus without coefficient, a KL."""
    (tmp_path / "objective_parts.py").write_text(
        "def likelihood(logprobs, weight=1.0): return -weight * logprobs, {}\n"
        "def bonus(entropy): return -entropy\n"
        "def gap(logprobs, ref_logprobs): return logprobs - ref_logprobs\n"
        "def asks(logprobs, advantage): return logprobs, {}\n"
        "def reads(logprobs, ref_logprobs, advantages): return logprobs - ref_logprobs, {}\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_parts_of_the_users_own_are_put_together(objective, mine):
    """log p = -1: loss 2, bonus -2 (the stand-in for entropy is -2 log p), KL 0 and 1 by 0.5."""
    made = objective("algorithm.policy_loss_fn=objective_parts:likelihood", "algorithm.policy_loss_fn_args={weight: 2}",
                     "algorithm.entropy_loss_fn=objective_parts:bonus", "algorithm.kl_loss_fn=objective_parts:gap",
                     "algorithm.kl_loss_fn_args.kl_coef=0.5")
    loss, statistics = made(columns())
    assert loss.tolist() == pytest.approx([2 / 2 - 2, 2 - 2 + 0.5])  # the engine found the first token twice as likely
    assert statistics["kl_loss"].tolist() == [0.0, 1.0]
    assert (made.row_columns, made.needs_entropy_gradient) == (("ref_logprobs", "rollout_logprobs"), True)
    assert made.aggregation == Aggregation("token-mean")


def test_a_users_loss_on_pairs_keeps_them_together(objective, mine):
    pairs = ("algorithm.algorithm_type=dpo", "algorithm.policy_loss_fn=objective_parts:likelihood",
             "algorithm.policy_loss_fn_args={}")
    assert objective(*pairs).aggregation == Aggregation("seq-mean-token-mean", unit=2)
    with refuses(ConfigError, "'advantages'"):
        objective("algorithm.algorithm_type=dpo", "algorithm.policy_loss_fn=objective_parts:reads")


def test_a_column_that_there_is_none_of_is_refused_when_the_stage_starts(objective, mine):
    with refuses(ConfigError, "'advantage'", "Known: logprobs, prox_logprobs"):
        objective("algorithm.policy_loss_fn=objective_parts:asks")


@pytest.mark.parametrize(("overrides", "words"), [
    (("algorithm.policy_loss_fn=pppo",), "algorithm.policy_loss_fn 'pppo'"),
    (("algorithm.policy_loss_fn_args.clip=1",), "'clip'"),
    (("algorithm.kl_loss_fn=k4",), "unknown algorithm.kl_loss_fn 'k4'"),
    (("algorithm.kl_loss_fn_args.coef=1",), "'kl_coef'"),
    (("algorithm.kl_loss_fn_args.kl_coef=-1",), "kl_loss_fn_args.kl_coef=-1"),
    (("algorithm.kl_loss_fn_args={adaptive: true, horizon: 10}",), r"target_kl=null: adaptive=true needs"),
    (("algorithm.entropy_loss_fn_args.entropy_coef=much",), "entropy_coef")])
def test_what_does_not_fit_is_refused(objective, overrides, words):
    with refuses(ConfigError, words):
        objective(*overrides)


def test_a_fixed_coefficient_stays(tiny_settings):
    term = KLTerm.of(tiny_settings("algorithm.kl_loss_fn=k3").algorithm, "kl_loss_fn")
    term.steer(9.0, 10)
    assert term.kl_coef == 0.001


@pytest.mark.parametrize(("algorithm", "loss"), [
    ("sft", "sft"), ("cpt", "sft"), ("dpo", "dpo"), ("kto", "kto"), ("grpo", "ppo"), ("gspo", "gspo")])
def test_a_stage_is_handed_all_that_its_loss_asks_for(tmp_path, algorithm, loss):
    """With the settings that a plan hands it, and no others."""
    shown = {"path": str(tmp_path / "shown.jsonl")}
    (tmp_path / "shown.jsonl").write_text('{"prompt": "1=1", "chosen": "1", "rejected": "2"}\n')
    stage = {"stage_name": "it", "algorithm": {"algorithm_type": algorithm}, "buffer": {"trainer_input": {
        "experience_buffer": shown}}}
    plan = planned(tmp_path, {"stages": [stage]})
    made = next(s for s in plan.stages if s.name == "it")
    assert Objective(made.config).algorithm.name == loss
