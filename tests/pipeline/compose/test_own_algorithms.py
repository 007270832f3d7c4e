"""Parts and whole algorithms of the user's own: composed, checked before a run, part of the identity."""

from pathlib import Path

import pytest

from ouroboros.commands.run.sweep import make_sweep
from ouroboros.pipeline.check import named_functions, preflight
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.check.user_code import imported
from ouroboros.pipeline.compose.recipe import effective
from ouroboros.pipeline.job import devices
from ouroboros.pipeline.plan.plan import make_plan
from ouroboros.pipeline.settings import algorithms
from ouroboros.pipeline.settings.algorithm import Algorithm
from ouroboros.pipeline.settings.columns import columns, wrong_parameters
from ouroboros.pipeline.store.errors import ConfigError, Problem
from tests.golden.messages import wording

PARTS = '''"""Parts of an algorithm."""

def centred(batch, scale=1.0): ...
def two(batch, other): ...
def loss(logprobs, advantages, sharpness=1.0): ...
def asks(logprobs, advantage): ...
def anything(logprobs, **more): ...
def deaf(advantages): ...
def kl(logprobs, ref_logprobs): ...
'''
MINE = """algorithm_type: mine
repeat_times: 4
advantage_fn: own.parts:centred
policy_loss_fn: own.parts:loss
policy_loss_fn_args: {sharpness: 2.0}
kl_loss_fn: none
kl_penalty_fn: none
entropy_loss_fn: none
"""


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    """A project of the user's with a package and a conf/, as the current directory."""
    monkeypatch.setattr(devices, "torch_has_cuda", lambda: False)
    monkeypatch.chdir(tmp_path)
    for path, text in {"own/__init__.py": "", "own/parts.py": PARTS, "conf/algorithm/mine.yaml": MINE}.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
    return tmp_path


def rft(*overrides):
    config = compose(list(overrides))
    return effective(config, next(entry for entry in config.stages if entry["stage_name"] == "rft"))


def bad(*overrides) -> list[Problem]:
    """The problems before a run."""
    with pytest.raises(ConfigError) as caught:
        preflight.judged_plan(compose(list(overrides)))
    return caught.value.problems


def test_a_function_is_named_by_its_path_from_the_current_directory():
    algorithm = rft("algorithm.policy_loss_fn=own.parts:loss", "algorithm.policy_loss_fn_args.sharpness=3").algorithm
    assert (algorithm.policy_loss_fn, algorithm.policy_loss_fn_args) == ("own.parts:loss", {"sharpness": 3})
    assert preflight.check(compose(["algorithm.policy_loss_fn=own.parts:loss"])).problems == []


def test_an_edited_function_is_another_stage():
    def identity():
        plan = make_plan(compose(["algorithm.policy_loss_fn=own.parts:loss"]))
        return {stage.name: stage.identity for stage in plan.stages}

    before = identity()
    Path("own/parts.py").write_text(PARTS + "SHARPER = 1\n")
    after = identity()
    assert before["rft"] != after["rft"]
    assert before["sft"] == after["sft"]


def test_an_algorithm_of_the_users_own_is_chosen_by_name():
    """Its own repeat_times gives way to the recipe's 8."""
    algorithm = rft("algorithm=mine").algorithm
    assert (algorithm.algorithm_type, algorithm.repeat_times) == ("mine", 8)
    assert (algorithm.advantage_fn, algorithm.policy_loss_fn_args) == ("own.parts:centred", {"sharpness": 2.0})
    assert rft("algorithm=mine", "algorithm.repeat_times=null").algorithm.repeat_times == 4
    assert rft("stages.rft.algorithm.algorithm_type=mine").algorithm.policy_loss_fn == "own.parts:loss"
    assert "mine" in algorithms.names()


def test_a_file_that_names_another_type_is_a_choice_of_values():
    Path("conf/algorithm/fast.yaml").write_text("algorithm_type: rloo\noptimizer: {lr: 0.5}\n")
    algorithm = rft("algorithm=fast").algorithm
    assert (algorithm.algorithm_type, algorithm.optimizer.lr) == ("rloo", 0.5)


def test_a_file_without_its_type_is_no_algorithm(tmp_path, monkeypatch):
    (tmp_path / "conf" / "algorithm" / "bare.yaml").touch()
    monkeypatch.chdir(tmp_path)
    assert algorithms.without_its_name("bare")
    assert not algorithms.without_its_name("absent")
    assert "bare" not in algorithms.names()


def test_a_sweep_goes_over_ours_and_the_users():
    sweep = make_sweep(["algorithm=grpo,mine"], lambda config, on_warning: make_plan(config))
    assert len({stage.directory for stage in sweep.stages if stage.kind == "rft"}) == 2
    assert len({stage.directory for stage in sweep.stages if stage.name == "sft"}) == 1


