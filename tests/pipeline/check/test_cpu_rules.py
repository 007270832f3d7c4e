"""What vLLM on a CPU does not run, by config.json alone: as measured on models of tests/families.py."""

import pytest

from ouroboros.pipeline.check.engine import cpu_problem

HYBRID = {"model_type": "nemotron_h", "num_attention_heads": 2, "head_dim": 32}
WIDE = {"hidden_size": 96, "num_attention_heads": 3}  # heads of 32
RUN = {
    "heads of 32": {"model_type": "llama", **WIDE},
    "Gemma: its default is 256": {"model_type": "gemma", "hidden_size": 96, "num_attention_heads": 4},
    "an explicit width": {"model_type": "llama", "hidden_size": 96, "num_attention_heads": 4, "head_dim": 64},
    "without experts": {**HYBRID, "layers_block_type": ["mamba", "mlp", "attention"]},
    "chunks of a block": {"model_type": "llama4_text", "attention_chunk_size": 256},
    "no linear layer": {"model_type": "qwen3_next", "layer_types": ["full_attention"] * 4},
    "Mamba 2, whose heads are no heads of attention": {"model_type": "mamba2", "head_dim": 16},
    "gpt-oss": {"model_type": "gpt_oss"}, "made here": {"hidden_size": 64, "num_attention_heads": 2},
}
REFUSED = {
    **{kind: {"model_type": kind, "hidden_size": 64, "num_attention_heads": 4}  # heads of 16
       for kind in ("llama", "granitemoehybrid", "falcon_h1", "jamba", "olmo2")},
    "GPT-2's own names": {"model_type": "gpt2", "n_embd": 64, "n_head": 4},
    "of the text of a model that reads images": {"model_type": "gemma3", "text_config": {
        "model_type": "gemma3_text", "head_dim": 16}},
    "one of two widths": {"model_type": "gemma4_text", "head_dim": 32, "global_head_dim": 48},
    "latent": {"model_type": "deepseek_v3"},
    "chosen keys": {"model_type": "deepseek_v32", "kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_topk": 2048},
    "chunks": {"model_type": "llama4_text", "attention_chunk_size": 16},
    "Mamba 1": {"model_type": "falcon_mamba"},
    "Qwen3-Next in float32": {"model_type": "qwen3_next"},
    "Qwen3.5 in float32": {"model_type": "qwen3_5", "text_config": {"model_type": "qwen3_5_text"}},
    "experts without a gate": {**HYBRID, "layers_block_type": ["mamba", "moe", "attention"]},
    "by a pattern": {**HYBRID, "hybrid_override_pattern": "ME*M"},
}


@pytest.mark.parametrize("name", [*RUN, *REFUSED])
def test_what_it_runs_and_what_not(name):
    problem = cpu_problem((RUN | REFUSED)[name], "float32", {})
    assert (problem and problem.key) == (None if name in RUN else "explorer.rollout_model.engine_type")


def test_settings_decide_too():
    wide = {"model_type": "qwen3_next", "linear_key_head_dim": 32, "linear_value_head_dim": 32}
    assert cpu_problem(wide, "bfloat16", {}) is None
    assert cpu_problem(wide | {"linear_key_head_dim": 16}, "bfloat16", {})
    assert cpu_problem(REFUSED["chunks"], "float32", {"block_size": 48})
    assert cpu_problem({"model_type": "llama4_text", "attention_chunk_size": 96}, "float32", {"block_size": None})
    assert cpu_problem({"model_type": "llama4_text", "attention_chunk_size": 96}, "float32", {}) is None
