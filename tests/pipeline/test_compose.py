"""Configuration: what is accepted, and what a mistake is answered with."""

import pytest

from operators.advantage import ADVANTAGES
from operators.entropy import ENTROPY_LOSSES
from operators.generate import GENERATORS
from operators.kl import KL_ESTIMATORS
from operators.loss import POLICY_LOSSES
from operators.reward import REWARDS
from pipeline.algorithms import parts
from pipeline.compose import check, compose, groups
from pipeline.config import REWARDS as REWARD_NAMES
from pipeline.config import WORKFLOWS as WORKFLOW_NAMES
from pipeline.config import walk
from pipeline.errors import ConfigError
from pipeline.overlays import effective
from pipeline.rules import LACKING
from pipeline.secrets import mask
from tests.configs import changed, composed
from workflows.rewards import MODELS
from workflows.single_turn import WORKFLOWS


def refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        compose(list(overrides))
    return str(caught.value)


# -------------------------------------------------------------------------------------------------------- accepted


def test_every_shipped_recipe_composes():
    for name in groups()["recipe"]:
        config = compose([f"recipe={name}"])
        assert config["stages"]
        assert all(effective(config, stage) for stage in config["stages"])


def test_an_override_wins_over_the_recipe_and_the_recipe_over_the_default():
    assert composed()["algorithm"]["optimizer"]["lr"] == 5e-4
    assert compose(["algorithm.optimizer.lr=4e-4"])["algorithm"]["optimizer"]["lr"] == 4e-4
    assert composed()["algorithm"]["optimizer"]["eps"] == 1e-8


def test_a_stage_has_the_settings_of_all_with_its_own_merged_in_key_by_key():
    config = compose(["trainer.grad_clip=0.5"])
    sft, rft = (effective(config, stage) for stage in config["stages"])
    assert sft["algorithm"]["algorithm_type"] == "sft"
    assert sft["algorithm"]["optimizer"]["lr"] == 1e-3
    assert sft["algorithm"]["optimizer"]["weight_decay"] == 0.0  # of the recipe, beside the stage's lr
    assert rft["algorithm"]["optimizer"]["lr"] == 5e-4
    assert sft["trainer"]["grad_clip"] == rft["trainer"]["grad_clip"] == 0.5


def test_one_stage_can_be_changed():
    config = compose(["stages.sft.algorithm.optimizer.lr=2e-3", "stages.rft.seed=7"])
    sft, rft = (effective(config, stage) for stage in config["stages"])
    assert (sft["algorithm"]["optimizer"]["lr"], sft["algorithm"]["optimizer"]["lr_warmup_steps"]) == (2e-3, 10)
    assert (sft["seed"], rft["seed"]) == (1, 7)


def test_arguments_of_functions_are_free():
    generator = "data_processor.task_pipeline.generator_args"
    config = compose(["algorithm.policy_loss_fn_args.mine=1", f"{generator}.mine=1",
                      "buffer.explorer_input.taskset.reward_fn_args.x=[1,2]"])
    assert config["algorithm"]["policy_loss_fn_args"]["mine"] == 1
    assert config["data_processor"]["task_pipeline"]["generator_args"]["tasks"] == 2500  # the recipe's stays
    assert config["buffer"]["explorer_input"]["taskset"]["reward_fn_args"] == {"x": [1, 2]}


def test_an_element_of_a_list_can_be_changed():
    config = compose(["buffer.explorer_input.eval_tasksets.0.limit=5"])
    assert config["buffer"]["explorer_input"]["eval_tasksets"][0]["limit"] == 5


def test_a_variable_of_the_environment_is_filled_in(monkeypatch):
    monkeypatch.setenv("OURO_TEST_NAME", "from_outside")
    assert compose(["name=${oc.env:OURO_TEST_NAME}"])["name"] == "from_outside"


def test_every_setting_says_what_it_means():
    for key, item in walk():
        assert item.metadata["doc"], key