@pytest.mark.parametrize(("line", "key"), [
    ("optimizer: {lr: 1}", "optimizer.lr"), ("advantage: grpo", "advantage"),
    ("rollout_correction: {mode: mask}", "rollout_correction.mode"),
    ("rollout_correction: none", "algorithm.rollout_correction"),
    ("rollout_correction: {level: row}", "algorithm.rollout_correction.level"),
    ("loss_agg_mode: mean", "algorithm.loss_agg_mode"), ("policy_loss_fn: pppo", "algorithm.policy_loss_fn"),
    ("repeat_times: many", "algorithm.repeat_times"), ("repeat_times: 0", "algorithm.repeat_times"),
    ("advantage_fn: null", "advantage_fn")])
def test_an_invalid_definition_is_a_problem_of_its_file(line, key):
    kept = [old for old in MINE.splitlines() if not old.startswith(f"{line.partition(':')[0]}:")]
    Path("conf/algorithm/mine.yaml").write_text("\n".join([*kept, line, ""]))
    (problem,) = bad("algorithm=mine")
    assert (problem.key, problem.file) == (key, "conf/algorithm/mine.yaml")


def test_a_file_may_say_that_its_rows_take_no_weight():
    """The loss has no ratio, so it would be weighed; what a recipe says goes before."""
    Path("conf/algorithm/mine.yaml").write_text(MINE + "rollout_correction: {level: none}\n")
    correction = rft("algorithm=mine").algorithm.rollout_correction
    assert (correction.level, correction.mode, correction.threshold) == ("none", "truncate", 2.0)
    given = rft("algorithm=mine", "algorithm.rollout_correction.level=token")
    assert given.algorithm.rollout_correction.level == "token"
    assert preflight.check(compose(["algorithm=mine"])).problems == []


def test_a_file_that_is_no_yaml_is_named_with_the_line():
    Path("conf/algorithm/mine.yaml").write_text("algorithm_type: mine\nrepeat_times: [1\n")
    (problem,) = bad("algorithm=mine")
    wording(problem, "mine.yaml", "YAML")
    assert "line" in problem


def test_an_argument_that_the_function_does_not_have_is_found_and_a_kl_has_those_of_all():
    (problem,) = bad("algorithm.policy_loss_fn=own.parts:loss", "algorithm.policy_loss_fn_args.sharp=1")
    assert problem.key == "algorithm.policy_loss_fn_args"
    assert "'sharpness'?" in problem
    given = ["algorithm.kl_loss_fn=own.parts:kl", "algorithm.kl_loss_fn_args.kl_coef=0.1"]
    assert preflight.check(compose(given)).problems == []


@pytest.mark.parametrize(("override", "words"), [
    ("policy_loss_fn=own.parts:lost", "'loss'?"), ("policy_loss_fn=own.part:loss", "'own.parts'?"),
    ("policy_loss_fn=own.parts:asks", "'advantages'?"), ("policy_loss_fn=own.parts:anything", "**"),
    ("policy_loss_fn='own.parts:'", ""), ("policy_loss_fn=own.parts:deaf", "logprobs"),
    ("advantage_fn=own.parts:two", "(batch, other)"), ("kl_loss_fn=own.parts:loss", "'advantages'"),
    ("kl_penalty_fn=lose", "k1")])
def test_a_function_that_does_not_fit_is_found_before_a_run(override, words):
    (problem,) = bad(f"algorithm.{override}")
    assert problem.key == f"algorithm.{override.partition('=')[0]}"
    assert words in problem


def test_offline_training_and_pairs_are_checked_too():
    offline = rft("algorithm.advantage_fn=own.parts:two").but("mode", "train")
    assert "has 2 parameters" in named_functions.wrong_arguments(offline, imported([offline])[0])[0]
    pairs = rft("algorithm.policy_loss_fn=own.parts:loss")
    pairs = pairs.merged({"algorithm": {"algorithm_type": "dpo", "advantage_fn": None}})
    wording(named_functions.wrong_arguments(pairs, imported([pairs])[0])[0], "'advantages'")


def test_which_columns_there_are_depends_on_what_is_trained_on():
    grpo, ppo, dpo = (algorithms.filled(Algorithm(algorithm_type=kind)) for kind in ("grpo", "ppo", "dpo"))
    assert "advantages" in columns("policy_loss_fn", grpo)
    assert "returns" not in columns("policy_loss_fn", grpo)
    assert "returns" in columns("policy_loss_fn", ppo)
    assert "old_logprobs" not in columns("policy_loss_fn", dpo)
    assert list(columns("kl_loss_fn", grpo)) == ["logprobs", "ref_logprobs", "old_logprobs"]
    entropy = grpo.but("entropy_loss_fn", "a:b")
    assert wrong_parameters("entropy_loss_fn", ["entropy"], entropy) == []
    assert "logprobs or entropy" in wrong_parameters("entropy_loss_fn", ["step"], entropy)[0]
