"""What a configuration of Trinity-RFT says of its sets by saying nothing, and what of a set has no effect."""

import pytest
import yaml

from ouroboros.commands.bridges.report import write
from tests.bridges import from_trinity, left_out_of_trinity, values_of_trinity, written
from tests.golden.messages import wording

SETS, SHOWN = "buffer.explorer_input", "buffer.trainer_input.experience_buffer"


def test_a_set_is_taken_in_its_order_unless_it_says_otherwise():
    text = "buffer: {explorer_input: {taskset: {path: /d%s}, eval_tasksets: [{name: e, path: /e}]}}"
    found = values_of_trinity(text % "")
    assert found[f"{SETS}.taskset.data_selector.selector_type"] == "sequential"
    assert not [key for key in found if "eval_tasksets.0.data_selector" in key]
    found = values_of_trinity(text % ", data_selector: {selector_type: random}")
    assert found[f"{SETS}.taskset.data_selector.selector_type"] == "random"


@pytest.mark.parametrize(("given", "expected"), [
    ("", {"prompt_type": "messages", "messages_key": "message"}),
    (", format: {prompt_type: messages}", {"prompt_type": "messages", "messages_key": "message"}),
    (", format: {messages_key: m}", {"prompt_type": "messages", "messages_key": "m"}),
    (", format: {prompt_type: plaintext}", {"prompt_type": "plaintext"}),
    (", format: {prompt_key: q}", {"prompt_key": "q"})])
def test_demonstrations_are_messages_by_default(given, expected):
    found = values_of_trinity("algorithm: {algorithm_type: sft}\n"
                              f"buffer: {{trainer_input: {{experience_buffer: {{path: /d{given}}}}}}}")
    assert {key.rpartition(".")[2]: found[key] for key in found if key.startswith(f"{SHOWN}.format")} == expected


STAGED = "buffer: {%s}\nstages: [{stage_name: a, buffer: {%s}}]"


@pytest.mark.parametrize("path", ["path: /d,", ""])
def test_a_stages_set_keeps_what_is_said_of_the_same_set_of_all(path):
    """A stage takes sections key by key: only what neither says is the original's default."""
    said = "data_selector: {selector_type: shuffle}, format: {prompt_key: question}"
    found = values_of_trinity(STAGED % (f"explorer_input: {{taskset: {{{path} {said}}}}}",
                                        "explorer_input: {taskset: {path: /e}}"))
    assert found[f"{SETS}.taskset.format.prompt_key"] == "question"
    assert found[f"{SETS}.taskset.data_selector.selector_type"] == "shuffle"
    below = {key: found[key] for key in found if key.startswith("stages.0.buffer")}
    response = {} if path else {f"stages.0.{SETS}.taskset.format.response_key": "response"}
    assert below == {f"stages.0.{SETS}.taskset.path": "/e", **response}


def test_a_stages_list_of_sets_keeps_nothing_of_that_of_all():
    """It takes a list as a whole."""
    found = values_of_trinity(STAGED % ("explorer_input: {tasksets: [{path: /d, format: {prompt_key: question}}]}",
                                        "explorer_input: {tasksets: [{path: /e}]}"))
    assert found[f"stages.0.{SETS}.tasksets.0.format.prompt_key"] == "prompt"
    assert found[f"stages.0.{SETS}.tasksets.0.data_selector.selector_type"] == "sequential"


@pytest.mark.parametrize("given", ["prompt_type: plaintext", "prompt_key: q", "prompt_type: messages, messages_key: m"])
def test_a_stages_demonstrations_keep_the_format_of_all(given):
    found = values_of_trinity(STAGED % (f"trainer_input: {{experience_buffer: {{path: /d, format: {{{given}}}}}}}",
                                        "trainer_input: {experience_buffer: {path: /e}}"))
    assert not [key for key in found if key.startswith(f"stages.0.{SHOWN}.format")]


def test_a_set_without_a_path_has_no_columns():
    found = values_of_trinity("buffer: {explorer_input: {taskset: {path: null, format: {prompt_key: q}}}}")
    assert not [key for key in found if ".format." in key]


EXTERNAL = "model: {external_model: {enable: %s, model_name: m, base_url_env: URL, api_key_env: KEY}}\nmode: %s\n"
SERVER = "explorer.rollout_model"


