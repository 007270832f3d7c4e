"""Inputs of the task pipeline of a Trinity-RFT configuration: the set that is trained on reads them, in its format."""

import pytest

from tests.bridges import from_trinity, written

PIPELINE = "data_processor: {task_pipeline: {inputs: [%s], operators: [{name: text_length_filter}]}}\n"
SETS = "buffer.explorer_input"


@pytest.mark.parametrize(("sets", "key"), [
    ("{taskset: {path: /d/curated, format: {prompt_key: question}}}", f"{SETS}.taskset"),
    ("{taskset: {format: {prompt_key: question}}}", f"{SETS}.taskset"),
    ("{tasksets: [{name: a, path: /d/curated, format: {prompt_key: question}}, {name: b, path: /d/b}]}",
     f"{SETS}.tasksets.0")])
def test_the_first_set_reads_the_inputs(sets, key):
    made = from_trinity(PIPELINE % "/d/raw.jsonl" + f"buffer: {{explorer_input: {sets}}}")
    found = written(made)
    assert (found[f"{key}.path"], found[f"{key}.format.prompt_key"]) == ("/d/raw.jsonl", "question")
    assert [k for k in found if k.endswith(".inputs")] == []
    assert [given.key for given, why in made.left_out] == [f"{key}.path"] * ("/d/curated" in sets)
    assert all("operators" in why for _, why in made.left_out)


def test_several_inputs_are_a_list_and_a_path_that_is_the_input_stays():
    made = from_trinity(PIPELINE % "/d/a, /d/b" + "buffer: {explorer_input: {taskset: {name: t}}}")
    assert written(made)[f"{SETS}.taskset.path"] == ["/d/a", "/d/b"]
    made = from_trinity(PIPELINE % "/d/a" + "buffer: {explorer_input: {taskset: {path: /d/a}}}")
    assert (written(made)[f"{SETS}.taskset.path"], made.left_out) == ("/d/a", [])
    assert made.keys == 3


@pytest.mark.parametrize(("more", "key", "value"), [
    ("mode: train\nalgorithm: {algorithm_type: sft}\nbuffer: {trainer_input: {experience_buffer: {path: /d/curated}}}",
     "buffer.trainer_input.experience_buffer.path", "/d/raw.jsonl"),
    ("", "data_processor.task_pipeline.inputs", ["/d/raw.jsonl"])])
def test_without_a_set_a_buffer_of_demonstrations_reads_the_inputs_or_they_are_the_pool(more, key, value):
    assert written(from_trinity(PIPELINE % "/d/raw.jsonl" + more))[key] == value
