"""Rewards again what an earlier stage explored (mode=score), with the reward functions of this stage.

Reads tasks.parquet, the experience/ and rollouts/ of a stage of kind `rollout` or `rft`, and the tokenizer of its
model; writes its own experience/ and rollouts/, with the same responses and attempts. Nothing is generated, so it
needs no engine. The rewards are computed by stages/rescore.py; this process starts it and follows its steps.
"""

from functools import partial

from ouroboros.stages.follow import follow_rollouts, run_followed

if __name__ == "__main__":
    run_followed(partial(follow_rollouts, "scorer", "ouroboros.stages.rescore"), __doc__)
