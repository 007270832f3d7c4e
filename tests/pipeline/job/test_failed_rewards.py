"""A stage whose reward function has failed in another stage of the run does not start."""

import os

import pytest

from ouroboros.pipeline.job.error_file import write_error
from ouroboros.pipeline.job.failed_rewards import failed_reward
from ouroboros.pipeline.store import files


@pytest.fixture
def run(tmp_path):
    """run(name of a reward function of the second stage): the second stage and its specification, after the first one
    failed by `mine:score`."""
    def make(reward, error="5 of 8 rollouts failed. The first, task t5: score raised ValueError (mine.py:8 in score)"):
        specs, source = {}, "buffer"
        for name, kind, function in (("evaluate_base-1", "evaluate", "mine:score"), ("rft-2", "rft", reward)):
            sets = {"taskset": {"name": "t"}, "eval_tasksets": [{"name": "e"}], "default_reward_fn_type": function}
            specs[name] = {"root": str(tmp_path), "run": "p/r", "kind": kind, "config": {
                source: {"explorer_input": sets}}}
            files.write_json(tmp_path / "store" / name / "stage.json", specs[name])
        files.write_json(tmp_path / "runs" / "p" / "r" / "plan.json", {"stages": [
            {"directory": str(tmp_path / "store" / name)} for name in specs]})
        write_error(tmp_path / "store" / "evaluate_base-1", error, "its log")
        return tmp_path / "store" / "rft-2", specs["rft-2"]

    return make


@pytest.mark.parametrize(("reward", "is_named"), [("mine:score", True), (["accuracy_reward", "mine:score"], True),
                                                  ("mine:other", False), ("yours:score", False),
                                                  ("accuracy_reward", False)])
def test_the_function_and_the_stage_are_named(run, reward, is_named):
    words = failed_reward(*run(reward))
    assert ("mine:score" in words and "evaluate_base-1" in words) == bool(words) == is_named


def test_another_failure_or_one_of_an_earlier_launch_stops_nothing(run, tmp_path):
    assert failed_reward(*run("mine:score", "the engine died: no memory")) == ""
    stage, spec = run("mine:score")
    os.utime(tmp_path / "store" / "evaluate_base-1" / "stage.error", (1.0, 1.0))
    assert failed_reward(stage, spec) == ""


def test_without_a_plan_nothing_is_known(run, tmp_path):
    stage, spec = run("mine:score")
    (tmp_path / "runs" / "p" / "r" / "plan.json").unlink()
    assert failed_reward(stage, spec) == ""
