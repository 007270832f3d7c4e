"""Rules between the settings of tasksets, formats and curation: which key a mistake is a problem of."""

import pytest

from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.compose.recipe import effective
from ouroboros.pipeline.settings.data import Taskset
from tests.configs import broken, changed, check, element, places

SOURCE, BUFFER = "buffer.explorer_input", "buffer.trainer_input.experience_buffer"
PIPELINE = "data_processor.task_pipeline"


def problems(values):
    return places(check(changed(values)))


def a_set(**given):
    return element(Taskset, given)


EVERY = f"{BUFFER}.format.enable_concatenated_multi_turn"
TASKS, EVAL = f"{SOURCE}.taskset", f"{SOURCE}.eval_tasksets.0"


@pytest.mark.parametrize(("values", "expected"), [
    # each is a problem of its last key
    *((values, list(values)[-1]) for values in (
        {f"{TASKS}.path": 7}, {f"{TASKS}.path": []}, {f"{TASKS}.path": ["a", 1]}, {f"{TASKS}.split": "validation"},
        {f"{TASKS}.path": "a", f"{TASKS}.split": "train[:10]"}, {f"{PIPELINE}.format.messages_key": "m"},
        {f"{TASKS}.subset_name": "main"}, {f"{TASKS}.format.prompt_key": "q"},  # read only with a path
        {f"{BUFFER}.format.response_key": "r"}, {f"{PIPELINE}.target_fields": ["question"]},
        {f"{TASKS}.path": "a", f"{TASKS}.format.prompt_type": "messages", f"{TASKS}.format.system_prompt": "Think."},
        {f"{PIPELINE}.operators": [{"name": "a"}], f"{PIPELINE}.config_path": None,
         f"{PIPELINE}.target_fields": ["question", "anwser"]},
        {"model.enable_prompt_truncation": False}, {f"{TASKS}.storage_type": "sql"})),
    # a taskset beside several, and sets of one name
    ({f"{SOURCE}.tasksets": [a_set(path="a.jsonl")], f"{TASKS}.path": "b.jsonl"}, TASKS),
    ({f"{SOURCE}.tasksets": [a_set(path="a.jsonl")], f"{TASKS}.data_selector.seed": 3}, TASKS),
    ({f"{SOURCE}.tasksets": [a_set(name="a", path="a.jsonl"), a_set(name="a", path="b.jsonl")]}, f"{SOURCE}.tasksets"),
    *(({f"{SOURCE}.tasksets": [a_set(path="a.jsonl", **given)]}, f"rft: {SOURCE}.tasksets.0.{key}") for key, given in (
        ("repeat_times", {"repeat_times": 4}), ("rollout_args.top_k", {"rollout_args": {"top_p": 0.9}}))),
    ({f"{EVAL}.data_selector.selector_type": "random"}, f"{EVAL}.data_selector"),
    ({f"{PIPELINE}.operators": [{"name": "text_length_filter"}]}, f"{PIPELINE}.config_path"),
    *(({f"{PIPELINE}.operators": [operator], f"{PIPELINE}.config_path": None}, f"{PIPELINE}.operators.0{below}")
      for operator, below in (({"args": {}}, ""), ({"name": "a", "arg": {}}, ""),
                              ({"name": "a", "args": [1]}, ".args")))])
def test_one_problem(values, expected):
    assert problems(values) == [expected]


@pytest.mark.parametrize(("words", "expected"), [
    (["recipe=sudoku", f"stages.sft.{EVERY}=false"], [f"sft: {EVERY}"]),  # each ends with the reply `done`
    (["recipe=products", f"stages.sft.{EVERY}=true"], [f"sft: {EVERY}"]),  # its rows are one reply each
    ([f"{PIPELINE}.generator=null", f"{PIPELINE}.inputs=[a.jsonl]", f"stages.sft.{EVERY}=true"], [f"sft: {EVERY}"]),
    (["recipe=sudoku"], []),
    ([f"stages.sft.{BUFFER}.path=a.jsonl", f"stages.sft.{BUFFER}.format.prompt_type=messages",
      f"stages.sft.{EVERY}=true"], [])])