# ------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(("override", "meant"), [
    ("algorithm.optimizer.lrr=1", "algorithm.optimizer.lr"), ("algoritm.optimizer.lr=1", "algorithm.optimizer.lr"),
    ("algorithm.optimiser.lr=1", "algorithm.optimizer.lr"), ("+buffer.batchsize=1", "buffer.batch_size"),
    ("recipes=countdown", "recipe"), ("buffer.explorer_input.eval_tasksets.0.limt=5", "limit")])
def test_an_unknown_key_is_answered_with_the_nearest(override, meant):
    message = refused(override)
    assert "unknown key" in message
    assert f"{meant}'?" in message
    assert "append" not in message  # Hydra's own advice would hide the typing error


def test_an_unknown_key_of_a_stage_is_answered_with_the_nearest():
    message = refused("stages.rft.algorithm.repeat_tims=4")
    assert "stage 'rft': unknown key 'algorithm.repeat_tims'" in message
    assert "algorithm.repeat_times'?" in message


def test_an_unknown_stage_lists_those_there_are():
    assert "no stage 'rtf' in this recipe. Did you mean 'rft'? Stages: sft, rft." in refused("stages.rtf.seed=1")


def test_an_unknown_recipe_lists_those_there_are():
    message = refused("recipe=contdown")
    assert "unknown recipe 'contdown'. Did you mean 'countdown'?" in message
    assert all(name in message for name in groups()["recipe"])


def test_all_problems_come_at_once_and_each_once():
    message = refused("algorithm.optimizer.lr=-1", "trainer.zero_stage=7", "model.top_p=0", "trainer.grad_clip=nan")
    assert message.count("algorithm.optimizer.lr=-1.0: needed at least 0.") == 1
    assert message.count("trainer.zero_stage=7: needed one of 1, 2, 3.") == 1
    assert message.count("model.top_p=0.0: needed greater than 0.") == 1
    assert message.count("trainer.grad_clip=nan: needed a finite number.") == 1


def test_several_unknown_keys_come_at_once():
    message = refused("seeed=1", "nmae=x")
    assert "'seeed'" in message
    assert "'nmae'" in message


@pytest.mark.parametrize(("key", "value", "bound"), [
    ("model.top_p", 1.5, "model.top_p=1.5: needed at most 1"), ("cluster.node_num", 2, "needed at most 1"),
    ("algorithm.repeat_times", 0, "algorithm.repeat_times=0: needed at least 1"),
    ("algorithm.algorithm_type", "grop", "Did you mean 'grpo'?"),
    ("algorithm.advantage_fn", "gpro", "Did you mean 'grpo'?"), ("algorithm.policy_loss_fn", "pppo", "'ppo'?"),
    ("buffer.explorer_input.default_reward_fn_type", "contdown_reward", "Did you mean 'countdown_reward'?"),
    ("buffer.explorer_input.default_workflow_type", "simpel", "or package.module:function of your own"),
    ("data_processor.task_pipeline.generator", "contdown", "Did you mean 'countdown'?"),
    ("algorithm.optimizer.lr", float("inf"), "needed a finite number"),
    ("buffer.explorer_input.eval_tasksets.0.limit", 0, "eval_tasksets.0.limit=0: needed at least 1")])
def test_a_value_outside_its_bounds(key, value, bound):
    assert bound in "\n".join(check(changed({key: value})))


def test_a_value_of_a_stage_outside_its_bounds():
    message = refused("stages.sft.buffer.batch_size=0", "stages.rft.buffer.train_batch_size=100")
    assert "stage 'sft': buffer.batch_size=0: needed at least 1" in message
    assert "stage 'rft': buffer.train_batch_size=100 neither divides" in message


@pytest.mark.parametrize(("override", "key"), [
    ("seed=abc", "seed"), ("seed=null", "seed"), ("stages.rft.seed=abc", "seed"),
    ("algorithm={optimizer: 3}", "algorithm.optimizer"),
    ("stages.rft.algorithm.repeat_times.x=4", "algorithm.repeat_times")])
