"""The models of arguments: functions take exactly what is declared, and wrong values are refused before a run."""

import inspect
import math
import subprocess
import sys

import pytest

from ouroboros.operators import aggregation, entropy, generate, kl, priority, reward, sampling
from ouroboros.pipeline.settings import declared
from ouroboros.pipeline.settings.arguments.answers import ToolArguments
from ouroboros.pipeline.settings.arguments.base import choices, problems
from ouroboros.pipeline.settings.arguments.terms import Kl
from ouroboros.pipeline.settings.arguments.users import Signature
from ouroboros.workflows import rewards, single_turn
from tests.golden.messages import wording

# part -> (the functions, how many parameters from the first their caller gives; None: those of `columns`)
FUNCTIONS = {
    "sample_strategy": (sampling.SAMPLE_STRATEGIES, 2), "entropy_loss_fn": (entropy.ENTROPY_LOSSES, None),
    "priority_fn": (priority.PRIORITIES, 0), "generator": (generate.GENERATORS, 1),
    "default_reward_fn_type": (reward.REWARDS | rewards.OPENED | rewards.ISOLATING, 2),
    "default_workflow_type": (single_turn.WORKFLOWS, 1)}
PAIRS = [(part, name) for part, (functions, _) in FUNCTIONS.items() for name in functions]


@pytest.mark.parametrize("part", [*FUNCTIONS, "kl_loss_fn", "loss_agg_mode"])
def test_every_function_is_declared_and_no_other(part):
    tables = {"kl_loss_fn": kl.KL_ESTIMATORS, "loss_agg_mode": aggregation.AGGREGATIONS}
    bound = tables.get(part) or FUNCTIONS[part][0]
    assert set(bound) == set(declared.TABLES[part])


@pytest.mark.parametrize(("part", "name"), PAIRS)
def test_a_function_takes_what_is_declared_with_the_declared_defaults(part, name):
    functions, given = FUNCTIONS[part]
    model, parameters = declared.TABLES[part][name], list(inspect.signature(functions[name]).parameters.values())
    if given is None:
        given = len(model.columns)
        assert tuple(p.name for p in parameters[:given]) == model.columns
    given = 1 if name in rewards.OPENED else given
    by_caller = ("task", "endpoint", "toolbox", "columns", *getattr(model, "columns", ()))
    own = {p.name: p.default for p in parameters[given:] if p.name not in by_caller}
    takes_tools = "toolbox" in [p.name for p in parameters]  # whose arguments are not the function's own
    fields = {k: v for k, v in model.model_fields.items() if not (takes_tools and k in ToolArguments.model_fields)}
    assert set(own) == set(fields)
    for argument, field in fields.items():
        assert own[argument] == (inspect.Parameter.empty if field.is_required() else field.default)


@pytest.mark.parametrize("name", declared.KL_ESTIMATORS)
def test_an_estimate_of_a_kl_takes_the_declared_columns(name):
    model = declared.KL_ESTIMATORS[name]
    assert tuple(inspect.signature(kl.KL_ESTIMATORS[name]).parameters) == model.columns
    assert list(model.model_fields) == list(Kl.model_fields)


@pytest.mark.parametrize(("part", "name"), [(part, name) for part, table in declared.TABLES.items() for name in table])
def test_every_argument_is_described_and_judged_and_its_default_passes(part, name):
    model = declared.TABLES[part][name]
    assert model.summary()
    for argument, field in model.model_fields.items():
        assert field.description
        assert model.wrong_values("args", {argument: {"of": "no type at all"}}), argument
        if not field.is_required():
            assert model.wrong_values("args", {argument: field.default}) == []


LOSS, ADVANTAGE, COUNTDOWN = declared.POLICY_LOSSES, declared.ADVANTAGES, declared.GENERATORS["countdown"]
STALE = declared.SAMPLE_STRATEGIES["staleness_control"]


@pytest.mark.parametrize(("model", "given", "found", "needed"), [
    (LOSS["ppo"], {"clip_range": "0.2"}, "'0.2'", "a number"), (LOSS["ppo"], {"clip_range": None}, "null", "a number"),
    (LOSS["ppo"], {"clip_range": True}, "true", "a number"), (LOSS["ppo"], {"clip_range": -1}, "=-1", "at least 0"),
    (LOSS["ppo"], {"clip_range": math.inf}, "=inf", "finite"),
    (LOSS["ppo"], {"clip_range": math.nan}, "=nan", "finite"),
    (LOSS["ppo"], {"clip_ratio_c": 1}, "=1", "greater than 1"), (LOSS["mix"], {"clip_ratio_c": 1}, "=1", "than 1"),
    (LOSS["gspo"], {"clip_range_low": 2}, "=2", "at least 0 and at most 1"),
    (LOSS["mix_chord"], {"mu_peak": 2}, "=2", "at least 0 and at most 1"),
    (LOSS["topr"], {"level": "tokn"}, "=tokn", "Did you mean 'token'? Needed one of sequence, token."),
    (ADVANTAGE["ppo"], {"gamma": [1]}, "a list", "a number"),
    (ADVANTAGE["rec"], {"drop": "balnce"}, "=balnce", "balance, null"),
    (ADVANTAGE["grpo"], {"duplicate_experiences": "yes"}, "'yes'", "true or false"),
    (COUNTDOWN, {"tasks": 1000.0}, "1000.0", "a whole number"), (COUNTDOWN, {"tasks": True}, "true", "a whole number"),
    (COUNTDOWN, {"tasks": 10**7 + 1}, "=10000001", "at most 10000000"),
    (STALE, {"max_staleness": -1}, "=-1", "at least 0"), (STALE, {"max_staleness": math.nan}, "=nan", "finite"),
    (declared.REWARDS["format_reward"], {"pattern": 5}, "5", "a text"),
    (declared.REWARDS["overlong_penalty"], {"penalty_factor": -1}, "=-1", "at least 0")])
