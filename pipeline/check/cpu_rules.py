"""What of a model vLLM 0.32 does not run on a CPU, by its config.json; found by running each kind of layer."""

from collections.abc import Iterator
from typing import Any

from ouroboros.pipeline.store.architecture import text_part
from ouroboros.pipeline.store.errors import Problem
from ouroboros.pipeline.store.model_engine import OTHER

HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)  # widths with kernels: v1/attention/backends/cpu_attn.py
BLOCK = 128  # tokens of a block of the KV cache, which chunks of attention are cut into
WIDTHS = ("head_dim", "global_head_dim", "swa_head_dim")
MAMBA_1 = {"falcon_mamba", "jamba", "mamba"}
DELTA = {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"}  # gated delta rule with a kernel for CPUs
TRITON = {"kimi_linear", "olmo_hybrid"}  # gated delta rule without one


def cpu_problem(config: dict[str, Any], dtype: str, arguments: dict[str, Any]) -> Problem | None:
    """Reports a model that vLLM does not run on a CPU. config: config.json, or the section model.init. dtype: of the
    weights. arguments: vLLM's extra ones."""
    said = text_part(config)
    words = next((one for find in (_layers, _attention, _experts) for one in find(said, dtype, arguments)), None)
    return words and Problem("explorer.rollout_model.engine_type", f"vLLM does not run this model on a CPU: {words}.",
                             OTHER, found="vllm")


def _layers(said: dict[str, Any], dtype: str, arguments: dict[str, Any]) -> Iterator[str]:
    kind = said.get("model_type")
    if kind in MAMBA_1:
        yield "its Mamba-1 layers (selective scan) have kernels for GPUs alone"
    if kind in TRITON:
        yield "its linear attention needs Triton"
    if kind in DELTA and _any(said, "linear_attention"):
        if dtype != "bfloat16":
            yield f"its linear attention is computed in bfloat16 alone, and model.dtype is {dtype}"
        for key in ("linear_key_head_dim", "linear_value_head_dim"):
            if said.get(key, 0) % 32:
                yield f"heads of its linear attention are {said[key]} wide ({key}); needed a multiple of 32"


def _attention(said: dict[str, Any], dtype: str, arguments: dict[str, Any]) -> Iterator[str]:
    if said.get("index_topk"):
        yield "its sparse attention (index_topk) has kernels for GPUs alone"
    block = arguments.get("block_size") or BLOCK
    if (chunk := said.get("attention_chunk_size")) and chunk % block:
        yield f"its attention goes by chunks of {chunk} tokens (attention_chunk_size); needed a multiple of {block}"
    if said.get("kv_lora_rank") and said.get("model_type") != "minicpm3":
        yield ("its latent attention (kv_lora_rank) gives other log-probs there than transformers, with random weights "
               "by 2 to 4 nats")
        return
    heads, hidden = said.get("num_attention_heads"), said.get("hidden_size")
    widths = {key: said[key] for key in WIDTHS if said.get(key)} if heads else {}
    if heads and hidden and "head_dim" not in widths:
        widths["hidden_size / num_attention_heads"] = hidden // heads
    for key, width in widths.items():
        if width not in HEADS:
            yield f"its attention heads are {width} wide ({key}); kernels are for {', '.join(map(str, HEADS))}"


def _experts(said: dict[str, Any], dtype: str, arguments: dict[str, Any]) -> Iterator[str]:
    if said.get("model_type") == "nemotron_h" and _any(said, "moe"):
        yield "its experts have no gate, and kernels are for gated ones"


def _any(said: dict[str, Any], kind: str) -> bool:
    """Returns whether some layer is of a kind; as long as config.json lists none, one may be."""
    kinds = said.get("layer_types") or said.get("layers_block_type") or said.get("hybrid_override_pattern")
    return not kinds or kind in kinds or (isinstance(kinds, str) and "E" in kinds)