def test_a_value_of_the_wrong_type_names_the_key(override, key):
    assert f"key '{key}'" in refused(override)


def test_a_missing_variable_of_the_environment_is_named(monkeypatch):
    monkeypatch.delenv("OURO_TEST_NAME", raising=False)
    for override in ("name=${oc.env:OURO_TEST_NAME}", "stages.rft.log.level=${oc.env:OURO_TEST_NAME}"):
        message = refused(override)
        assert f"'{override.split('=')[0].split('.', 2)[-1]}' wants the environment variable OURO_TEST_NAME" in message


@pytest.mark.parametrize("override", ["seed", "=3", "~seed", "seed=1,2", "stages.rft", "stages.rft.seed=1,2",
                                      "stages.rft.seed=[", "~stages.rft", "stages.rft=3", "seed=[", "hydra.run.dir=x"])
def test_what_is_no_override_is_refused(override):
    message = refused(override)
    assert override.lstrip("~").split("=")[0].split(".")[0] in message
    assert "--multirun" not in message


EVAL = composed()["buffer"]["explorer_input"]["eval_tasksets"][0]


@pytest.mark.parametrize(("key", "value", "words"), [
    ("model.model_path", "/x", "model.model_path and model.init.enable exclude each other"),
    ("model.init.hidden_size", 48, "needed a multiple of 32 x num_attention_heads"),
    ("model.init.num_key_value_heads", 3, "must divide"),
    ("model.max_model_len", 20, "model.max_model_len=20: prompt + response need 36"),
    ("trainer.max_token_len_per_gpu", 35, "prompt + response) has 36 tokens"),
    ("model.max_model_len", 20000, "prompt + response) has 20000 tokens"),
    ("algorithm.optimizer.betas", [0.9], "betas=[0.9]: needed two numbers"),
    ("algorithm.optimizer.betas", [0.9, 1.0], "less than 1"),
    ("algorithm.repeat_times", 1, "grpo compares the rollouts of a group"),
    ("buffer.train_batch_size", 100, "buffer.train_batch_size=100 neither divides"),
    ("buffer.explorer_input.taskset.repeat_times", 4, "follow algorithm.repeat_times=8: set that"),
    ("buffer.explorer_input.taskset.rollout_args.temperature", 0.5, "follow model.temperature=1.0"),
    ("data_processor.task_pipeline.inputs", ["a.jsonl"], "generator and inputs exclude each other"),
    ("name", "a b", "name='a b'"), ("project", "..", "project='..'"), ("checkpoint_root_dir", "/x{y}", "braces"),
    ("buffer.explorer_input.eval_tasksets", [{**EVAL, "name": "a"}, {**EVAL, "name": "a"}], "are named a, a: rows"),
    ("explorer.env_vars.A-B", "x", "explorer.env_vars.A-B: needed the name of an environment variable"),
    ("explorer.env_vars.DEBUG", True, "explorer.env_vars.DEBUG=True: needed a text or a number"),
    ("explorer.env_vars.PYTHONPATH", "x", "is set by the stage itself"),
    ("explorer.env_vars.OPENAI_API_KEY", "sk-1", "explorer.env_vars.OPENAI_API_KEY: a secret does not go into"),
    ("algorithm.algorithm_type", "remax", "(algorithm_type=remax) needs a column baseline_reward, of one greedy"),
    ("algorithm.advantage_fn", "jsd", "needs a column teacher_logprobs, of a second model, which no stage makes yet"),
    ("explorer.eval_interval", 10, "explorer.eval_interval=10: there is nothing to evaluate on"),
    ("monitor.monitor_args.api_key", "hush", "monitor.monitor_args.api_key: a secret does not go into"),
    ("algorithm.policy_loss_fn_args.my_password", "hush", "environment"),
])
def test_rules_between_settings(key, value, words):
    without = {"buffer.explorer_input.eval_tasksets": []} if key == "explorer.eval_interval" else {}
    (problem,) = check(changed({key: value, **without}))
    assert words in problem