def test_a_wrong_value_is_refused_with_its_key(model, given, found, needed):
    (line,) = model.wrong_values("args", given)
    assert all(words in line for words in (f"args.{next(iter(given))}", found, needed))


OUTSIDE = {  # part -> (function, argument, value that it does not take)
    "advantage_fn": [
        ("grpo", "epsilon", 0), ("grpo", "epsilon", math.nan), ("grpo", "epsilon", "1e-6"),
        ("grpo", "std_cal_level", "bach"), ("grpo", "std_threshold", -1), ("grpo", "rank_penalty", 2),
        ("opmd", "tau", 0), ("opmd", "opmd_baseline", "median"), ("asymre", "baseline_shift", math.inf),
        ("rec", "drop", "some"), ("gigpo", "fnorm", "sdt"), ("gigpo", "gamma", -1), ("step_wise_grpo", "epsilon", 0),
        ("step_wise_grpo", "std_cal_level", "run"), ("step_wise_grpo", "std_threshold", math.nan),
        ("ppo", "gamma", 1.5), ("ppo", "lam", -0.1), ("reinforceplusplus", "gamma", math.nan),
        ("gdpo", "level", "row"), ("gdpo", "gdpo_reward_keys", []), ("gdpo", "gdpo_reward_weights", [1.0]),
        ("grpo_passk", "epsilon", 0), ("maxrl", "epsilon", 0),
        ("jsd", "lambda_coef", 2), ("jsd", "kl_coef", 0), ("on_policy_distill", "kl_coef", -1)],
    "policy_loss_fn": [
        ("ppo", "clip_ratio_c", 1.0), ("sapo", "tau_pos", 0), ("sapo", "tau_neg", 0), ("sppo", "epsilon", 0),
        ("m2po", "m2_threshold", -1), ("mix", "mu", 1.5), ("mix_chord", "mu_peak", -1), ("mix_chord", "mu_valley", 2),
        ("dpo", "beta", 0), ("dpo", "label_smoothing", 0.6), ("dpo", "loss_type", "apo"),
        ("clip_cov", "clip_cov_ratio", 0), ("kl_cov", "kl_cov_ratio", 2),
        ("m2po", "level", "row"),
        ("dppo_tv", "clip_range", 2), ("dppo_kl", "clip_ratio_c", 1), ("gmpo", "clip_range_low", -1),
        ("forward_kl_topk", "top_k", 0), ("forward_kl_topk", "top_k", 1025),
        ("orpo", "beta", -1), ("simpo", "simpo_gamma", -1), ("ipo", "beta", -1), ("kto", "reference_point", -1),
        ("rec", "clip_mode", "three-side"), ("rec", "weight", "ratio"), ("rec", "regularizer", "k3"),
        ("rec", "temp", 0), ("topr", "level", "batch"), ("opmd", "tau", -0.1), ("sft_phi", "cutoff_prob", 0),
        ("m2po", "m2_threshold", 0), ("dpo", "label_smoothing", 0.5),
        ("simpo", "label_smoothing", 0.5), ("cispo", "mask_clip_range_low", -1),
        ("decoupled_ppo", "behave_weight_cap", 0)],
    "sample_strategy": [
        ("mix", "expert_data_ratio", 1.5), ("mix", "expert_data_ratio", None), ("mix", "expert_data_ratio", 0),
        ("mix", "sft_dataset_name", 7)],
    "priority_fn": [
        ("linear_decay", "decay", "1; DROP TABLE rows"), ("decay_limit_randomization", "sigma", -1),
        ("decay_limit_randomization", "use_count_limit", None)],
    "default_reward_fn_type": [
        ("overlong_penalty", "max_response_length", "all"), ("overlong_penalty", "cache_length", 0),
        ("overlong_penalty", "penalty_factor", -1)],
    "generator": [("countdown", "tasks", -1), ("countdown", "dirt", 1.5), ("countdown", "numbers", 9)]}


@pytest.mark.parametrize(("part", "name", "argument", "value"),
                         [(part, *case) for part, cases in OUTSIDE.items() for case in cases])
