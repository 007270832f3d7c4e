"""veRL's LoRA settings, which stand beside the model's path, as our one adapter."""

from pipeline.bridges.verl_keys import RENAMED
from pipeline.bridges.verl_source import Verl

OURS = "model.lora_configs.*."
POLICY = "actor_rollout_ref.model"
ITS_ALPHA = {False: 16, True: 32}  # of lora_alpha, and of lora.alpha


def adapter(verl: Verl, section: str = POLICY) -> None:
    """An adapter where lora_rank is more than 0; without one veRL trains all parameters.

    section: where the trainer has the settings of the model.
    """
    names = {f"{section}{key.removeprefix(POLICY)}": fate.to.removeprefix(OURS) for key, fate in RENAMED.items()
             if fate.to.startswith(OURS)}
    within = f"{section}.lora."  # the settings that the Megatron trainer reads
    is_megatrons = verl.value(f"{within}rank", 0) not in (0, None)
    if not is_megatrons and verl.value(f"{section}.lora_rank", 0) in (0, None):
        for key in [key for key in verl.values if key in names or key.startswith(within)]:
            verl.leave(key, "off there too: lora_rank is 0, so all parameters are trained.", idle=True)
        return
    for key, to in names.items():
        if key in verl.values and key.startswith(within) == is_megatrons:
            _setting(verl, key, to)
        else:
            verl.leave(key, "says nothing beside the other settings of the adapter.", idle=True)
    alpha = f"{within}alpha" if is_megatrons else f"{section}.lora_alpha"
    verl.made.choose(_path("lora_alpha"), ITS_ALPHA[is_megatrons], f"veRL's default of {alpha}")


def _path(name: str) -> tuple:
    return "model", "lora_configs", 0, name


def _setting(verl: Verl, key: str, ours: str) -> None:
    value = verl.value(key)
    if value is None:
        verl.leave(key, "null there: nothing is set.", idle=True)
    elif key.endswith("_modules") and isinstance(value, str) and value != "all-linear":
        verl.leave(key, f"a pattern there; needed the layers' last names, {ours}: [q_proj, v_proj].")
    else:
        verl.done.add(key)
        verl.made.rename(verl.values[key], _path(ours), value, key)
