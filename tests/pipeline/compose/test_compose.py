"""Configuration: what is accepted, and which problems a mistake is."""

import pytest

from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.compose.conf_files import groups
from ouroboros.pipeline.compose.recipe import effective
from ouroboros.pipeline.settings.algorithms import MIXED_LOSSES, OF_PAIRS
from ouroboros.pipeline.settings.config import walk
from tests.configs import broken, changed, check, composed, places, problems_of


def test_every_shipped_recipe_composes():
    for name in groups()["recipe"]:
        config = compose([f"recipe={name}"])
        assert config.stages
        assert all(effective(config, stage) for stage in config.stages)


def test_an_override_wins_over_the_recipe_and_the_recipe_over_the_default():
    assert composed().algorithm.optimizer.lr == 5e-4
    assert compose(["algorithm.optimizer.lr=4e-4"]).algorithm.optimizer.lr == 4e-4
    assert composed().algorithm.optimizer.eps == 1e-8


def test_a_stage_has_the_settings_of_the_run_with_its_own_merged_in_key_by_key():
    config = compose(["trainer.grad_clip=0.5", "stages.sft.buffer.total_steps=3", "stages.rft.seed=7"])
    sft, rft = (effective(config, stage) for stage in config.stages)
    assert sft.algorithm.algorithm_type == "sft"
    assert sft.algorithm.optimizer.lr == 1e-3
    assert sft.algorithm.optimizer.weight_decay == 0.0  # of the recipe, beside the stage's lr
    assert rft.algorithm.optimizer.lr == 5e-4
    assert sft.trainer.grad_clip == rft.trainer.grad_clip == 0.5
    assert (sft.buffer.total_steps, sft.buffer.batch_size) == (3, 256)
    assert (sft.seed, rft.seed) == (1, 7)


def test_arguments_of_functions_are_free():
    generator = "data_processor.task_pipeline.generator_args"
    config = compose(["algorithm.policy_loss_fn_args.mine=1", f"{generator}.mine=1",
                      "buffer.explorer_input.taskset.reward_fn_args.x=[1,2]"])
    assert config.algorithm.policy_loss_fn_args["mine"] == 1
    assert config.data_processor.task_pipeline.generator_args["tasks"] == 2500  # the recipe's stays
    assert config.buffer.explorer_input.taskset.reward_fn_args == {"x": [1, 2]}


def test_a_setting_may_take_the_value_of_a_variable_or_of_another_setting(monkeypatch):
    monkeypatch.setenv("OURO_TEST_NAME", "from_outside")
    assert compose(["name=${oc.env:OURO_TEST_NAME}"]).name == "from_outside"
    assert compose(["name=${project}_${seed}", "seed=4"]).name == "ouroboros_4"
    assert compose(["name=${oc.env:OURO_NOT_SET,fallback}"]).name == "fallback"


def test_every_setting_has_a_description():
    for key, item in walk():
        assert item.description, key


def test_a_choice_may_have_other_capitals_and_a_variable_holds_a_text():
    config = compose(["log.level=debug", "explorer.env_vars.TOKENIZERS_PARALLELISM=False",
                      "stages.rft.explorer.env_vars.A=true"])
    assert config.log.level == "DEBUG"
    assert config.explorer.env_vars == {"TOKENIZERS_PARALLELISM": "False"}
    assert config.stages[1]["explorer"]["env_vars"] == {"A": "true"}


PAIRS = ["buffer.trainer_input.experience_buffer.path=pairs.jsonl"]
TAUGHT = ["model.teacher_model_path=models/teacher"]
GIVEN, SHOWN = "buffer.trainer_input.experience_buffer.path=given.jsonl", "buffer.trainer_input.auxiliary_buffers"
NEEDED = {**dict.fromkeys(OF_PAIRS, PAIRS), **dict.fromkeys(("gkd", "jsd", "on_policy_distill"), TAUGHT),
          "gigpo": ["buffer.explorer_input.taskset.default_workflow_type=retry_workflow", "model.max_model_len=64"],
          "cpt": ["stages=[]", GIVEN],
          **{key: ["stages=[{stage_name: rft}]", f"{SHOWN}.sft_dataset={{}}"] for key in MIXED_LOSSES}}


