"""Rules between the settings of tasksets, formats and curation: what is wrong, and what to change."""

import pytest

from pipeline.check.judge import compose, judged
from pipeline.compose.stage_settings import effective
from pipeline.settings.data import ExperienceBuffer, Taskset
from pipeline.store.errors import ConfigError
from tests.configs import changed, check, element

SOURCE, BUFFER = "buffer.explorer_input", "buffer.trainer_input.experience_buffer"
PIPELINE = "data_processor.task_pipeline"


def problems(values):
    return check(changed(values))


def a_set(**given):
    return element(Taskset, given)


@pytest.mark.parametrize(("values", "words"), [
    ({f"{SOURCE}.tasksets": [a_set(path="a.jsonl")], f"{SOURCE}.taskset.path": "b.jsonl"},
     "taskset (sets path) and buffer.explorer_input.tasksets exclude each other: move it into the list."),
    ({f"{SOURCE}.tasksets": [a_set(path="a.jsonl")], f"{SOURCE}.taskset.data_selector.seed": 3}, "(sets data_sel"),
    ({f"{SOURCE}.tasksets": [a_set(name="a", path="a.jsonl"), a_set(name="a", path="b.jsonl")]},
     "tasksets are named a, a: rows and scores are told apart by name"),
    ({f"{SOURCE}.tasksets": [a_set(path="a.jsonl", repeat_times=4)]}, "tasksets.0.repeat_times=4: rollouts"),
    ({f"{SOURCE}.tasksets": [a_set(path="a.jsonl", rollout_args={"top_p": 0.9})]}, "tasksets.0.rollout_args.top_p=0.9"),
    ({f"{SOURCE}.taskset.path": 7}, "taskset.path=7: needed a path, or a list of paths."),
    ({f"{SOURCE}.taskset.path": []}, "taskset.path=[]: needed"),
    ({f"{SOURCE}.taskset.path": ["a", 1]}, "taskset.path=['a', 1]: needed"),
    ({f"{SOURCE}.taskset.path": "a", f"{SOURCE}.taskset.split": "train[:10]"}, "needed the name of a split, such as"),
    ({f"{SOURCE}.taskset.split": "validation"}, "taskset.split=validation: without a path"),
    ({f"{SOURCE}.taskset.subset_name": "main"}, f"taskset.subset_name: read only with {SOURCE}.taskset.path"),
    ({f"{SOURCE}.taskset.format.prompt_key": "q"}, f"taskset.format.prompt_key: read only with {SOURCE}.taskset."
     "path; without one the rows are those of data_processor.task_pipeline, whose format is "
     "data_processor.task_pipeline.format."),
    ({f"{BUFFER}.format.response_key": "r"}, f"experience_buffer.format.response_key: read only with {BUFFER}.path"),
    ({f"{SOURCE}.taskset.path": "a", f"{SOURCE}.taskset.format.prompt_type": "messages",
      f"{SOURCE}.taskset.format.system_prompt": "Think."}, "format.system_prompt: messages have their system turn"),
    ({f"{PIPELINE}.format.messages_key": "m"}, "format.messages_key=m: read only with prompt_type=messages."),
    ({f"{SOURCE}.eval_tasksets.0.data_selector.selector_type": "random"}, "an eval set is answered whole"),
    ({f"{PIPELINE}.operators": [{"name": "text_length_filter"}]}, "config_path and operators exclude each other"),
    ({f"{PIPELINE}.target_fields": ["question"]}, "target_fields goes with operators"),
    ({"model.min_response_tokens": 2}, "model.min_response_tokens=2: needed one of 0, 1: the engine"),
    ({"model.repetition_penalty": 1.1}, "model.repetition_penalty=1.1: needed one of 1.0: the trainer"),
    ({"model.enable_prompt_truncation": False}, "model.enable_prompt_truncation=False: needed one of True: what was"),
    ({f"{SOURCE}.taskset.storage_type": "sql"}, "storage_type=sql: needed one of file: experience"),
])
def test_one_problem(values, words):
    (problem,) = problems(values)
    assert words in problem


def test_preference_training_names_its_pairs():
    """The recipe's generator makes tasks and demonstrations; inputs and a buffer's file may hold pairs."""
    with pytest.raises(ConfigError, match="stage 'rft': algorithm.algorithm_type=dpo trains on pairs.* the generator "
                                          f"countdown makes none. Set {BUFFER}.path to a file of pairs"):
        compose(["algorithm=dpo"])
    with pytest.raises(ConfigError, match=f"{BUFFER}.format.rejected_key: needed the column of a pair's response"):
        compose(["algorithm=dpo", f"{BUFFER}.path=pairs.jsonl", f"{BUFFER}.format.rejected_key=null"])
    assert compose(["algorithm=dpo", f"{BUFFER}.path=pairs.jsonl"])["algorithm"]["algorithm_type"] == "dpo"
    assert compose(["algorithm=dpo", f"{PIPELINE}.generator=null", f"{PIPELINE}.inputs=[pairs.jsonl]"])


