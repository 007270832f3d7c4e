"""Configuration: what is accepted, and what a mistake is answered with."""

import pytest

from pipeline.check.judge import compose
from pipeline.compose.conf_files import groups
from pipeline.compose.stage_settings import effective
from pipeline.settings.algorithms import MIXED_LOSSES, PAIR_TYPES
from pipeline.settings.config import walk
from tests.configs import changed, check, composed, refused

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
        assert item.description, key


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
    assert message.count("algorithm.optimizer.lr=-1: needed at least 0.") == 1
    assert message.count("trainer.zero_stage=7: needed one of 1, 2, 3.") == 1
    assert message.count("model.top_p=0: needed greater than 0.") == 1
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


def test_what_follows_from_a_missing_variable_is_not_told_beside_it(monkeypatch):
    """Without the path that the variable gives, rules of sets would say that none is set and no column read."""
    monkeypatch.delenv("OURO_TEST_DATA", raising=False)
    shown = "stages.sft.buffer.trainer_input.experience_buffer"
    message = refused("data_processor.task_pipeline.generator=null", f"{shown}.path=${{oc.env:OURO_TEST_DATA}}",
                      f"{shown}.format.prompt_key=q", f"{shown}.subset_name=main")
    assert "wants the environment variable OURO_TEST_DATA" in message
    assert "experience_buffer.path is not set, and" not in message
    assert "read only with" not in message


@pytest.mark.parametrize("override", ["seed", "=3", "~seed", "seed=1,2", "stages.rft", "stages.rft.seed=1,2",
                                      "stages.rft.seed=[", "~stages.rft", "stages.rft=3", "seed=[", "hydra.run.dir=x"])
def test_what_is_no_override_is_refused(override):
    message = refused(override)
    assert override.lstrip("~").split("=")[0].split(".")[0] in message
    assert "--multirun" not in message


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


def test_names_that_are_not_there_come_beside_wrong_values():
    message = refused("seed=-1", "algorithm.policy_loss_fn_args.foo=1", "monitor.monitor_args.foo=2",
                      "stages.sft.buffer.batch_size=0",
                      "data_processor.task_pipeline.generator_args.foo=3")
    for words in ("seed=-1: needed at least 0", "monitor.monitor_args.foo: unknown for monitor_type=mlflow",
                  "stage 'sft': buffer.batch_size=0: needed at least 1",
                  "stage 'rft': algorithm.policy_loss_fn_args: 'ppo' has no argument 'foo'",
                  "\n  data_processor.task_pipeline.generator_args: 'countdown' has no argument 'foo'"):
        assert message.count(words) == 1


def test_a_list_over_a_section_on_the_command_line_hides_no_other_problem():
    message = refused("model.init=[1]", "stages={a: 1}", "seed=-1")
    for line in ("key 'model.init': needed a mapping, found a list", "key 'stages': needed a list, found a mapping",
                 "seed=-1: needed at least 0"):
        assert message.count(line) == 1


def test_a_key_that_is_set_twice_is_refused():
    assert "'seed=1' and 'seed=2' set the same key; leave one of them out" in refused("seed=1", "seed=2")
    assert "'seed=1' and '++seed=1' set the same key" in refused("seed=1", "++seed=1")


@pytest.mark.parametrize(("override", "why"), [
    ("model.min_response_tokens=50", "needed one of 0, 1: the engine would forbid the end of a response"),
    ("model.repetition_penalty=1.2", "the trainer scores the distribution without it"),
    ("trainer.use_dynamic_bsz=false", "trainer.max_token_len_per_gpu"),
    ("stages.rft.trainer=zero2", "stage 'rft': key 'trainer': needed a mapping of settings, found the text 'zero2'. A "
                                 "file of conf/trainer/ is chosen for the whole run, on the command line"),
])
def test_a_refused_value_is_told_with_its_reason(override, why):
    assert why in refused(override)