def test_generated_conversations_are_trained_on_whole_and_other_rows_are_not(words, expected):
    assert broken(*words) == expected


def test_preference_training_needs_pairs():
    """The recipe's generator makes tasks and demonstrations; inputs and a buffer's file may hold pairs."""
    assert broken("algorithm=dpo") == ["rft: algorithm.algorithm_type"]
    assert broken("algorithm=dpo", f"{BUFFER}.path=pairs.jsonl", f"{BUFFER}.format.rejected_key=null") == [
        f"rft: {BUFFER}.format.rejected_key"]
    assert compose(["algorithm=dpo", f"{BUFFER}.path=pairs.jsonl"]).algorithm.algorithm_type == "dpo"
    assert compose(["algorithm=dpo", f"{PIPELINE}.generator=null", f"{PIPELINE}.inputs=[pairs.jsonl]"])


def test_several_sets_beside_the_named_one_and_one_name_for_training_and_test():
    assert problems({f"{SOURCE}.tasksets": [a_set(name="a", path="a.jsonl"), a_set(name="b", path=["b", "c"])]}) == []
    assert problems({f"{TASKS}.path": "a", f"{TASKS}.name": "a",
                     f"{SOURCE}.eval_tasksets": [a_set(name="a", path="b")]}) == []


def test_a_stage_without_rows_is_refused():
    """The pool is empty, the training sets have files, the evaluation set has none; sft has its own."""
    words = [f"{PIPELINE}.generator=null", f"{SOURCE}.taskset.path=a.jsonl", f"{BUFFER}.path=d.jsonl"]
    assert broken(*words) == [f"{EVAL}.path"]
    assert compose([*words, f"{SOURCE}.eval_tasksets.0.path=e.jsonl"]).stages
    assert broken(*words[:2], f"{SOURCE}.eval_tasksets=[]") == [f"sft: {BUFFER}.path"]


def test_the_warmup_stage_of_the_trinity_guide_composes(monkeypatch):
    """The example of its section on stages, word for word."""
    monkeypatch.setenv("TRINITY_DATASET_PATH", "demonstrations.jsonl")
    config = compose([
        "stages=[{stage_name: sft_warmup, mode: train, algorithm: {algorithm_type: sft}, buffer: {"
        "train_batch_size: 64, total_steps: 100, trainer_input: {experience_buffer: {name: sft_buffer, "
        "path: '${oc.env:TRINITY_DATASET_PATH}'}}}}, {stage_name: rft}]"])
    warmup, rft = (effective(config, stage).buffer for stage in config.stages)
    assert (warmup.train_batch_size, warmup.total_steps) == (64, 100)
    assert warmup.trainer_input.experience_buffer.path == "demonstrations.jsonl"
    assert rft.trainer_input.experience_buffer.path is None


def test_a_stage_that_trains_on_what_another_explored_asks_no_tasks():
    """Only the stage that explores has files."""
    stages = ("stages=[{stage_name: ask, mode: explore, buffer: {explorer_input: {taskset: {path: a.jsonl}}}}, "
              "{stage_name: learn, mode: train}]")
    config = compose([stages, f"{PIPELINE}.generator=null", f"{SOURCE}.eval_tasksets=[]", f"{BUFFER}.path=b.jsonl"])
    assert [stage["stage_name"] for stage in config.stages] == ["ask", "learn"]


@pytest.mark.parametrize(("values", "expected"), [
    ([], [f"{EVAL}.path", f"sft: {BUFFER}.path"]),  # the evaluation set is that of all stages
    ([f"{SOURCE}.eval_tasksets=[]"], [f"sft: {BUFFER}.path"]),
    ([f"{SOURCE}.eval_tasksets=[]", f"stages.sft.{BUFFER}.path=a.jsonl"], []),
    ([f"{SOURCE}.eval_tasksets.0.split=train", f"stages.sft.{BUFFER}.path=a.jsonl"], []),
    ([f"{PIPELINE}.operators=[{{name: text_length_filter}}]"], [])])
def test_without_curation_nothing_splits_the_pool(values, expected):
    assert broken(f"{PIPELINE}.config_path=null", *values) == expected
