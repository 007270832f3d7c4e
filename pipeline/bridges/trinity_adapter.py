"""Translates `model.tinker` of a Trinity-RFT configuration: a service trains a LoRA adapter, here the trainer does.

The learning rate is an adapter's, so without the adapter the recipe would train all weights far too fast.
"""

from typing import Any

from pipeline.bridges.source import Given
from pipeline.bridges.tables import said
from pipeline.bridges.translation import Path, Translation

TINKER, ADAPTER = ("model", "tinker"), ("model", "lora_configs", 0)
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