def test_what_a_function_does_not_take_is_refused(part, name, argument, value):
    (line,) = declared.TABLES[part][name].wrong_values("args", {argument: value})
    assert f"args.{argument}" in line


@pytest.mark.parametrize(("model", "given", "key"), [
    # numbers by which nothing is learned
    (LOSS["kto"], {"desirable_weight": 0, "undesirable_weight": 0}, "undesirable_weight"),
    (ADVANTAGE["gdpo"], {"gdpo_reward_keys": ["a", "b"], "gdpo_reward_weights": [0, 0]}, "gdpo_reward_weights"),
    *((LOSS[name], {key: 0}, None) for name in ("ppo", "gspo", "dppo_tv", "dppo_kl", "gmpo")  # by these it is
      for key in ("clip_range_low", "clip_range_high")),
    (LOSS["ppo"], {"clip_range": 0, "clip_range_high": 0.28}, None),
    (LOSS["kto"], {"undesirable_weight": 0}, None), (LOSS["kto"], {"desirable_weight": 0}, None),
    (LOSS["cispo"], {"clip_range_low": 0, "clip_range_high": 0}, None),
    (LOSS["ppo"], {"clip_range_low": None, "clip_range_high": 0.28}, None),
    (ADVANTAGE["grpo"], {"std_threshold": None, "rank_penalty": 1}, None), (ADVANTAGE["rec"], {"drop": None}, None),
    (STALE, {"max_staleness": math.inf}, None), (STALE, {"max_staleness": 0}, None)])
def test_several_values_together(model, given, key):
    assert [problem.key for problem in model.wrong_values("args", given)] == [f"args.{key}"] * bool(key)


def test_the_largest_number_is_not_below_the_smallest():
    given = {"tasks": 1, "demonstrations": 0, "dirt": 0}
    (line,) = COUNTDOWN.wrong_values("args", given | {"low": 12})
    assert line.startswith("args.high=9: ")
    assert "low=12" in line
    assert COUNTDOWN.wrong_values("args", given | {"low": 12, "high": 12}) == []


def test_what_steers_a_kl_is_needed_where_it_is_steered():
    assert Kl.wrong_values("kl", {"kl_coef": 0.1, "target_kl": None}) == []
    assert Kl.wrong_values("kl", {"adaptive": True, "target_kl": 0.1, "horizon": 100}) == []
    lines = Kl.wrong_values("kl", {"adaptive": True, "target_kl": 0})
    assert [line.partition(":")[0] for line in lines] == ["kl.target_kl=0", "kl.horizon=null"]
    assert "adaptive=true" in lines[1]


def test_functions_that_share_arguments_take_those_that_any_has():
    """As the reward functions of a set do; of one that is not known nothing is said."""
    takers = [declared.REWARDS["format_reward"], Signature(["scale"], ["shift"])]
    assert problems("args", "a, b", takers, {"score": 1, "scale": 2}) == []
    unknown, missing, value = problems("args", "a, b", takers, {"scor": 1, "pattern": 3})
    wording(unknown, "'scor'", "'score'")
    wording(missing, "'a, b'", "'scale'")
    assert "args.pattern" in value
    assert problems("args", "a, b", [takers[0], None], {"scor": 1}) == []
    assert problems("args", "a, b", [Signature(takes_anything=True)], {"scor": 1}) == []


def test_what_a_users_function_takes():
    def made(a, /, b, *others, c, d=1, **more):
        """First line.

        Second.
        """

    found = Signature.of(made)
    assert (found.required, found.optional, found.positional, found.only_positional) == (
        ["a", "b", "c"], ["d"], ["a", "b"], ["a"])
    assert found.takes_others
    assert found.takes_anything
    assert found.doc == "First line."
    assert found.without("a", "d").names() == ["b", "c"]
    assert Signature.of(dict) is None  # of C: Python cannot tell


def test_what_a_users_class_takes():
    """Its columns and fields, as those of a function, and what it declares."""
    found = Signature.of_class(LOSS["sapo"])
    assert (found.required, found.optional) == (("logprobs", "old_logprobs", "advantages"), ["tau_pos", "tau_neg"])
    assert found.text == "(logprobs, old_logprobs, advantages, tau_pos=1.0, tau_neg=1.05)"
    assert found.doc == LOSS["sapo"].summary()
    assert Signature.of_class(ADVANTAGE["raft"]).facts == {"compares_groups": True, "chooses_rows": True}
    assert Signature.of_class(ADVANTAGE["gigpo"]).reads_steps


def test_choices_are_those_of_the_type():
    assert choices(ADVANTAGE["rec"].model_fields["drop"]) == ("balance", None)
    assert choices(ADVANTAGE["rec"].model_fields["epsilon"]) == ()


def test_declared_arguments_import_nothing_heavy():
    code = ("import sys; import ouroboros.pipeline.settings.declared; "
            "assert not {'torch', 'pyarrow', 'numpy', 'duckdb'} & set(sys.modules)")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
