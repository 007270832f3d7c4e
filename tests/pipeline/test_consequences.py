"""Of a value that is out of bounds one line is told, and nothing that only follows from it."""

import pytest

from pipeline.check.judge import judged
from pipeline.compose.consequences import without_consequences
from pipeline.settings.config import walk
from pipeline.settings.setting import bound as limit

BEYOND = {"ge": -1, "gt": 0, "le": 1}  # what added to a bound is outside it
NEITHER = "buffer.train_batch_size=100 neither divides nor is a multiple of buffer.batch_size * algorithm.repeat_times"


@pytest.mark.parametrize("bound", BEYOND)
def test_a_number_outside_its_bounds_is_one_problem_whatever_counts_with_it(bound):
    """Of the recipe, which has no other: every setting with such a bound, just outside it."""
    values = {key: limit(item, bound) + BEYOND[bound] for key, item in walk()
              if "*" not in key and limit(item, bound) is not None}
    assert values
    for key, value in values.items():
        problems = judged([f"{key}={value}"])[1]
        assert len(problems) == 1, problems
        assert problems[0].startswith(f"{key}={value}")
        assert ": needed " in problems[0]


@pytest.mark.parametrize("override", ["algorithm.repeat_times=-1", "stages.rft.algorithm.repeat_times=0",
                                      "stages.rft.buffer.batch_size=0", "buffer.batch_size=many"])
def test_no_rule_says_what_came_of_the_value_that_stands_in(override):
    (problem,) = judged([override, "stages.rft.buffer.train_batch_size=100"])[1]
    assert override.rpartition(".")[2].partition("=")[0] in problem


@pytest.mark.parametrize(("read", "kept"), [
    ([], True), (["seed=-1: needed at least 0."], True),
    (["stage 'sft': buffer.batch_size=0: needed at least 1."], True),
    (["stage 'rft': buffer.batch_size=0: needed at least 1."], False), (["buffer.batch_size=0: needed"], False),
    (["key 'algorithm.repeat_times': needed a whole number, found the text 'x'."], False),
    (["key 'buffer': needed a mapping of settings, found 3."], False), (["buffer.batch_siz=0: x"], True),
    (["key 'buffer.train_batch': x"], True), (["unknown key 'buffer.batch_size'."], True)])
def test_a_line_goes_with_the_setting_that_it_names_in_the_stage_that_it_is_of(read, kept):
    line = f"stage 'rft': {NEITHER} = 8"
    assert without_consequences([line], read, ["sft", "rft"]) == [line] * kept


def test_a_line_of_several_stages_stays_for_the_one_in_which_it_was_given():
    """b and c break a rule; a problem of b's own leaves c's. A line without names is of all."""
    stages, wrong = ["a", "b", "c"], "buffer.batch_size=0: needed at least 1."
    for line, of_b in ((f"stages 'b', 'c': {NEITHER}", [f"stage 'b': {wrong}"]), (NEITHER, [f"stage 'a': {wrong}"])):
        assert without_consequences([line], of_b, stages) == [line]
        assert without_consequences([line], [f"stage '{name}': {wrong}" for name in stages], stages) == []
    assert without_consequences([NEITHER], [f"stage 'rft': {wrong}"], ["rft"]) == []
