"""Settings about groups that are replaced and greedy baselines: what goes together, and what it amounts to."""

import pytest

from pipeline.check.workload import described, workload
from pipeline.compose.stage_settings import effective
from tests.configs import changed, check


def test_dapo_replaces_groups_and_remax_has_a_baseline_without_being_told():
    assert check(changed({"algorithm.algorithm_type": "dapo", "algorithm.repeat_times": None})) == []
    assert check(changed({"algorithm.algorithm_type": "remax", "algorithm.repeat_times": 2})) == []
    assert check(changed({"algorithm.max_resample_rounds": 2})) == []  # of grpo
    assert check(changed({"algorithm.algorithm_type": "dapo", "algorithm.max_resample_rounds": 0,
                          "algorithm.repeat_times": 2})) == []


@pytest.mark.parametrize(("values", "problem"), [
    ({"algorithm.max_resample_rounds": 2, "algorithm.advantage_fn": "reinforce"},
     "algorithm.max_resample_rounds=2 with advantage_fn=reinforce and repeat_times=8: it replaces groups"),
    ({"algorithm.max_resample_rounds": 1, "algorithm.algorithm_type": "ppo", "algorithm.repeat_times": 1},
     "algorithm.max_resample_rounds=1 with advantage_fn=ppo and repeat_times=1"),
    ({"algorithm.max_resample_rounds": 1, "algorithm.resample_metric": "accuracy",
      "buffer.explorer_input.taskset.default_reward_fn_type": "format_reward"},
     "algorithm.resample_metric=accuracy: format_reward of buffer.explorer_input.taskset do not say what is solved"),
    ({"algorithm.max_resample_rounds": -1}, "algorithm.max_resample_rounds=-1: needed at least 0"),
    ({"algorithm.resample_metric": "acc"}, "algorithm.resample_metric=acc"),
    ({"algorithm.algorithm_type": "remax", "algorithm.greedy_baseline": False},
     "advantage_fn=remax needs the reward of a greedy response to each task; needed algorithm.greedy_baseline=true")])
def test_what_does_not_go_together_is_told_before_anything_runs(values, problem):
    assert problem in "\n".join(check(changed(values)))


def test_rows_beside_those_that_batches_are_cut_from_are_counted_at_most():
    """64 tasks x 8, 450 steps. Two rounds: 2 x 512 more. A greedy response: 64 more; with two rounds 3 x 64."""
    def of(**values):
        config = changed({f"algorithm.{key}": value for key, value in values.items()})
        return effective(config, next(s for s in config["stages"] if s["stage_name"] == "rft"))

    resampled, greedy = of(max_resample_rounds=2), of(greedy_baseline=True)
    assert (workload(resampled).explored, workload(resampled).experiences) == (512, 450 * 3 * 512)
    assert workload(greedy).experiences == 450 * (512 + 64)
    assert workload(of(max_resample_rounds=2, greedy_baseline=True)).beside == 2 * 512 + 3 * 64
    assert dict(described(resampled))["explorer"] == (
        "450 steps; each 64 tasks x 8 rollouts = 512 experiences, and at most 2 round(s) of fresh groups: up to 1,024 "
        "more; at most 691,200 experiences in all")
    assert "and a greedy response to each task: up to 64 more" in dict(described(greedy))["explorer"]
