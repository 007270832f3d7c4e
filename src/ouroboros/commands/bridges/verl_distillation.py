"""Facts of veRL's on-policy distillation: its teacher, and whether its loss is the one of on_policy_distill.

With loss_mode=k1 and use_policy_gradient the advantage of a token is log p - log q of teacher and student, and
use_task_rewards=False trains on nothing else. Defaults are those of veRL's distillation.yaml.
"""

import re

from ouroboros.commands.bridges.verl_objective import Facts
from ouroboros.commands.bridges.verl_source import ACTOR, Verl

LOSS = "distillation.distillation_loss"
TEACHER = re.compile(r"distillation\.teacher_models\.([\w-]+)\.model_path")
UNUSED = "teacher_model"  # veRL's own entry, which another name replaces
# without task rewards veRL's own policy loss is not part of the sum: neither its clip range nor its terms
WITHOUT_EFFECT = ("algorithm.adv_estimator", "algorithm.norm_adv_by_std_in_grpo", "algorithm.gamma", "algorithm.lam",
                  "algorithm.use_kl_in_reward", *(f"{ACTOR}.{name}" for name in (
                      "clip_ratio", "clip_ratio_low", "clip_ratio_high", "use_kl_loss", "kl_loss_type", "kl_loss_coef",
                      "entropy_coeff", "policy_loss.loss_mode")))


def distillation(verl: Verl, facts: Facts) -> Facts:
    """Writes the teacher; names what of the loss is another one here as lost."""
    if not verl.is_on("distillation.enabled"):
        return {"distils": False}
    named = {match[1]: match[0] for match in map(TEACHER.fullmatch, [*verl.values, *verl.unknown]) if match}
    teachers = {name: key for name, key in named.items() if name != UNUSED or len(named) == 1}
    for key in teachers.values() if len(teachers) == 1 else ():
        verl.say(key, "model.teacher_model_path", verl.value(key))
    if len(teachers) != 1:
        verl.made.lack("judge or teacher", f"{len(teachers)} teachers")
    for name, default, same in (("loss_mode", "k3", ("k1", "kl")), ("use_policy_gradient", False, (True,)),
                                ("use_task_rewards", True, (False,))):
        key = f"{LOSS}.{name}"
        found = verl.is_on(key, default) if isinstance(default, bool) else verl.value(key, default)
        if found in same and key not in verl.unknown:
            verl.fold(key, "algorithm.algorithm_type")
        else:
            verl.made.lack("judge or teacher", f"{key}={found}")
    verl.made.note("distilled")
    for key in WITHOUT_EFFECT:
        verl.leave(key, "has no effect in on_policy_distill: the teacher alone says what is learnt.", idle=True)
        verl.values.pop(key, None)
        verl.unknown.pop(key, None)
    return {"distils": True}
