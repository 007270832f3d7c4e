"""Settings about groups that are replaced and greedy baselines: what goes together, and what it amounts to."""

import pytest

from ouroboros.pipeline.check.workload import described, workload
from ouroboros.pipeline.compose.recipe import effective
from tests.configs import changed, check, places
from tests.golden.messages import wording


def test_dapo_replaces_groups_and_remax_has_a_baseline_without_being_told():
    assert check(changed({"algorithm.algorithm_type": "dapo", "algorithm.repeat_times": None})) == []
    assert check(changed({"algorithm.algorithm_type": "remax", "algorithm.repeat_times": 2})) == []
    assert check(changed({"algorithm.max_resample_rounds": 2})) == []  # of grpo
    assert check(changed({"algorithm.algorithm_type": "dapo", "algorithm.max_resample_rounds": 0,
                          "algorithm.repeat_times": 2})) == []


@pytest.mark.parametrize(("values", "key"), [
    ({"max_resample_rounds": 2, "advantage_fn": "reinforce"}, "max_resample_rounds"),
    ({"max_resample_rounds": 1, "algorithm_type": "ppo", "repeat_times": 1}, "max_resample_rounds"),
    ({"max_resample_rounds": 1, "resample_metric": "accuracy"}, "resample_metric"),
    ({"algorithm_type": "remax", "greedy_baseline": False}, "advantage_fn")])
def test_settings_of_groups_that_exclude_each_other(values, key):
    """format_reward has no component that says what is solved."""
    given = {f"algorithm.{name}": value for name, value in values.items()}
    reward = {"buffer.explorer_input.taskset.default_reward_fn_type": "format_reward"}
    assert places(check(changed(given | reward))) == [f"rft: algorithm.{key}"]


@pytest.mark.parametrize(("key", "value"), [("max_resample_rounds", -1), ("resample_metric", "acc")])
def test_bounds_and_choices(key, value):
    assert places(check(changed({f"algorithm.{key}": value}))) == [f"algorithm.{key}"]


def test_rows_beside_those_that_batches_are_cut_from_are_counted_at_most():
    """64 tasks x 8, 450 steps. Two rounds: 2 x 512 more. A greedy response: 64 more; with two rounds 3 x 64."""
    def of(**values):
        config = changed({f"algorithm.{key}": value for key, value in values.items()})
        return effective(config, next(s for s in config.stages if s["stage_name"] == "rft"))

    resampled, greedy = of(max_resample_rounds=2), of(greedy_baseline=True)
    assert (workload(resampled).explored, workload(resampled).experiences) == (512, 450 * 3 * 512)
    assert workload(greedy).experiences == 450 * (512 + 64)
    assert workload(of(max_resample_rounds=2, greedy_baseline=True)).beside == 2 * 512 + 3 * 64
    wording(dict(described(resampled))["explorer"], "64 tasks", "8 rollouts", "2 round(s)", "691,200")
    wording(dict(described(greedy))["explorer"], "64 more")