@pytest.mark.parametrize("stage", ["{a: 1}", "{stage_name: a/b}", "{stage_name: 7}", "{stage_name: ''}",
                                   "{stage_name: all}"])
def test_a_stage_needs_a_name_that_can_name_a_rule_and_a_directory(stage):
    assert "stage_name" in refused(f"stages=[{stage}]")


def test_names_that_are_checked_early_are_those_that_there_are():
    """pipeline/ imports neither operators nor workflows, so the names stand in two places."""
    leaves = dict(walk())
    assert set(REWARD_NAMES) == set(REWARDS) | set(MODELS)
    assert set(WORKFLOW_NAMES) == set(WORKFLOWS)
    for key, table, kind in (("algorithm.advantage_fn", ADVANTAGES, "names"),
                             ("algorithm.policy_loss_fn", POLICY_LOSSES, "names"),
                             ("algorithm.kl_loss_fn", KL_ESTIMATORS, "names"),
                             ("algorithm.kl_penalty_fn", KL_ESTIMATORS, "names"),
                             ("algorithm.entropy_loss_fn", ENTROPY_LOSSES, "names"),
                             ("data_processor.task_pipeline.generator", GENERATORS, "choices")):
        assert set(leaves[key].metadata[kind]) == set(table)


def test_what_only_sounds_like_a_secret_is_a_setting():
    key = "buffer.explorer_input.taskset.reward_fn_args.stop_token"
    assert check(changed({key: "<END>"})) == []


def test_rollouts_without_a_group_are_fine_where_none_is_compared():
    assert check(changed({"algorithm.repeat_times": 1, "algorithm.advantage_fn": "reinforce"})) == []


def test_a_composed_configuration_has_no_problem():
    assert check(composed()) == []


def test_secrets_are_masked_and_what_only_sounds_like_one_is_not():
    given = {"a": [{"api_key": "x", "max_prompt_tokens": 5}], "HF_TOKEN": "y", "password": None, "stop_token": "z"}
    assert mask(given) == {
        "a": [{"api_key": "***", "max_prompt_tokens": 5}], "HF_TOKEN": "***", "password": None, "stop_token": "z"}
    assert given["a"][0]["api_key"] == "x"


# ------------------------------------------------------------------------------------------------------ user's files


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A directory of the user's with a conf/ of its own, as the current one."""
    monkeypatch.chdir(tmp_path)
    for group in ("recipe", "trainer"):
        (tmp_path / "conf" / group).mkdir(parents=True)
    return tmp_path


RECIPE = "# @package _global_\nname: mine\nmodel: {init: {enable: true}}\nbuffer: {batch_size: 3}\n"


def test_recipes_and_groups_of_the_users_own_are_found_below_the_current_directory(project):
    (project / "conf/recipe/mine.yaml").write_text(RECIPE)
    (project / "conf/trainer/small.yaml").write_text("max_token_len_per_gpu: 4000\n")
    config = compose(["recipe=mine", "trainer=small"])
    assert (config["name"], config["buffer"]["batch_size"], config["trainer"]["max_token_len_per_gpu"]) == (
        "mine", 3, 4000)
    assert "Known: countdown, gsm8k, mine" in refused("recipe=mien")
    assert "unknown trainer 'smal'. Did you mean 'small'?" in refused("trainer=smal")


def test_a_choice_of_a_group_wins_over_the_recipe_and_an_override_over_both(project):
    (project / "conf/recipe/mine.yaml").write_text(RECIPE + "trainer: {grad_clip: 3, max_token_len_per_gpu: 5000}\n")
    (project / "conf/trainer/small.yaml").write_text("max_token_len_per_gpu: 4000\ngrad_clip: 2\n")
    trainer = compose(["recipe=mine", "trainer=small", "trainer.grad_clip=1"])["trainer"]
    assert (trainer["max_token_len_per_gpu"], trainer["grad_clip"]) == (4000, 1.0)