def test_a_mode_that_is_not_here_is_answered_once():
    assert refused("mode=serve").count("mode=serve") == 1


PAIRS = ["buffer.trainer_input.experience_buffer.path=pairs.jsonl"]
TAUGHT = ["model.teacher_model_path=models/teacher"]
GIVEN, SHOWN = "buffer.trainer_input.experience_buffer.path=given.jsonl", "buffer.trainer_input.auxiliary_buffers"
NEEDED = {**dict.fromkeys(PAIR_TYPES, PAIRS), "jsd": TAUGHT, "on_policy_distill": TAUGHT,
          "gigpo": ["buffer.explorer_input.taskset.default_workflow_type=retry_workflow", "model.max_model_len=64"],
          "cpt": ["stages=[]", GIVEN],
          **{key: ["stages=[{stage_name: rft}]", f"{SHOWN}.sft_dataset={{}}"] for key in MIXED_LOSSES}}


@pytest.mark.parametrize(("group", "choice"), [(g, c) for g, names in groups().items() for c in names
                                              if g != "recipe"])
def test_every_shipped_choice_of_a_group_composes_and_stays_in_its_section(group, choice, monkeypatch):
    monkeypatch.setenv("OURO_MODEL", "models/x")
    before = composed()
    small = ["model.max_prompt_tokens=24", "model.max_response_tokens=12"]
    needed = NEEDED.get(choice, [])
    after = compose([f"{group}={choice}", *small, *needed, *(["stages=[]"] if choice == "sft" else [])])
    touched = (group, "stages", *(override.partition(".")[0] for override in needed))
    assert all(after[key] == before[key] for key in before if key not in touched)


def test_a_group_is_a_section_of_the_schema():
    sections = {key.partition(".")[0] for key, _ in walk() if "." in key}
    assert set(groups()) - {"recipe"} <= sections


@pytest.mark.parametrize("stage", ["{a: 1}", "{stage_name: a/b}", "{stage_name: 7}", "{stage_name: ''}",
                                   "{stage_name: all}"])
def test_a_stage_needs_a_name_that_can_name_a_rule_and_a_directory(stage):
    assert "stage_name" in refused(f"stages=[{stage}]")


def test_a_composed_configuration_has_no_problem():
    assert check(composed()) == []


@pytest.mark.parametrize(("override", "words"), [
    ("=3", "'=3' has no key before the '='; write key=value."), ("+=3", "has no key before the '='"),
    ("seed=[1", "the value cannot be read: its '[' and ']' do not match."), ("name={a", "its '{' and '}' do not match"),
    ("name='ab", "a quote in it is not closed."),
    ("name=x=y", "Hydra stops at '='. A text with other characters than letters, digits and . _ - / goes in quotes: "
                 "\"name='x=y'\"."),
])
def test_a_word_that_is_no_override_says_why(override, words):
    found = refused(override)
    assert words in found
    assert "viable" not in found


@pytest.mark.parametrize(("key", "meant"), [("stagename", "stage_name"), ("aftr", "after")])
def test_what_an_entry_says_of_itself_is_meant_too(key, meant):
    assert f"unknown key '{key}'. Did you mean '{meant}'?" in refused(f"stages=[{{stage_name: a, {key}: b}}]")


def test_a_name_that_yaml_takes_for_a_boolean_is_told_so():
    assert "YAML reads on, off, yes, no, true and false as booleans: put the name in" in refused(
        "stages=[{stage_name: true}]")


def test_a_choice_may_be_written_in_other_capitals_and_a_variable_holds_a_text():
    config = compose(["log.level=debug", "explorer.env_vars.TOKENIZERS_PARALLELISM=False",
                      "stages.rft.explorer.env_vars.A=true"])
    assert config["log"]["level"] == "DEBUG"
    assert config["explorer"]["env_vars"] == {"TOKENIZERS_PARALLELISM": "False"}
    assert config["stages"][1]["explorer"]["env_vars"] == {"A": "true"}
