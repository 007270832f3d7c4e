"""Features enabled in a model's config.json that the trainer does not support, checked only where they have an effect.

Many configurations carry keys without effect: a window as long as the sequences, `use_sliding_window: false`, null
soft-capping. Only what changes a log-prob of a stage's sequences is refused.
"""

import ast
import re
from collections.abc import Collection
from functools import cache
from typing import Any

from ouroboros.pipeline.store.packable import (
    SINKS,
    family_directory,
    reads_both_ways,
    transformers_file,
    unknown_type,
    unpackable,
)
from ouroboros.pipeline.store.recurrence import recurrent_layers

SCALES = ("logit_scale", "logits_scaling", "lm_head_multiplier")
OF_WHOLE = ("quantization_config", "is_encoder_decoder")
EXPERTS = re.compile(r"(^|_)num_(\w+_)?experts$|^n_routed_experts$")  # keys of their number
WINDOWS, CAPS, STATES = "windows", "capped scores", "states"  # what packing may do, or not; and SINKS
DOES = {  # trainer.attention -> what packing with it does
    "flash_attn": (WINDOWS, CAPS, STATES), "varlen": (WINDOWS, STATES), "padded": (WINDOWS, CAPS, SINKS, STATES)}
PACKABLE = {"full_attention", "sliding_attention", "moe", "mlp"}  # layer_types


def untrainable(config: dict[str, Any], longest: int) -> str | None:
    """Returns why a model cannot be trained on sequences of up to `longest` tokens, or None.

    config: the content of config.json, as written or completed by transformers.
    """
    said = text_part(config)
    kind = str(said.get("model_type", ""))
    if said.get("is_encoder_decoder"):
        return "it has an encoder and a decoder (is_encoder_decoder); needed a decoder alone, as Llama or Qwen."
    if reads_both_ways(kind) and not said.get("is_decoder"):
        return f"{kind} attends in both directions; needed a causal language model, as Llama or Qwen."
    if quantized := said.get("quantization_config"):
        how = quantized.get("quant_method", "") if isinstance(quantized, dict) else quantized
        return f"its weights are quantized ({how}); needed those that they were made of, in bfloat16 or float32."
    if said.get("use_bidirectional_attention"):
        return "it attends in both directions (use_bidirectional_attention); needed a causal language model."
    unknown = None if has_code(config) else unknown_type(str(config.get("model_type", "")))
    return unknown or _stretched(said, longest)


def has_code(config: dict[str, Any]) -> bool:
    """Returns whether Python files next to a config.json have a causal language model for it."""
    return isinstance(named := config.get("auto_map"), dict) and "AutoModelForCausalLM" in named


def has_experts(config: dict[str, Any]) -> bool:
    """Returns whether layers of a model choose among experts."""
    return any(EXPERTS.search(key) and isinstance(value, int) and value > 1 for key, value in text_part(config).items())


def unpacked(config: dict[str, Any], longest: int, does: Collection[str] = ()) -> str | None:
    """Returns why rows of up to `longest` tokens cannot be packed into one sequence for a model, or None.

    config: as for `untrainable`. does: of WINDOWS, CAPS, SINKS and STATES, what packing does here. The sentence goes on
    after "because".
    """
    said = text_part(config)
    if STATES not in does and (recurrent := recurrent_layers(said)):
        return (f"the model has state-space, convolution or linear-attention layers ({', '.join(recurrent[:4])}), "
                "which carry a state from one row into the next")
    chunks = ["chunked_attention"] if said.get("attention_chunk_size") else []
    if other := sorted(kind for kind in {str(kind) for kind in said.get("layer_types") or chunks} - PACKABLE
                       if not recurrent_layers({"layer_types": [kind]})):
        return f"the model has layers of {', '.join(other)} (layer_types)"
    if CAPS not in does and (cap := said.get("attn_logit_softcapping")):
        return f"the model caps the scores of its attention (attn_logit_softcapping={cap})"
    return unpackable(str(said.get("model_type", "")), SINKS in does) or (
        windowed(said, longest) if WINDOWS not in does else None)


def text_part(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the configuration of the text of a model, with the defaults of its family, quantization and kind of the
    whole."""
    inner = config.get("text_config")
    said = {**inner, **{key: config[key] for key in OF_WHOLE if key in config}} if isinstance(inner, dict) else config
    return completed(said)


def windowed(said: dict[str, Any], longest: int) -> str | None:
    """Returns that layers attend to fewer tokens than a row has, or None. said: of `text_part`."""
    for key, acts in WINDOW_KEYS.items():
        if isinstance(window := said.get(key), int) and 0 < window < longest and acts(said):
            return f"the model's layers attend to the last {window} tokens ({key}), and rows have up to {longest}"
    return None


def _slides(said: dict[str, Any]) -> bool:
    """Returns whether any layer uses the configured window. Qwen: those from `max_window_layers` on, when enabled."""
    kind, types = said.get("model_type", ""), said.get("layer_types")
    if not said.get("use_sliding_window", not kind.startswith("qwen")):
        return False
    if types:
        return "sliding_attention" in types
    return kind not in ("qwen2", "qwen3") or said.get("max_window_layers", 28) < said.get("num_hidden_layers", 32)


WINDOW_KEYS = {"sliding_window": _slides, "local_attention": bool,  # key: whether any layer uses it
           "window_size": lambda said: "local" in str(said.get("attention_types"))}


def _stretched(said: dict[str, Any], longest: int) -> str | None:
    """Detects longrope, with two sets of frequencies: the engine chooses by the longest sequence allowed, the trainer
    by the current one, so they agree only below the threshold."""
    rope = said.get("rope_scaling") or said.get("rope_parameters") or {}
    kind = rope.get("rope_type") or rope.get("type")
    change = rope.get("original_max_position_embeddings") or said.get("original_max_position_embeddings")
    if kind != "longrope" or not isinstance(change, int) or longest <= change:
        return None
    return (f"its positions are stretched beyond {change} tokens (longrope), and sequences have up to {longest}, for "
            f"which engine and trainer differ. Shorten model.max_prompt_tokens + max_response_tokens to {change}.")


def completed(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the content of a config.json, or of the part of its text, with those defaults of its family that are
    constants. What a family names otherwise (GPT-2's n_head) is there under the usual name (num_attention_heads) too.
    Defaults are read from the source of the family's class, which is not imported: that would take torch.
    """
    defaults, names = _of_family(str(config.get("model_type", "")))
    found = config | {key: value for key, value in defaults.items() if key not in config}
    return found | {usual: found[own] for usual, own in names.items() if own in found and usual not in config}


@cache
def _of_family(model_type: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the defaults, and usual name -> own name of keys; both empty without such a class."""
    name = family_directory(model_type)
    text = transformers_file(name, f"configuration_{name}.py") if name.isidentifier() else None
    for node in ast.parse(text or "").body:
        found = _constants(node) if isinstance(node, ast.ClassDef) else {}
        if found.get("model_type") == model_type:
            return found, found.pop("attribute_map", {})
    return {}, {}


def _constants(node: ast.ClassDef) -> dict[str, Any]:
    found = {}
    for one in node.body:
        target = getattr(one, "target", None) or (one.targets[0] if isinstance(one, ast.Assign) else None)
        if isinstance(target, ast.Name) and getattr(one, "value", None) is not None:
            try:
                found[target.id] = ast.literal_eval(one.value)
            except ValueError:  # made by a function
                continue
    return found
