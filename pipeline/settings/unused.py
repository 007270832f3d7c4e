"""Settings not used by an algorithm's components: a critic's without ppo, arguments of an absent function.

They have their defaults when a stage is created, so they are in no identity, and no stage can read their values.
"""

import copy
from functools import cache
from typing import Any

from pipeline.settings import schema
from pipeline.settings.algorithms import WITH_CRITIC

OF_A_CRITIC = ("trainer.critic", "trainer.critic_warmup", "model.critic_model_path")
MAY_BE_NONE = ("kl_loss_fn", "kl_penalty_fn", "entropy_loss_fn")  # optional components


def unused(algorithm: dict[str, Any]) -> list[str]:
    """Returns the settings unused by a stage with this filled section `algorithm`, sections as a whole."""
    none = [f"algorithm.{part}_args" for part in MAY_BE_NONE if algorithm[part] in (None, "none")]
    return [*([] if algorithm["advantage_fn"] in WITH_CRITIC else OF_A_CRITIC), *none]


def without_unused(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of a stage with unused ones at their defaults. Does not modify its argument."""
    made = dict(settings)
    for key in unused(settings["algorithm"]):
        section, name = key.split(".")
        made[section] = {**made[section], name: copy.deepcopy(_defaults()[section][name])}
    return made


@cache
def _defaults() -> dict[str, Any]:
    return schema.defaults()
