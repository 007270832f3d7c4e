"""What decides where a stage ends, and the first steps that its end does not change.

The learning rates themselves are in stages/learner/engine/rates.py; tests/learner/test_rates.py holds both together.
"""

import math
from collections.abc import Mapping
from typing import Any

from ouroboros.pipeline.settings.setting import at

TOTALS = ("buffer.total_steps", "buffer.total_epochs")
OPTIMIZERS = ("algorithm.optimizer", "trainer.critic.optimizer")
SCHEDULE = ("lr", "lr_scheduler_type", "lr_warmup_steps", "lr_warmup_steps_ratio", "lr_decay_steps",
            "lr_decay_steps_ratio", "min_lr_ratio")  # of an optimizer: what `learning_rate` reads

Rates = Mapping[str, Mapping[str, Any]]  # optimizer -> its SCHEDULE


def equal_steps(one: Rates, total: int, other: Rates, others_total: int) -> float:
    """Returns the number of first steps in which every optimizer has the same learning rate in both stages."""
    if one == other and total == others_total:
        return math.inf
    shapes = ((_shape(one[key], total), _shape(other[key], others_total)) for key in one)
    return min((min(ours[-1], theirs[-1]) if ours[:-1] == theirs[:-1] else 0 for ours, theirs in shapes),
               default=math.inf)


def _shape(schedule: Mapping[str, Any], total: int) -> tuple[float, float, int, float]:
    """Returns the rate that the warmup leads to, that after it, the steps of the warmup, and the first steps that do
    not depend on the total."""
    warmup = schedule["lr_warmup_steps"] or math.ceil(schedule["lr_warmup_steps_ratio"] * total)
    lr, kind, least = schedule["lr"], schedule["lr_scheduler_type"], schedule["min_lr_ratio"]
    if kind == "constant":
        return lr, lr, warmup, math.inf
    falls = schedule["lr_decay_steps"] or round(schedule["lr_decay_steps_ratio"] * total)
    return lr, lr * (least + (1.0 - least)), warmup, max(total - falls, warmup) if kind == "wsd" else warmup


def is_kept(config: Any, total: int, step: int) -> bool:
    """Returns whether the checkpoint of a step stays whatever comes after it: by trainer.keep_every, and the last one
    before wsd lets a rate fall, where a longer stage can begin. config: settings of a stage."""
    every = config.trainer.keep_every
    falls = [_shape(dict(one), total)[-1] for key in OPTIMIZERS
             if (one := at(config, key)) and one.lr_scheduler_type == "wsd"]
    return bool(every and step % every == 0) or step == min(falls, default=0)
