"""Explores without training (mode=explore): generates rollouts with one model, for later training.

Reads tasks.parquet and a model; writes experience/, rollouts/ and profile.parquet, and no model. The explorer is
stages/explore.py; this process starts it and follows its steps.
"""

from ouroboros.pipeline.job.context import Context
from ouroboros.stages.explorer.profiles import write_profile
from ouroboros.stages.follow import follow_rollouts, run_followed


def work(context: Context) -> None:
    follow_rollouts("explorer", "ouroboros.stages.explore", context)
    context.made["tasks_attempted"] = write_profile(context.directory, context.config.algorithm.repeat_times)


if __name__ == "__main__":
    run_followed(work, __doc__)
