"""Features enabled in a model's config.json that the trainer does not support, checked only where they have an effect.

Many configurations carry keys without effect: a window as long as the sequences, `use_sliding_window: false`, null
soft-capping. Only what changes a log-prob of a stage's sequences is refused.
"""

from typing import Any

from pipeline.store.packable import unpackable
from pipeline.store.recurrence import recurrent_layers

DEFAULTS: dict[str, dict[str, Any]] = {  # for keys absent from config.json: configuration_<model_type>.py, 5.19
    "mistral": {"sliding_window": 4096},
    "gemma2": {"sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3_text": {"sliding_window": 4096},
    "cohere": {"logit_scale": 0.0625},
    "cohere2": {"logit_scale": 0.0625, "sliding_window": 4096},
    "gpt_neo": {"attention_types": ["global", "local"], "window_size": 256},
    "llama4_text": {"attention_chunk_size": 8192},
    "modernbert-decoder": {"local_attention": 128},
    "t5": {"is_encoder_decoder": True},
    "bart": {"is_encoder_decoder": True},
}
BIDIRECTIONAL = {"bert", "roberta", "xlm-roberta", "camembert", "electra"}  # unless `is_decoder` is set
ENCODERS = {"vision_config": "images", "audio_config": "sound"}
CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
SCALES = ("logit_scale", "logits_scaling", "lm_head_multiplier")
ATTENTION = {"full_attention", "sliding_attention"}  # layer_types


def untrainable(config: dict[str, Any], longest: int) -> str | None:
    """Returns why a model cannot be trained on sequences of up to `longest` tokens, or None.

    config: the content of config.json, as written or completed by transformers.
    """
    said = {**DEFAULTS.get(config.get("model_type", ""), {}), **config}
    if said.get("is_encoder_decoder"):
        return "it has an encoder beside its decoder (is_encoder_decoder); needed a decoder alone, as Llama or Qwen."
    if said.get("model_type") in BIDIRECTIONAL and not said.get("is_decoder"):
        return f"{said['model_type']} attends in both directions; needed a causal language model, as Llama or Qwen."
    if quantized := said.get("quantization_config"):
        how = quantized.get("quant_method", "") if isinstance(quantized, dict) else quantized
        return f"its weights are quantized ({how}); needed those that they were made of, in bfloat16 or float32."
    for key, what in ENCODERS.items():
        if said.get(key):
            return f"it reads {what} too ({key}), which is not supported; needed a model of text alone."
    if recurrent := recurrent_layers(said):
        return (f"it has state-space, convolution or linear-attention layers ({', '.join(recurrent[:4])}), which would "
                "carry their state from one packed row into the next; needed a model with attention alone, as Llama or "
                "Qwen.")
    chunks = ["chunked_attention"] if said.get("attention_chunk_size") else []
    if other := sorted({str(kind) for kind in said.get("layer_types") or chunks} - ATTENTION):
        return f"it has layers of {', '.join(other)} (layer_types), which the trainer does not pack."
    if said.get("use_bidirectional_attention"):
        return ("it has use_bidirectional_attention, which the trainer's attention does not do; take a model with "
                "plain causal attention.")
    if caps := [f"{key}={said[key]}" for key in CAPS if said.get(key)]:
        return f"it caps scores ({', '.join(caps)}), which the trainer does not do; take one without (Gemma 1)."
    if scales := [f"{key}={said[key]}" for key in SCALES if said.get(key) not in (None, 1)]:
        return f"it scales its logits ({', '.join(scales)}), which the trainer does not do; take another model."
    return unpackable(str(said.get("model_type", ""))) or _windowed(said, longest) or _stretched(said, longest)


def _windowed(said: dict[str, Any], longest: int) -> str | None:
    for key, acts in WINDOWS.items():
        if isinstance(window := said.get(key), int) and 0 < window < longest and acts(said):
            return (f"its layers attend to the last {window} tokens ({key}), the trainer's to all of up to {longest}. "
                    f"Shorten model.max_prompt_tokens + max_response_tokens to {window}, or take a model with full "
                    "attention.")
    return None


def _slides(said: dict[str, Any]) -> bool:
    """Returns whether any layer uses the configured window. Qwen: those from `max_window_layers` on, when enabled."""
    kind, types = said.get("model_type", ""), said.get("layer_types")
    if not said.get("use_sliding_window", not kind.startswith("qwen")):
        return False
    if types:
        return "sliding_attention" in types
    return kind not in ("qwen2", "qwen3") or said.get("max_window_layers", 28) < said.get("num_hidden_layers", 32)


WINDOWS = {"sliding_window": _slides, "local_attention": bool,  # key: whether any layer uses it
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
