"""LoRA adapters: names of peft's files, and the configuration of a given adapter."""

from functools import partial
from pathlib import Path

from ouroboros.pipeline.store.digests import HubPath
from ouroboros.pipeline.store.errors import ModelError, Problem
from ouroboros.pipeline.store.model_shape import ADAPTER_CONFIG, json_object
from ouroboros.pipeline.store.weights import adapter_words

ADAPTER = "adapter_model.safetensors"  # peft's name

BLOCK = 64  # weights that share a scale where the frozen ones are held in 4 bits (model.load_in_4bit)

WHOLE = ("lm_head", "embed_tokens")  # outside the layers: a tied head would be untied by merging

# settings of adapter_config.json that ours lacks, with the values at which they have no effect
PLAIN = {"peft_type": ("LORA",), "bias": ("none", None), "use_dora": (False, None), "use_rslora": (False, None),
         "modules_to_save": (None, []), "rank_pattern": ({}, None), "alpha_pattern": ({}, None),
         "layers_to_transform": (None, []), "fan_in_fan_out": (False, None)}


def adapter_problem(adapter, directory: Path) -> Problem | None:
    """Returns the problem with an initial adapter's directory, from its configuration.

    adapter: an element of model.lora_configs; directory: its resolved `path`.
    """
    wrong = partial(Problem, "model.lora_configs.0.path", found=adapter.path)
    for name in (ADAPTER_CONFIG, ADAPTER):
        fetched_later = name == ADAPTER and isinstance(adapter.path, HubPath)
        if not (directory / name).is_file() and not fetched_later:
            return wrong(f"no {name} there; needed a peft directory (looked from {Path.cwd()}).")
    try:
        found = json_object(directory / ADAPTER_CONFIG, f"model.lora_configs.0.path={adapter.path}")
    except ModelError as error:
        return Problem(needed=str(error))
    for ours, theirs in (("lora_rank", "r"), ("lora_alpha", "lora_alpha")):
        if found.get(theirs) != getattr(adapter, ours):
            return wrong(f"it has {theirs}={found.get(theirs)}, and {ours} is {getattr(adapter, ours)}.",
                         f"Set model.lora_configs.0.{ours}={found.get(theirs)}.")
    for name, idle in PLAIN.items():
        if name in found and found[name] not in idle:
            return wrong(f"it has {name}={found[name]}, which is not trained here; needed a plain LoRA adapter.")
    try:
        targets = adapter.target_modules if isinstance(adapter.target_modules, str) else [
            name for name in adapter.target_modules if name not in adapter.exclude_modules]
        words = (directory / ADAPTER).is_file() and adapter_words(directory / ADAPTER, adapter.lora_rank, targets)
    except ModelError as error:
        words = str(error).rstrip(".")
    return wrong(f"{words}.", "Name a whole adapter, and its target_modules.") if words else None
