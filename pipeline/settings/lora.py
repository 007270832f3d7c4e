"""Checks of LoRA adapters that need no model: rules, and the configuration of a given adapter."""

from pathlib import Path
from typing import Any

from pipeline.store.digests import HubPath
from pipeline.store.errors import ModelError
from pipeline.store.model_shape import json_object

ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"  # peft's names

WHOLE = ("lm_head", "embed_tokens")  # outside the layers: a tied head would be untied by merging

# settings of adapter_config.json that ours lacks, with the values at which they have no effect
PLAIN = {"peft_type": ("LORA",), "bias": ("none", None), "use_dora": (False, None), "use_rslora": (False, None),
         "modules_to_save": (None, []), "rank_pattern": ({}, None), "alpha_pattern": ({}, None),
         "layers_to_transform": (None, []), "fan_in_fan_out": (False, None)}


def adapter_rules(adapters: list[dict[str, Any]]) -> list[str]:
    """Lists problems of `model.lora_configs` that hold for any model, one line each."""
    problems = []
    if len(adapters) > 1:
        problems.append(f"model.lora_configs: found {len(adapters)} adapters, needed at most one: a stage trains one "
                        "policy. Merge the others into the model first.")
    for index, one in enumerate(adapters):
        key, targets = f"model.lora_configs.{index}.target_modules", one["target_modules"]
        if isinstance(targets, str) and targets != "all-linear":
            problems.append(f"{key}={targets}: needed all-linear, or a list of names such as [{targets}].")
        if not targets:
            problems.append(f"{key}: names no layer; needed all-linear, or at least one name.")
        problems += [f"{key}: {name} cannot have an adapter here: output head and embedding are often one matrix, "
                     "which a merge would part, and the engine's LoRA does not reach it. Take it out."
                     for name in WHOLE if isinstance(targets, list) and name in targets]
    return problems


def adapter_problem(adapter: dict[str, Any], directory: Path) -> str | None:
    """Returns the problem with an initial adapter's directory, from its configuration.

    adapter: an element of model.lora_configs; directory: its resolved `path`.
    """
    key = f"model.lora_configs.0.path={adapter['path']}"
    for name in (ADAPTER_CONFIG, ADAPTER):
        fetched_later = name == ADAPTER and isinstance(adapter["path"], HubPath)
        if not (directory / name).is_file() and not fetched_later:
            return f"{key}: no {name} there; needed a peft directory (looked from {Path.cwd()})."
    try:
        found = json_object(directory / ADAPTER_CONFIG, key)
    except ModelError as error:
        return str(error)
    for ours, theirs in (("lora_rank", "r"), ("lora_alpha", "lora_alpha")):
        if found.get(theirs) != adapter[ours]:
            return (f"{key}: it has {theirs}={found.get(theirs)}, and {ours} is {adapter[ours]}. Set "
                    f"model.lora_configs.0.{ours}={found.get(theirs)}.")
    for name, idle in PLAIN.items():
        if name in found and found[name] not in idle:
            return f"{key}: it has {name}={found[name]}, which is not trained here; needed a plain LoRA adapter."
    return None