def test_a_recipe_of_the_users_does_not_hide_behind_one_of_ours(project):
    (project / "conf/recipe/countdown.yaml").write_text(RECIPE)
    assert "countdown.yaml has the name of one of ours" in refused()


def test_a_recipe_can_be_a_file_anywhere(project):
    (project / "x").mkdir()
    (project / "x" / "my own.yaml").write_text(RECIPE)
    assert compose(["recipe='x/my own.yaml'"])["name"] == "mine"
    assert "recipe=x/no.yaml: there is no such file" in refused("recipe=x/no.yaml")


@pytest.mark.parametrize(("text", "words"), [
    ("name: [1, 2\nseed: 3\n", "line 2, column"), ("seed: 1\nname: a\nseed: 2\n", "line 3, column 1"),
    ("name: x\n  seed: 2\n", "line 2, column"), ("- a\n- b\n", "holds no settings"), ("", "holds no settings"),
    ("nmae: x\n", "unknown key 'nmae'. Did you mean 'name'?"), ("buffer: 3\n", "key 'buffer': needed a mapping"),
])
def test_a_broken_recipe_names_the_file_or_the_key(project, text, words):
    (project / "bad.yaml").write_text(text)
    assert words in refused("recipe=bad.yaml")
    if text:  # a recipe of conf/ may be empty
        (project / "conf/recipe/bad.yaml").write_text("# @package _global_\n" + text)
        message = refused("recipe=bad")
        assert "bad.yaml" in message or "recipe/bad" in message or words in message


def test_settings_that_name_each_other_in_a_circle_are_named():
    message = refused("name=${project}", "project=${name}")
    assert "key 'name': ${project} leads in a circle." in message
    assert "key 'project': ${name} leads in a circle." in message


def test_a_setting_may_take_the_value_of_another():
    assert compose(["name=${project}_${seed}", "seed=4"])["name"] == "ouroboros_4"
    assert compose(["name=${oc.env:OURO_NOT_SET,fallback}"])["name"] == "fallback"


def test_unknown_keys_wrong_types_bounds_and_rules_come_at_once():
    message = refused("seeed=1", "seed=abc", "trainer.zero_stage=7", "stages.sft.buffer.batch_size=0",
                      "stages.rft.buffer.train_batch_size=100", "stages.rft.algorithm.repeat_tims=4")
    for words in ("unknown key 'seeed'", "key 'seed': needed a whole number, found the text 'abc'",
                  "trainer.zero_stage=7: needed one of", "stage 'sft': buffer.batch_size=0: needed at least 1",
                  "stage 'rft': buffer.train_batch_size=100 neither divides",
                  "stage 'rft': unknown key 'algorithm.repeat_tims'"):
        assert message.count(words) == 1


@pytest.mark.parametrize(("group", "choice"), [(g, c) for g, names in groups().items() for c in names
                                              if g != "recipe" and parts(c).get("advantage_fn") not in LACKING])
def test_every_shipped_choice_of_a_group_composes_and_stays_in_its_section(group, choice, monkeypatch):
    monkeypatch.setenv("OURO_MODEL", "models/x")
    before = composed()
    small = ["model.max_prompt_tokens=24", "model.max_response_tokens=12"]
    after = compose([f"{group}={choice}", *small, *(["stages=[]"] if choice == "sft" else [])])
    assert all(after[key] == before[key] for key in before if key not in (group, "stages"))


def test_a_group_is_a_section_of_the_schema():
    sections = {key.partition(".")[0] for key, _ in walk() if "." in key}
    assert set(groups()) - {"recipe"} <= sections


# ----------------------------------------------------------------------------------- reward functions and their models

