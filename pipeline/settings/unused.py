"""Settings that the parts of an algorithm leave unused: a critic's without ppo, arguments of a function that is none.

They stand at their defaults where a stage is made, so they are in no identity, and no stage can read what they said.
"""

import copy
from functools import cache
from typing import Any

from pipeline.settings import schema
from pipeline.settings.algorithms import WITH_CRITIC

OF_A_CRITIC = ("trainer.critic", "trainer.critic_warmup", "model.critic_model_path")
MAY_BE_NONE = ("kl_loss_fn", "kl_penalty_fn", "entropy_loss_fn")  # parts of an algorithm that take arguments, if any


def unused(algorithm: dict[str, Any]) -> list[str]:
    """The settings that a stage with this section `algorithm`, filled, leaves unused, sections as a whole."""
    none = [f"algorithm.{part}_args" for part in MAY_BE_NONE if algorithm[part] in (None, "none")]
    return [*([] if algorithm["advantage_fn"] in WITH_CRITIC else OF_A_CRITIC), *none]


def without_unused(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a stage with those that it leaves unused at their defaults. Changes nothing that it is given."""
    made = dict(settings)
    for key in unused(settings["algorithm"]):
        section, name = key.split(".")
        made[section] = {**made[section], name: copy.deepcopy(_defaults()[section][name])}
    return made


@cache
def _defaults() -> dict[str, Any]:
    return schema.defaults()