@pytest.mark.parametrize(("group", "choice"), [(g, c) for g, names in groups().items() for c in names if g != "recipe"])
def test_every_shipped_choice_of_a_group_composes_and_stays_in_its_section(group, choice, monkeypatch):
    monkeypatch.setenv("OURO_MODEL", "models/x")
    before = composed()
    small = ["model.max_prompt_tokens=24", "model.max_response_tokens=12"]
    needed = NEEDED.get(choice, [])
    after = compose([f"{group}={choice}", *small, *needed, *(["stages=[]"] if choice == "sft" else [])])
    touched = (group, "stages", *(override.partition(".")[0] for override in needed))
    assert all(getattr(after, key) == value for key, value in before if key not in touched)


def test_a_group_is_a_section_of_the_schema():
    sections = {key.partition(".")[0] for key, _ in walk() if "." in key}
    assert set(groups()) - {"recipe"} <= sections


@pytest.mark.parametrize(("override", "place", "meant"), [
    ("algorithm.optimizer.lrr=1", "algorithm.optimizer.lrr", "algorithm.optimizer.lr"),
    ("algoritm.optimizer.lr=1", "algoritm.optimizer.lr", "algorithm.optimizer.lr"),
    ("algorithm.optimiser.lr=1", "algorithm.optimiser.lr", "algorithm.optimizer.lr"),
    ("+buffer.batchsize=1", "buffer.batchsize", "buffer.batch_size"), ("recipes=countdown", "recipes", "recipe"),
    ("buffer.explorer_input.eval_tasksets.0.limt=5", "buffer.explorer_input.eval_tasksets.0.limt",
     "buffer.explorer_input.eval_tasksets.0.limit"),
    ("stages.rft.algorithm.repeat_tims=4", "rft: algorithm.repeat_tims", "algorithm.repeat_times"),
    ("stages=[{stage_name: a, stagename: b}]", "a: stagename", "stage_name"),
    ("stages=[{stage_name: a, aftr: b}]", "a: aftr", "after")])
def test_an_unknown_key_is_one_problem_with_the_nearest(override, place, meant):
    (problem,) = problems_of(override)
    assert (places([problem]), problem.needed) == ([place], "unknown key.")
    assert f"'{meant}'?" in problem.do


@pytest.mark.parametrize(("override", "key", "meant", "known"), [
    ("stages.rtf.seed=1", "'stages.rtf.seed=1'", "rft", ["sft", "rft"]),
    ("recipe=contdown", "recipe", "countdown", groups()["recipe"])])
def test_an_unknown_stage_or_recipe_lists_the_known(override, key, meant, known):
    (problem,) = problems_of(override)
    assert problem.key == key
    assert all(word in problem.needed for word in (f"'{meant}'?", *known))


@pytest.mark.parametrize(("overrides", "expected"), [
    (["algorithm.optimizer.lr=-1", "trainer.zero_stage=7", "model.top_p=0", "trainer.grad_clip=nan"],
     ["algorithm.optimizer.lr", "model.top_p", "trainer.grad_clip", "trainer.zero_stage"]),
    (["seeed=1", "nmae=x"], ["nmae", "seeed"]),
    (["model.init=[1]", "stages={a: 1}", "seed=-1"], ["model.init", "seed", "stages"]),
    (["seeed=1", "seed=abc", "trainer.zero_stage=7", "stages.sft.buffer.batch_size=0",
      "stages.rft.buffer.train_batch_size=100", "stages.rft.algorithm.repeat_tims=4"],
     ["rft: algorithm.repeat_tims", "rft: buffer.train_batch_size", "seed", "seeed", "sft: buffer.batch_size",
      "trainer.zero_stage"]),
    (["seed=-1", "algorithm.policy_loss_fn_args.foo=1", "monitor.monitor_args.foo=2", "stages.sft.buffer.batch_size=0",
      "data_processor.task_pipeline.generator_args.foo=3"],
     ["data_processor.task_pipeline.generator_args", "monitor.monitor_args.foo", "rft: algorithm.policy_loss_fn_args",
      "seed", "sft: buffer.batch_size"]),
    (["name=${project}", "project=${name}"], ["name", "project"]),
    (["seed=1", "seed=2"], ["'seed=1' and 'seed=2'"]), (["seed=1", "++seed=1"], ["'seed=1' and '++seed=1'"])])
def test_all_problems_come_at_once_and_each_once(overrides, expected):
    """Unknown keys, wrong types, bounds, rules, arguments, lists for sections, circles, keys that are set twice."""
    assert broken(*overrides) == expected