@pytest.mark.parametrize("mode", ["bench", "explore"])
def test_a_server_answers_and_is_not_trained(mode):
    found = values_of_trinity(EXTERNAL % ("true", mode))
    assert {key: found[key] for key in found if key.startswith(SERVER)} == {
        f"{SERVER}.engine_type": "openai", f"{SERVER}.external.model_name": "m",
        f"{SERVER}.external.api_key_env": "KEY", f"{SERVER}.external.base_url": "${oc.env:URL}"}
    named = EXTERNAL.replace("{external", "{model_path: m, external")
    assert ["model.model_path" in values_of_trinity(named % (on, mode)) for on in ("true", "false")] == [False, True]
    assert values_of_trinity(EXTERNAL % ("true", mode) + "explorer: {rollout_model: {engine_type: external}}")[
        f"{SERVER}.engine_type"] == "openai"
    for switch, other in (("false", mode), ("true", "both")):
        assert not [key for key in values_of_trinity(EXTERNAL % (switch, other)) if key.startswith(SERVER)]


@pytest.mark.parametrize("given", ['model_name: ""', "base_url_env: null", "base_url_env: http://h/v1",
                                   "api_key_env: sk-x"])
def test_what_names_no_server_is_left_out_by_its_key(given):
    made = from_trinity(f"mode: bench\nmodel: {{external_model: {{enable: true, {given}}}}}\n")
    assert [one.key for one, _ in made.left_out] == [f"model.external_model.{given.partition(':')[0]}"]


def test_checkpoints_of_the_original_are_not_there_to_be_evaluated():
    assert from_trinity("mode: bench\nmodel: {model_path: /m}").asked
    assert not from_trinity(EXTERNAL % ("true", "bench")).asked


def test_the_algorithm_is_ppo_where_none_is_named():
    text = "%sbuffer: {explorer_input: {taskset: {path: /d}}}"
    assert values_of_trinity(text % "")["algorithm.algorithm_type"] == "ppo"
    assert values_of_trinity(text % "algorithm: {algorithm_type: opmd}\n")["algorithm.algorithm_type"] == "opmd"
    assert "algorithm.algorithm_type" not in values_of_trinity(text % "mode: bench\n")
    staged = "stages: [{stage_name: a, algorithm: {algorithm_type: grpo}}%s]\n"
    assert "algorithm.algorithm_type" not in values_of_trinity(text % (staged % ""))
    assert values_of_trinity(text % (staged % ", {stage_name: b}"))["algorithm.algorithm_type"] == "ppo"


@pytest.mark.parametrize(("sets", "key"), [
    ("[]", "explorer.eval_interval"),  # many say how often, and name no set: the original then evaluates nothing
    *((f"[{{name: e, path: /e, {selector}: {{selector_type: random}}}}]",
       f"{SETS}.eval_tasksets.0.{selector}.selector_type")
      for selector in ("data_selector", "task_selector"))])  # an order changes nothing
def test_what_of_an_evaluation_has_no_effect(sets, key):
    text = f"explorer: {{eval_interval: 50}}\nbuffer: {{explorer_input: {{eval_tasksets: {sets}}}}}"
    assert list(left_out_of_trinity(text)) == [key]
    assert values_of_trinity(text).get("explorer.eval_interval") == (None if sets == "[]" else 50)


FIELDS = ("data_processor: {task_pipeline: {target_fields: [%s], operators: [{name: f}]}}\n"
          "buffer: {explorer_input: {taskset: {path: /d, format: {prompt_key: problem, response_key: truth}}}}")


def test_columns_that_operators_look_at_have_our_names():
    key = "data_processor.task_pipeline.target_fields"
    assert values_of_trinity(FIELDS % "problem, truth")[key] == ["question", "answer"]
    assert values_of_trinity(FIELDS % "question")[key] == ["question"]
    wording(left_out_of_trinity(FIELDS % "[a]")[key], "['a']")
    wording(left_out_of_trinity(FIELDS % "problem, other")[key], "column")
    shown = "buffer: {trainer_input: {experience_buffer: {path: /d}}}\nalgorithm: {algorithm_type: dpo}\n"
    assert values_of_trinity(shown + "data_processor: {task_pipeline: {target_fields: [prompt, rejected]}}")[key] == [
        "question", "rejected"]
    of_a_stage = FIELDS.partition("buffer")[0] % "problem" + (
        "stages: [{stage_name: a, buffer: {explorer_input: {taskset: {path: /d, format: {prompt_key: problem}}}}}]")
    assert values_of_trinity(of_a_stage)[key] == ["question"]


@pytest.mark.parametrize(("model", "expected"), [
    ("max_model_len: 100, max_prompt_tokens: 40, max_response_tokens: 60", (100, 40, 60)),
    ("max_model_len: 100, max_prompt_tokens: 80, max_response_tokens: 60", (None, 80, 60)),
    ("max_model_len: 100, max_response_tokens: 100", (100, 1, 99))])