SOURCE = "buffer.explorer_input"
JUDGE = {"name": None, "model_path": "judge", "engine_num": 1, "tensor_parallel_size": 1, "dtype": "auto",
         "max_model_len": None, "max_token_len": 100}


def judged(*models: dict, function="reward_model", **taskset) -> dict:
    """Values with these auxiliary models for rollouts; the evaluation has a rule."""
    own = {f"{SOURCE}.taskset.{key}": value for key, value in taskset.items()}
    return {"explorer.auxiliary_models": [{**JUDGE, **model} for model in models],
            f"{SOURCE}.taskset.default_reward_fn_type": function, **own}


def test_several_reward_functions_are_a_list():
    assert check(changed({f"{SOURCE}.default_reward_fn_type": ["countdown_reward", "format_reward"]})) == []
    (problem,) = check(changed({f"{SOURCE}.default_reward_fn_type": ["countdown_reward", "format_rewrad"]}))
    assert "default_reward_fn_type=format_rewrad: needed one of " in problem
    assert "Did you mean 'format_reward'?" in problem
    config = compose([f"{SOURCE}.default_reward_fn_type=[countdown_reward,format_reward]"])
    assert config["buffer"]["explorer_input"]["default_reward_fn_type"] == ["countdown_reward", "format_reward"]
    (problem,) = check(changed({f"{SOURCE}.taskset.default_reward_fn_type": ["format_reward", {}]}))
    assert "default_reward_fn_type.1': needed a text, found a mapping" in problem


@pytest.mark.parametrize("values", [
    judged({}), judged({}, function=["countdown_reward", "reward_model"]), judged({"name": "a"}),
    judged({"name": "a"}, {"name": "b"}, reward_fn_args={"model": "b"}),
    {"explorer.auxiliary_models": [JUDGE], f"{SOURCE}.eval_tasksets.0.default_reward_fn_type":
        ["countdown_reward", "reward_model"]}])
def test_a_reward_model_is_asked_by_name_or_alone(values):
    assert check(changed(values)) == []


@pytest.mark.parametrize(("values", "problem"), [
    (judged(), "taskset: the reward function reward_model asks a model of explorer.auxiliary_models, which is empty"),
    (judged({"name": "a"}, {"name": "b"}), "reward_fn_args.model: explorer.auxiliary_models has 2; needed the name"),
    (judged({"name": "judge"}, reward_fn_args={"model": "jugde"}), "has that name. Did you mean 'judge'?"),
    (judged({"name": "a"}, {"name": "a"}, reward_fn_args={"model": "a"}), "are named a, a: needed names that differ"),
    (judged({"model_path": None}), "auxiliary_models.0.model_path: needed a Hugging Face directory, found null"),
    (judged({"tensor_parallel_size": 2}), "tensor_parallel_size=2: needed at most 1"),
    (judged({"engine_nmu": 2}), "unknown key 'explorer.auxiliary_models.0.engine_nmu'"),
    ({f"{SOURCE}.default_reward_fn_type": []}, "taskset: no reward function is named"),
    ({f"{SOURCE}.eval_tasksets.0.default_reward_fn_type": ["format_reward", "reward_model"]},
     "eval_tasksets.0: format_reward and reward_model do not say what is solved. Name a function with a component")])
def test_a_reward_that_could_not_be_given_is_told_before_anything_runs(values, problem):
    assert problem in "\n".join(check(changed(values)))


def test_models_that_no_stage_asks_are_refused_and_one_stage_is_enough():
    judge = "explorer.auxiliary_models=[{model_path: judge}]"
    assert "explorer.auxiliary_models: nothing asks them. Name reward_model among" in refused(judge)
    asked = [judge, f"stages.rft.{SOURCE}.taskset.default_reward_fn_type=[countdown_reward,reward_model]"]
    assert compose(asked)["explorer"]["auxiliary_models"][0]["model_path"] == "judge"
