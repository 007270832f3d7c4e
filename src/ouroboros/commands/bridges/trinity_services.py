"""Translates what a service does in a Trinity-RFT configuration: `model.tinker` and `model.external_model`.

The service of the first trains a LoRA adapter, here the trainer does. The learning rate is an adapter's, so without the
adapter the recipe would train all weights far too fast. The second is a server whose model is evaluated.
"""

from typing import Any

from ouroboros.commands.bridges.source import Given
from ouroboros.commands.bridges.tables import said
from ouroboros.commands.bridges.translation import Path, Translation
from ouroboros.pipeline.settings.arguments.addresses import NEEDED_VARIABLE, is_variable
from ouroboros.pipeline.settings.kinds import MODES, ONLINE

TINKER, ADAPTER = ("model", "tinker"), ("model", "lora_configs", 0)
EXTERNAL, ENGINE = ("model", "external_model"), ("explorer", "rollout_model")
OF_SERVER = {"model_name": "model_name", "base_url_env": "base_url", "api_key_env": "api_key_env"}
RANK, ALPHA = 16, 32  # of Trinity-RFT's TinkerConfig, and of the service
LAYERS = {"train_mlp": ["gate_proj", "up_proj", "down_proj"], "train_attn": ["q_proj", "k_proj", "v_proj", "o_proj"]}


def tinker(made: Translation, given: Given, stage: Path, values: dict[Path, Any]) -> bool:
    """Writes a key of an enabled `model.tinker` as one of the adapter; False for any other key."""
    section, name = (*stage, *TINKER), given.path[-1]
    if given.path[:-1] != section or values.get((*section, "enable")) is not True:
        return False
    adapter = (*stage, *ADAPTER)
    if name == "enable":
        rank = values.get((*section, "rank"))
        made.rename(given, (*adapter, "lora_rank"), RANK if rank is None else rank, "model.tinker.rank")
        made.choose((*adapter, "lora_alpha"), ALPHA, "the service's own")
        left_out = [layer for switch, layers in LAYERS.items() if values.get((*section, switch)) is False
                    for layer in layers]
        if left_out:
            made.choose((*adapter, "exclude_modules"), left_out, "train_mlp and train_attn of model.tinker")
        made.note("tinker", rank=made.value(*adapter, "lora_rank"), alpha=ALPHA)
    elif name in ("rank", *LAYERS):
        made.renamed.append((given, "model.lora_configs"))
    else:
        made.idle.append((given, said("tinkers_own")))
    return True


def copies(made: Translation, given: Given, values: dict[Path, Any]) -> bool:
    """Writes engine_num and data_parallel_size as the number of engines; False for any other key, and without a number.

    A copy of the model within an engine of the original is a separate engine here.
    """
    name, section = given.path[-1], given.path[:-1]
    if section[-2:] != ENGINE or name not in ("engine_num", "data_parallel_size"):
        return False
    split = values.get((*section, "data_parallel_size"))
    engines = values.get((*section, "engine_num"), 1)
    if not all(type(number) is int and number > 0 for number in (split, engines)):
        return False
    made.rename(given, (*section, "engine_num"), engines * split, f"{engines} times data_parallel_size={split}")
    return True


def external(made: Translation, given: Given, values: dict[Path, Any]) -> bool:
    """Writes a key of an enabled `model.external_model` as one of the server that answers; False for any other key.

    Only a stage that does not train can have one.
    """
    kind = MODES.get(str(values.get(("mode",))), ONLINE)
    is_on = values.get((*EXTERNAL, "enable")) is True and (kind.evaluates or (kind.explores and not kind.trains))
    if is_on and given.path == (*ENGINE, "engine_type"):
        made.rename(given, given.path, "openai", f"{given.value} there")
        return True
    if is_on and given.path == ("model", "model_path"):
        made.idle.append((given, "only names the server's model there, as external_model.model_name does."))
        return True
    if not is_on or given.path[:-1] != EXTERNAL:
        return False
    name = given.path[-1]
    if name == "enable" and (*ENGINE, "engine_type") in values:
        made.renamed.append((given, "explorer.rollout_model.engine_type"))
    elif name == "enable":
        made.rename(given, (*ENGINE, "engine_type"), "openai", given.key)
    elif name not in OF_SERVER:
        made.leave(given, "no key of the guide.")
    elif given.value in (None, ""):
        made.leave(given, said("of_server_empty", key=".".join((*ENGINE, "external", OF_SERVER[name]))))
    elif name.endswith("_env") and not is_variable(str(given.value)):
        made.leave(given, f"{NEEDED_VARIABLE}.")
    else:
        value = f"${{oc.env:{given.value}}}" if name == "base_url_env" else given.value
        made.rename(given, (*ENGINE, "external", OF_SERVER[name]), value, given.key)
    return True