def test_prompt_and_response_fit_into_a_sequence(model, expected):
    """80 + 60 > 100 is refused by the original; a response of the whole length leaves one token to the prompt there."""
    found = values_of_trinity(f"model: {{{model}}}")
    assert tuple(found.get(f"model.{name}") for name in ("max_model_len", "max_prompt_tokens",
                                                         "max_response_tokens")) == expected


@pytest.mark.parametrize(("batch", "stays"), [(16, True), (64, True), (32, True), (48, False), (720, False)])
def test_a_train_batch_goes_into_the_rollouts_of_steps_or_they_into_it(batch, stays):
    """8 tasks x 4 rollouts = 32: 16 is half of it, 64 twice; 48 and 720 cut a group somewhere."""
    text = ("algorithm: {algorithm_type: grpo, repeat_times: 4}\n"
            f"buffer: {{batch_size: 8, train_batch_size: {batch}}}")
    assert ("buffer.train_batch_size" in values_of_trinity(text)) == stays


def test_an_explorer_step_that_does_not_wait_for_all_its_tasks_stays_one():
    """Of 8 tasks x 4 a quarter is not waited for: 24 rollouts, of which 12 is half, and 32 no multiple."""
    text = ("algorithm: {{algorithm_type: grpo, repeat_times: 4}}\nbuffer: {{batch_size: 8, train_batch_size: {}}}\n"
            "explorer: {{over_rollout: {{ratio: 0.25, wait_after_min: 30, return_partial_tasks: {}}}}}")
    found = values_of_trinity(text.format(12, "false"))
    assert (found["explorer.over_rollout.ratio"], found["explorer.over_rollout.wait_after_min"]) == (0.25, 30)
    assert found["buffer.train_batch_size"] == 12
    assert "buffer.train_batch_size" not in values_of_trinity(text.format(32, "false"))
    left = left_out_of_trinity(text.format(12, "true"))
    assert "explorer.over_rollout.return_partial_tasks" in left


CRITIC = "trainer: {trainer_config: {critic: {optim: {%s}}}}"


COSINE = "lr_scheduler_type: cosine"
OF_STAGE = f"stages: [{{stage_name: a, algorithm: {{optimizer: {{{COSINE}}}}}}}]"


@pytest.mark.parametrize(("text", "ends"), [
    ("name: cosine\nalgorithm: {optimizer: {lr_scheduler_type: linear}}", {}),
    (f"algorithm: {{optimizer: {{{COSINE}}}}}", {"algorithm.optimizer": 0.01}),
    ("algorithm: {optimizer: {warmup_style: cosine}}", {"algorithm.optimizer": 0.01}),
    (CRITIC % "warmup_style: cosine", {"trainer.critic.optimizer": 0.01}),
    (OF_STAGE, {"stages.0.algorithm.optimizer": 0.01}),
    (f"algorithm: {{optimizer: {{{COSINE}}}}}\n{OF_STAGE}", {"algorithm.optimizer": 0.01}),
    (f"algorithm: {{optimizer: {{{COSINE}, min_lr_ratio: 0.2}}}}\n{OF_STAGE}", {"algorithm.optimizer": 0.2}),
    (CRITIC % "warmup_style: cosine, min_lr_ratio: 0.3", {"trainer.critic.optimizer": 0.3})])
def test_a_cosine_ends_at_the_originals_share_of_the_rate(text, ends):
    """0.01 there and 0 here, where the source says neither; nothing else that is called cosine has it."""
    found = values_of_trinity(text)
    assert {key: found[key] for key in found if key.endswith("min_lr_ratio")} == {
        f"{place}.min_lr_ratio": end for place, end in ends.items()}


def test_operators_that_do_not_go_with_experience_are_translated_or_named():
    """Of the three one is ours; the place of the groups that teach nothing is taken by others, as in dapo."""
    made = from_trinity("data_processor: {experience_pipeline: {operators: [{name: dapo_dynamic_sampling}, {name: "
                        "mask_response_truncated, args: {a: 1}}, {name: reward_filter, args: {threshold: 0.5}}]}}")
    found, key = written(made), "data_processor.experience_pipeline.operators"
    assert found["algorithm.max_resample_rounds"] == 3
    assert {one.key for one, _ in made.left_out} == {f"{key}.1.name"}
    assert [value for name, value in found.items() if name.startswith(key) and name.endswith(".name")] == [
        "reward_filter"]
    recipe = yaml.safe_load(write(made, ""))
    assert [one["name"] for one in recipe["data_processor"]["experience_pipeline"]["operators"]] == ["reward_filter"]
