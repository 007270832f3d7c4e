"""Tasks that evaluation sets share with what is trained on, found before a run."""

import json

import pytest

from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.check.samples import compared_sets
from ouroboros.pipeline.compose.recipe import effective, entries
from ouroboros.stages import overlap
from tests.golden.messages import wording

SOURCE = "buffer.explorer_input"


def sums(*numbers, prompt="question", truth="answer", spaces=" "):
    return [{prompt: f"{n} +{spaces}1 = ?", truth: str(n + 1)} for n in numbers]


@pytest.fixture
def compared(tmp_path):
    """compared(*overrides, name=rows, ...): what is found where the default set and an evaluation set have files."""

    def make(*overrides, **files):
        for name, rows in files.items():
            (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        given = [f"{SOURCE}.taskset={{name: own, path: {tmp_path}/own.jsonl}}",
                 f"{SOURCE}.eval_tasksets=[{{name: held, path: {tmp_path}/held.jsonl}}]",
                 *(word.format(root=tmp_path) for word in overrides)]
        config = compose(given)
        return overlap.compare(compared_sets([effective(config, entry) for entry in entries(config)]))

    return make


def test_shared_tasks_are_a_warning_and_duplicates_a_fact(compared):
    """Of rows 1 2 3 3 three are tasks; 2 and 3 are trained on, one of them with other spaces."""
    found = compared(own=sums(2, 9) + sums(3, spaces="  "), held=sums(1, 2, 3, 3))
    assert found["problems"] == found["unjudged"] == []
    (line,) = found["warnings"]
    wording(line, f"{SOURCE}.eval_tasksets.0 (held): 2", "3 tasks", f"{SOURCE}.taskset (own) ", "2, 3")
    wording([found["facts"]], "3 tasks", "4 rows", "1 duplicate", "merged")


def test_sets_that_share_nothing_are_silent(compared):
    assert not any(compared(own=sums(1, 2), held=sums(3, 4)).values())


def test_demonstrations_count_where_they_are_learnt_from(compared):
    """The warmup of the default recipe reads the buffer; rft does not."""
    buffer = "stages.sft.buffer.trainer_input.experience_buffer"
    files = {"own": sums(1), "held": sums(5, 6), "shown": sums(6, prompt="prompt", truth="response")}
    (line,) = compared(f"{buffer}.path={{root}}/shown.jsonl", **files)["warnings"]
    wording(line, "1 of", "2 tasks", "buffer.trainer_input.experience_buffer")


def test_large_sets_are_left_to_the_evaluation(compared, monkeypatch):
    monkeypatch.setattr(overlap, "LARGEST", 60)  # bytes; a row has 40
    found = compared(own=sums(1, 2, 3), held=sums(1))
    assert found["warnings"] == []
    wording(found["unjudged"][0], f"{SOURCE}.taskset (own)")


def test_a_file_that_is_broken_far_inside_is_named(compared, tmp_path):
    (tmp_path / "own.jsonl").write_text('{"question": "1", "answer": "1"}\nnone\n')
    wording(compared(held=sums(1))["problems"][0], "own.jsonl", "2 is", "JSON")


def test_a_set_whose_format_fits_no_row_is_a_problem(compared):
    (line,) = compared(f"{SOURCE}.taskset.format.prompt_type=messages", own=sums(1, 2), held=sums(3))["problems"]
    wording(line, "(own)", "2 rows", "row 1")
