"""A value out of bounds is one problem; rules that only its default would break are not applied."""

import pytest

from ouroboros.pipeline.check.judge import judged
from ouroboros.pipeline.settings.arguments.base import bound as limit
from ouroboros.pipeline.settings.config import Config, walk

BEYOND = {"ge": -1, "gt": 0, "le": 1}  # what added to a bound is outside it


@pytest.mark.parametrize("bound", BEYOND)
def test_a_number_outside_its_bounds_is_one_problem_whatever_counts_with_it(bound):
    """Of the recipe, which has no other: every setting with such a bound, just outside it."""
    values = {key: limit(item, bound) + BEYOND[bound] for key, item in walk()
              if "*" not in key and limit(item, bound) is not None}
    assert values
    for key, value in values.items():
        problems = judged([f"{key}={value}"])[1]
        assert len(problems) == 1, problems
        assert (problems[0].key, problems[0].found) == (key, value)


@pytest.mark.parametrize("override", ["algorithm.repeat_times=-1", "stages.rft.algorithm.repeat_times=0",
                                      "stages.rft.buffer.batch_size=0", "buffer.batch_size=many"])
def test_no_rule_says_what_came_of_the_value_that_stands_in(override):
    (problem,) = judged([override, "stages.rft.buffer.train_batch_size=100"])[1]
    assert override.rpartition(".")[2].partition("=")[0] in problem


@pytest.mark.parametrize(("given", "broken", "unreadable", "left"), [
    # both rules of Optimizer are broken; one reads lr_warmup_steps
    ({"algorithm": {"optimizer": {"betas": [0.9], "lr_warmup_steps": 3, "lr_warmup_steps_ratio": 0.5}}},
     ["algorithm.optimizer.betas", "algorithm.optimizer.lr_warmup_steps"], "algorithm.optimizer.lr_warmup_steps",
     ["algorithm.optimizer.betas"]),
    ({"buffer": {"explorer_input": {"eval_tasksets": [{"name": "a"}, {"name": "a"}]}}},
     ["buffer.explorer_input.eval_tasksets"], "buffer.explorer_input.eval_tasksets.1.name", [])])  # and its whole list
def test_a_rule_that_reads_an_unreadable_value_finds_nothing_and_the_others_do(given, broken, unreadable, left):
    whole = Config.model_validate(given)
    assert [problem.key for problem in whole.broken_rules()] == broken
    assert [problem.key for problem in whole.without(unreadable).broken_rules()] == left


@pytest.mark.parametrize(("given", "key"), [
    ((2, 4, "auto", 64), None), ((1, 3, "rows", 128), None),
    ((2, 3, "auto", 64), "trainer.ulysses_sequence_parallel_size"), ((2, 2, "rows", 64), "trainer.packing"),
    ((2, 2, "auto", 63), "trainer.max_token_len_per_gpu")])
def test_ranks_that_share_micro_batches_hold_the_longest_sequence_together(given, key):
    """Of 128 tokens: two ranks need a budget of 64 each."""
    split, ranks, packing, budget = given
    stage = "stages.rft.trainer"
    problems = judged([f"{stage}.ulysses_sequence_parallel_size={split}", f"{stage}.ranks={ranks}",
                       f"{stage}.packing={packing}", f"{stage}.max_token_len_per_gpu={budget}",
                       "stages.rft.model.max_prompt_tokens=28", "stages.rft.model.max_response_tokens=100"])[1]
    assert [problem.key for problem in problems if problem.key.startswith("trainer.")] == [key] * bool(key)


def test_a_rule_broken_in_two_stages_is_kept_for_the_one_whose_value_can_be_read():
    problems = judged(["stages.sft.trainer.offload_param=true", "stages.rft.trainer.offload_param=true",
                       "stages.rft.trainer.zero_stage=9"])[1]
    assert [(problem.key, problem.stages) for problem in problems] == [
        ("trainer.zero_stage", ("rft",)), ("trainer.offload_param", ("sft",))]
