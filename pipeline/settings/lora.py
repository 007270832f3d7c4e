"""LoRA adapters: size, and the configuration of a given adapter."""

from functools import partial
from pathlib import Path
from typing import Any

from pipeline.store.digests import HubPath
from pipeline.store.errors import ModelError, Problem, nearest
from pipeline.store.model_shape import Shape, json_object, kinds

ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"  # peft's names

WHOLE = ("lm_head", "embed_tokens")  # outside the layers: a tied head would be untied by merging

# settings of adapter_config.json that ours lacks, with the values at which they have no effect
PLAIN = {"peft_type": ("LORA",), "bias": ("none", None), "use_dora": (False, None), "use_rslora": (False, None),
         "modules_to_save": (None, []), "rank_pattern": ({}, None), "alpha_pattern": ({}, None),
         "layers_to_transform": (None, []), "fan_in_fan_out": (False, None)}


def adapter_problem(adapter: dict[str, Any], directory: Path) -> Problem | None:
    """Returns the problem with an initial adapter's directory, from its configuration.

    adapter: an element of model.lora_configs; directory: its resolved `path`.
    """
    wrong = partial(Problem, "model.lora_configs.0.path", found=adapter["path"])
    for name in (ADAPTER_CONFIG, ADAPTER):
        fetched_later = name == ADAPTER and isinstance(adapter["path"], HubPath)
        if not (directory / name).is_file() and not fetched_later:
            return wrong(f"no {name} there; needed a peft directory (looked from {Path.cwd()}).")
    try:
        found = json_object(directory / ADAPTER_CONFIG, f"model.lora_configs.0.path={adapter['path']}")
    except ModelError as error:
        return Problem(needed=str(error))
    for ours, theirs in (("lora_rank", "r"), ("lora_alpha", "lora_alpha")):
        if found.get(theirs) != adapter[ours]:
            return wrong(f"it has {theirs}={found.get(theirs)}, and {ours} is {adapter[ours]}.",
                         f"Set model.lora_configs.0.{ours}={found.get(theirs)}.")
    for name, idle in PLAIN.items():
        if name in found and found[name] not in idle:
            return wrong(f"it has {name}={found[name]}, which is not trained here; needed a plain LoRA adapter.")
    return None


def layers_of(shape: Shape, sparse: bool = False) -> dict[str, tuple[int, int]]:
    """Maps a decoder layer's linear layers to (inputs, outputs). sparse: of a layer with experts; experts and router
    are not linear layers themselves, but the shared MLP has linear layers."""
    width = shape.width
    attention = shape.latent.linear(width, shape.heads) if shape.latent else {
        "q_proj": (width, shape.query_width), "k_proj": (width, shape.key_value_width),
        "v_proj": (width, shape.key_value_width), "o_proj": (shape.query_width, width)}
    mlp = shape.experts.shared_width if sparse else shape.mlp_width
    gated = {"gate_proj": (width, mlp), "up_proj": (width, mlp), "down_proj": (mlp, width)} if mlp else {}
    gate = {"shared_expert_gate": (width, 1)} if sparse and shape.experts.shared_gate else {}
    return {**attention, **gated, **gate}


def adapted(shape: Shape, adapter: dict[str, Any], sparse: bool = False) -> list[tuple[int, int]]:
    """Returns (inputs, outputs) of a decoder layer's adapted linear layers. sparse: of a layer with experts."""
    targets, without = adapter["target_modules"], adapter["exclude_modules"]
    return [size for name, size in layers_of(shape, sparse).items()
            if (targets == "all-linear" or name in targets) and name not in without]


def adapter_parameters(shape: Shape, adapter: dict[str, Any]) -> int:
    """Returns the parameters of A [rank, inputs] and B [outputs, rank] over all adapted layers."""
    return sum(count * adapter["lora_rank"] * (inputs + outputs)
               for count, sparse in kinds(shape) for inputs, outputs in adapted(shape, adapter, sparse))


def target_problem(shape: Shape, adapter: dict[str, Any]) -> Problem | None:
    """Returns the problem if a target is not a linear layer of a decoder of this shape."""
    known = [name for _, sparse in kinds(shape) for name in layers_of(shape, sparse)]
    known, targets = list(dict.fromkeys(known)), adapter["target_modules"]
    given = [] if isinstance(targets, str) else targets
    for key, names in (("target_modules", given), ("exclude_modules", adapter["exclude_modules"])):
        for name in names:
            if name not in known:
                return Problem(f"model.lora_configs.0.{key}", f"the model has no linear layer '{name}'."
                               f"{nearest(name, known)} Needed names among {', '.join(known)}.")
    if not adapter_parameters(shape, adapter):
        return Problem("model.lora_configs.0.exclude_modules", "leaves no layer of target_modules to train.",
                       "Name fewer.")
    return None
