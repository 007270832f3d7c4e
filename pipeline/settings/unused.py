"""Settings not used by an algorithm's components: a critic's without ppo, arguments of an absent function, updates of
a reference that nothing asks.

They have their defaults when a stage is created, so they are in no identity, and no stage can read their values.
"""

from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.declared import POLICY_LOSSES
from ouroboros.pipeline.settings.reward_rules import asked_models
from ouroboros.pipeline.settings.setting import at
from ouroboros.pipeline.settings.trainer import is_driven

OF_A_CRITIC = ("trainer.critic", "trainer.critic_warmup", "model.critic_model_path")
REFERENCE = "trainer.reference_update"
DECAY = ("lr_decay_steps", "lr_decay_steps_ratio")
UNREAD = {"constant": ("min_lr_ratio", *DECAY), "wsd": ()}  # shape of the learning rate -> its settings without effect
MAY_BE_NONE = ("kl_loss_fn", "kl_penalty_fn", "entropy_loss_fn")  # optional components


def unused(algorithm) -> list[str]:
    """Returns the settings unused by a stage with this filled section `algorithm`, sections as a whole."""
    none = [f"algorithm.{part}_args" for part in MAY_BE_NONE if getattr(algorithm, part) in (None, "none")]
    return [*([] if algorithm.has_critic else OF_A_CRITIC),
            *([] if _may_ask_reference(algorithm) else [REFERENCE]), *none]


def _may_ask_reference(algorithm) -> bool:
    """Returns whether a component reads log-probs of the reference; a user's function may."""
    loss, entropy = algorithm.policy_loss_fn or "", algorithm.entropy_loss_fn or ""
    if algorithm.on_given_tokens:
        return False
    return (":" in loss + entropy or (loss in POLICY_LOSSES and "ref_logprobs" in POLICY_LOSSES[loss].columns)
            or any(part not in (None, "none") for part in (algorithm.kl_loss_fn, algorithm.kl_penalty_fn)))


def switched_off(settings: Config) -> list[str]:
    """Returns the settings of a stage that another one switches off, sections as a whole."""
    return [*([] if settings.explorer.over_rollout.ratio else ["explorer.over_rollout"]),
            *([] if settings.explorer.dynamic_timeout.enable else ["explorer.dynamic_timeout"]),
            *([] if settings.explorer.watch.default_reward_fn_type else ["explorer.watch"]),
            *(f"{section}.{name}" for section in ("algorithm.optimizer", "trainer.critic.optimizer")
              for name in UNREAD.get(at(settings, section).lr_scheduler_type, DECAY)),
            *([] if settings.algorithm.max_resample_rounds else ["algorithm.resample_metric"]),
            *(f"algorithm.rollout_correction.{name}" for name in ("mode", "threshold")
              if settings.algorithm.rollout_correction.level == "none"),
            *(["synchronizer.sync_offset"] if is_driven(settings) else []),
            *([REFERENCE] if settings.trainer.reference_update.interval is None else [])]


def without_unused(settings: Config) -> Config:
    """Returns the settings of a stage with unused ones at their defaults."""
    for key in unused(settings.algorithm) + switched_off(settings):
        settings = settings.but(key, at(DEFAULTS, key))
    return settings


def without_teacher(settings: Config) -> Config:
    """Returns the settings of a stage that asks no teacher without the auxiliary model that answers for one, unless a
    reward function asks it too."""
    teacher = settings.own_teacher
    if teacher is None or teacher.name in set.union(*asked_models(settings)):
        return settings
    return settings.but("explorer.auxiliary_models",
                        [one for one in settings.explorer.auxiliary_models if one is not teacher])


DEFAULTS = Config()