@pytest.mark.parametrize(("key", "value", "meant"), [
    ("model.top_p", 1.5, ""), ("cluster.node_num", 0, ""), ("algorithm.repeat_times", 0, ""),
    ("algorithm.algorithm_type", "grop", "grpo"), ("algorithm.advantage_fn", "gpro", "grpo"),
    ("algorithm.policy_loss_fn", "pppo", "ppo"), ("algorithm.optimizer.lr", float("inf"), ""),
    ("buffer.explorer_input.default_reward_fn_type", "contdown_reward", "countdown_reward"),
    ("buffer.explorer_input.default_workflow_type", "simple_workflw", "simple_workflow"),
    ("data_processor.task_pipeline.generator", "contdown", "countdown"),
    ("buffer.explorer_input.eval_tasksets.0.limit", 0, "")])
def test_a_value_outside_its_bounds_or_choices(key, value, meant):
    (problem,) = check(changed({key: value}))
    assert (problem.key, problem.found) == (key, value)
    assert not meant or problem.needed.startswith(f"Did you mean '{meant}'?")


@pytest.mark.parametrize(("override", "place"), [
    ("seed=abc", "seed"), ("seed=null", "seed"), ("stages.rft.seed=abc", "rft: seed"), ("mode=serve", "mode"),
    ("algorithm={optimizer: 3}", "algorithm.optimizer"), ("hydra.run.dir=x", "hydra.run.dir"),
    ("stages.rft.algorithm.repeat_times.x=4", "rft: algorithm.repeat_times"),
    *((f"stages=[{{stage_name: {name}}}]", "entry 1 of `stages`: stage_name") for name in ("a/b", 7, "''", "all")),
    # values that only the trainer's own reasons forbid
    ("model.min_response_tokens=50", "model.min_response_tokens"), ("trainer.use_dynamic_bsz=false",
                                                                  "trainer.use_dynamic_bsz"),
    ("model.repetition_penalty=1.2", "model.repetition_penalty"), ("stages.rft.trainer=zero2", "rft: trainer")])
def test_a_wrong_value_is_one_problem_of_its_key(override, place):
    assert broken(override) == [place]


def test_a_missing_variable_is_one_problem_of_the_setting_that_needs_it(monkeypatch):
    """Without the path that the variable gives, rules of sets would say that none is set and no column read."""
    monkeypatch.delenv("OURO_TEST", raising=False)
    buffer = "buffer.trainer_input.experience_buffer"
    for overrides, place in ((["name=${oc.env:OURO_TEST}"], "name"),
                             (["stages.rft.log.level=${oc.env:OURO_TEST}"], "rft: log.level"),
                             (["data_processor.task_pipeline.generator=null", f"stages.sft.{buffer}.subset_name=main",
                               f"stages.sft.{buffer}.path=${{oc.env:OURO_TEST}}",
                               f"stages.sft.{buffer}.format.prompt_key=q"], f"sft: {buffer}.path")):
        (problem,) = problems_of(*overrides)
        assert places([problem]) == [place]
        assert "OURO_TEST" in problem.needed


@pytest.mark.parametrize(("override", "why"), [
    ("seed", ""), ("~seed", "cannot be deleted"), ("seed=1,2", "ouro run -m"), ("stages.rft", ""),
    ("stages.rft.seed=1,2", ""), ("stages.rft.seed=[", "do not match"), ("~stages.rft", ""),
    ("stages.rft=3", "stages.rft.key=value"), ("seed=[", ""), ("=3", "no key"), ("+=3", "no key"),
    ("seed=[1", "'[' and ']' do not match"), ("name={a", "'{' and '}' do not match"), ("name='ab", "is not closed"),
    ("name=x=y", "\"name='x=y'\"")])
def test_a_word_that_is_no_override_is_one_problem(override, why):
    (problem,) = problems_of(override)
    assert problem.key == f"'{override}'"
    assert why in problem


def test_a_name_that_yaml_reads_as_a_boolean():
    (problem,) = problems_of("stages=[{stage_name: true}]")
    assert problem.found is True
    assert "quotes" in problem.do
    assert broken("stages=[{a: 1}]") == ["entry 1 of `stages`: a", problem.key]


def test_a_recipe_that_is_written_anew_is_read_anew(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "recipe").mkdir(parents=True)
    for steps in (3, 4):
        text = f"# @package _global_\nbuffer: {{total_steps: {steps}}}\n"
        (tmp_path / "conf" / "recipe" / "own.yaml").write_text(text)
        assert compose(["recipe=own"]).buffer.total_steps == steps
