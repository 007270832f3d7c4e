"""veRL's LoRA settings, which stand beside the model's path, as our one adapter."""

from pipeline.bridges.verl_keys import RENAMED
from pipeline.bridges.verl_source import Verl

OURS = "model.lora_configs.*."
POLICY = "actor_rollout_ref.model"
ITS_ALPHA = 16


def adapter(verl: Verl, section: str = POLICY) -> None:
    """An adapter where lora_rank is more than 0; without one veRL trains all parameters.

    section: where the trainer has the settings of the model.
    """
    names = {key.removeprefix(POLICY): fate.to.removeprefix(OURS) for key, fate in RENAMED.items()
             if fate.to.startswith(OURS)}
    given = {f"{section}{name}": to for name, to in names.items() if f"{section}{name}" in verl.values}
    if verl.value(f"{section}.lora_rank", 0) in (0, None):
        for key in given:
            verl.leave(key, "off there too: lora_rank is 0, so all parameters are trained.")
        return
    for key, to in given.items():
        _setting(verl, key, to)
    verl.made.choose(_path("lora_alpha"), ITS_ALPHA, f"veRL's default of {section}.lora_alpha")


def _path(name: str) -> tuple:
    return "model", "lora_configs", 0, name


def _setting(verl: Verl, key: str, ours: str) -> None:
    value = verl.value(key)
    if value is None:
        verl.leave(key, "null there: nothing is set.")
    elif key.endswith("_modules") and isinstance(value, str) and value != "all-linear":
        verl.leave(key, f"a pattern there; needed the layers' last names, {ours}: [q_proj, v_proj].")
    else:
        verl.done.add(key)
        verl.made.rename(verl.values[key], _path(ours), value, key)
