"""Explores without training (mode=explore): generates rollouts with one model, for later training.

Reads tasks.parquet and a model; writes experience/ and rollouts/, and no model. The explorer is stages/explore.py; this
process starts it and follows its steps.
"""

from functools import partial

from pipeline.job.context import run_stage
from stages.follow import follow_rollouts

if __name__ == "__main__":
    run_stage(partial(follow_rollouts, "explorer", "stages.explore"), __doc__)
