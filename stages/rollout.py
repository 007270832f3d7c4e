"""Explores without training (mode=explore): generates rollouts with one model, for later training.

Reads tasks.parquet and a model; writes experience/ and rollouts/, and no model. The explorer is stages/explore.py; this
process starts it and follows its steps.
"""

from pipeline.job.context import Context, environment, run_stage
from pipeline.job.shares import answering_environment, cores
from pipeline.store import tables
from stages.explorer.children import Child, supervise
from stages.follow import RolloutFollower


def work(context: Context) -> None:
    config = context.config
    surroundings = environment(config.explorer.env_vars) | answering_environment(config)
    explorer = Child("explorer", "stages.explore", cores(), environment=surroundings)
    with RolloutFollower(context) as follower:
        supervise(context, [explorer], follower.poll)
    context.made["explorer_steps"] = len(tables.steps_present(context.directory, "rollouts"))


if __name__ == "__main__":
    run_stage(work, __doc__)
