"""The functions that settings name, with the arguments of each: type, unit, bounds, default, meaning, rules.

A table binds names to the classes that declare arguments; settings are judged by them. A loss or an advantage is such a
class with its formula: one that a module of operators/losses or operators/advantages defines is in the table, under its
name in snake_case.
"""

import inspect
import re
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from ouroboros.operators import advantages, losses
from ouroboros.pipeline.settings.arguments.answers import REWARDS, WORKFLOWS
from ouroboros.pipeline.settings.arguments.base import Advantage, Loss, Model
from ouroboros.pipeline.settings.arguments.rows import GENERATORS, PRIORITIES, SAMPLE_STRATEGIES, SELECTORS
from ouroboros.pipeline.settings.arguments.terms import AGGREGATIONS, ENTROPY_LOSSES, KL_ESTIMATORS


def defined_in(package: ModuleType, kind: type[Model]) -> dict[str, type[Model]]:
    """Maps names to the classes of a kind that modules of a package define, those without a formula apart."""
    modules = [import_module(f"{package.__name__}.{one.name}") for one in iter_modules(package.__path__)]
    found = [one for module in modules for one in vars(module).values()
             if inspect.isclass(one) and issubclass(one, kind) and one.__module__ == module.__name__]
    return dict(sorted((name_of(one), one) for one in found if not inspect.isabstract(one)))


def name_of(model: type) -> str:
    """Returns the name of a class in settings: its `name`, or that of the class in snake_case."""
    return vars(model).get("name") or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", model.__name__).lower()


POLICY_LOSSES = defined_in(losses, Loss)
ADVANTAGES = defined_in(advantages, Advantage)
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
