"""The arguments of every function that a setting names, declared once: type, unit, bounds, default, meaning, rules.

A table binds names to models. Functions take their defaults from the models, and settings are judged by them.
"""

from ouroboros.pipeline.settings.arguments.advantages import ADVANTAGES
from ouroboros.pipeline.settings.arguments.answers import REWARDS, WORKFLOWS
from ouroboros.pipeline.settings.arguments.losses import POLICY_LOSSES
from ouroboros.pipeline.settings.arguments.rows import GENERATORS, PRIORITIES, SAMPLE_STRATEGIES
from ouroboros.pipeline.settings.arguments.selectors import SELECTORS
from ouroboros.pipeline.settings.arguments.terms import AGGREGATIONS, ENTROPY_LOSSES, KL_ESTIMATORS

# last part of a setting that names a function -> the functions of ours
TABLES = {
    "sample_strategy": SAMPLE_STRATEGIES,
    "advantage_fn": ADVANTAGES,
    "policy_loss_fn": POLICY_LOSSES,
    "kl_loss_fn": KL_ESTIMATORS,
    "kl_penalty_fn": KL_ESTIMATORS,
    "entropy_loss_fn": ENTROPY_LOSSES,
    "loss_agg_mode": AGGREGATIONS,
    "priority_fn": PRIORITIES,
    "generator": GENERATORS,
    "selector_type": SELECTORS,
    "default_reward_fn_type": REWARDS,
    "default_workflow_type": WORKFLOWS,
    "default_eval_workflow_type": WORKFLOWS,
}
