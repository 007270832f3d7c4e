"""Rewards again what an earlier stage explored (mode=score), with the reward functions of this stage.

Reads tasks.parquet, the experience/ and rollouts/ of a stage of kind `rollout` or `rft`, and the tokenizer of its
model; writes experience/ and rollouts/ of its own, with the same responses and attempts. Nothing is generated, so it
needs no engine. The rewards are computed by stages/rescore.py; this process starts it and follows its steps.
"""

from pipeline.job.context import Context, environment, run_stage
from pipeline.job.shares import answering_environment, cores
from pipeline.store import tables
from stages.explorer.children import Child, supervise
from stages.follow import RolloutFollower


def work(context: Context) -> None:
    config = context.config
    surroundings = environment(config.explorer.env_vars) | answering_environment(config)
    scorer = Child("scorer", "stages.rescore", cores(), environment=surroundings)
    with RolloutFollower(context) as follower:
        supervise(context, [scorer], follower.poll)
    context.made["explorer_steps"] = len(tables.steps_present(context.directory, "rollouts"))


if __name__ == "__main__":
    run_stage(work, __doc__)