@pytest.mark.parametrize(("operator", "words"), [
    ({"args": {}}, "needed a name, and args"), ({"name": "a", "arg": {}}, "unknown arg; needed name and args."),
    ({"name": "a", "args": [1]}, "args=[1]: needed a mapping")])
def test_an_operator_in_the_configuration(operator, words):
    (problem,) = problems({f"{PIPELINE}.operators": [operator], f"{PIPELINE}.config_path": None})
    assert problem.startswith("data_processor.task_pipeline.operators.0: ")
    assert words in problem


def test_a_target_field_is_one_of_our_columns():
    (problem,) = problems({f"{PIPELINE}.operators": [{"name": "a"}], f"{PIPELINE}.config_path": None,
                           f"{PIPELINE}.target_fields": ["question", "anwser"]})
    assert "no column 'anwser'. Did you mean 'answer'?" in problem


def test_the_name_that_a_recipe_gives_its_set_does_not_stand_in_the_way_of_several():
    assert problems({f"{SOURCE}.tasksets": [a_set(name="a", path="a.jsonl"), a_set(name="b", path=["b", "c"])]}) == []


def test_a_set_may_be_trained_on_and_tested_on_under_one_name():
    values = {f"{SOURCE}.taskset.path": "a", f"{SOURCE}.taskset.name": "a",
              f"{SOURCE}.eval_tasksets": [a_set(name="a", path="b")]}
    assert problems(values) == []


def test_a_stage_that_nothing_gives_rows_to_is_told_before_it_runs():
    """The pool is empty, the training sets have files, the evaluation set has none; sft has its own."""
    words = [f"{PIPELINE}.generator=null", f"{SOURCE}.taskset.path=a.jsonl", f"{BUFFER}.path=d.jsonl"]
    with pytest.raises(ConfigError) as caught:
        compose(words)
    assert str(caught.value).splitlines()[1:] == [
        f"  {SOURCE}.eval_tasksets.0.path is not set, and {PIPELINE} has neither generator nor inputs to take rows "
        "from: set one."]
    assert compose([*words, f"{SOURCE}.eval_tasksets.0.path=e.jsonl"])["stages"]
    with pytest.raises(ConfigError, match=rf"stage 'sft': {BUFFER}\.path is not set"):
        compose([*words[:2], f"{SOURCE}.eval_tasksets=[]"])


def test_the_warmup_stage_of_the_trinity_guide_composes(monkeypatch):
    """The example of its section on stages, word for word."""
    monkeypatch.setenv("TRINITY_DATASET_PATH", "demonstrations.jsonl")
    config = compose([
        "stages=[{stage_name: sft_warmup, mode: train, algorithm: {algorithm_type: sft}, buffer: {"
        "train_batch_size: 64, total_steps: 100, trainer_input: {experience_buffer: {name: sft_buffer, "
        "path: '${oc.env:TRINITY_DATASET_PATH}'}}}}, {stage_name: rft}]"])
    warmup, rft = (effective(config, stage)["buffer"] for stage in config["stages"])
    assert (warmup["train_batch_size"], warmup["total_steps"]) == (64, 100)
    assert warmup["trainer_input"]["experience_buffer"]["path"] == "demonstrations.jsonl"
    assert rft["trainer_input"]["experience_buffer"]["path"] is None


def test_a_buffer_says_what_its_records_hold():
    assert element(ExperienceBuffer, {})["format"]["prompt_key"] == "prompt"
    assert element(ExperienceBuffer, {})["format"]["response_key"] == "response"


def test_a_stage_that_trains_on_what_another_explored_asks_no_tasks():
    """Only the stage that explores has files."""
    stages = ("stages=[{stage_name: ask, mode: explore, buffer: {explorer_input: {taskset: {path: a.jsonl}}}}, "
              "{stage_name: learn, mode: train}]")
    config = compose([stages, f"{PIPELINE}.generator=null", f"{SOURCE}.eval_tasksets=[]", f"{BUFFER}.path=b.jsonl"])
    assert [stage["stage_name"] for stage in config["stages"]] == ["ask", "learn"]


@pytest.mark.parametrize(("values", "keys"), [
    ([f"{PIPELINE}.config_path=null"], [f"'sft': {BUFFER}", f"{SOURCE}.eval_tasksets.0"]),  # of all: told once
    ([f"{PIPELINE}.config_path=null", f"{SOURCE}.eval_tasksets=[]"], [f"'sft': {BUFFER}"]),
    ([f"{PIPELINE}.config_path=null", f"{SOURCE}.eval_tasksets=[]", f"stages.sft.{BUFFER}.path=a.jsonl"], []),
    ([f"{PIPELINE}.config_path=null", f"{SOURCE}.eval_tasksets.0.split=train",
      f"stages.sft.{BUFFER}.path=a.jsonl"], []),
    ([f"{PIPELINE}.config_path=null", f"{PIPELINE}.operators=[{{name: text_length_filter}}]"], []),
])
def test_without_curation_nothing_splits_the_pool(values, keys):
    found = [p.removeprefix("stage ") for p in judged(values)[1] if "nothing splits them" in p]
    assert [problem.partition(".path is not set")[0] for problem in found] == keys
