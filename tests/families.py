"""Small random models in the shape of every decoder family of the installed transformers that users ask for.

Sizes are the same for all where a family has the key; SHAPES has what only some have: orders of layers, windows shorter
than the rows of the tests, factors of logits. A model that reads images too is made with a small tower. families.txt
names each with its engine.
"""

from pathlib import Path
from random import Random
from typing import Any

SIZES = {
    "vocab_size": 384, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 256, "sliding_window": 16,
    "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "num_local_experts": 4,
    "n_routed_experts": 4, "n_shared_experts": 1, "shared_expert_intermediate_size": 32, "first_k_dense_replace": 1,
    "n_group": 1, "topk_group": 1, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16, "v_head_dim": 32, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "mamba_n_heads": 8, "mamba_d_head": 16,
    "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_chunk_size": 16, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "initializer_range": 0.2,
}
WINDOWED = ["sliding_attention", "full_attention"] * 2
LINEAR = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
LATENT = {"head_dim": 16, "num_key_value_heads": 2}
INDEXED = {**LATENT, "index_topk": 8, "index_head_dim": 32, "index_n_heads": 16}

SHAPES: dict[str, dict[str, Any]] = {
    "qwen2": {}, "qwen3": {}, "qwen3_moe": {}, "llama": {}, "mistral": {}, "ministral": {"layer_types": WINDOWED},
    "qwen3_next": {"layer_types": LINEAR},
    "qwen3_5_text": {"layer_types": LINEAR}, "qwen3_5_moe_text": {"layer_types": LINEAR},
    "ministral3": {},
    "mistral4": {**LATENT, "head_dim": 32, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
        "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 32}},
    "llama4_text": {"attention_chunk_size": 16, "intermediate_size_mlp": 96, "no_rope_layers": [1, 1, 1, 0],
                    "interleave_moe_layer_step": 2},
    "gemma": {}, "gemma2": {"layer_types": WINDOWED, "query_pre_attn_scalar": 32},
    "gemma3_text": {"layer_types": WINDOWED, "query_pre_attn_scalar": 32},
    "gemma3n_text": {"layer_types": WINDOWED, "intermediate_size": [96] * 4, "hidden_size_per_layer_input": 8,
                     "vocab_size_per_layer_input": 384, "laurel_rank": 4, "num_kv_shared_layers": 0,
                     "activation_sparsity_pattern": [0.5, 0.5, 0.0, 0.0]},
    "gemma4_text": {"layer_types": WINDOWED, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 384,
                    "num_experts": None, "global_head_dim": 64},
    "gpt_oss": {"layer_types": WINDOWED, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "truncate": False, "original_max_position_embeddings": 32}},
    "glm4": {"partial_rotary_factor": 0.5}, "glm4_moe": {}, "glm4_moe_lite": LATENT,
    "glm_moe_dsa": INDEXED, "deepseek_v2": LATENT, "deepseek_v3": LATENT, "deepseek_v32": INDEXED,
    "deepseek_v4": {}, "minimax_m2": {},
    "nemotron_h": {"layers_block_type": ["mamba", "moe", "attention", "mamba"], "mamba_num_heads": 8,
                   "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 1, "chunk_size": 16,
                   "moe_shared_expert_intermediate_size": 32},
    "nemotron": {}, "lfm2": {"layer_types": ["conv", "full_attention"] * 2, "block_multiple_of": 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 1},
    "smollm3": {"no_rope_layers": [1, 1, 1, 0]}, "olmo2": {}, "olmo3": {"layer_types": WINDOWED},
    "olmo_hybrid": {"layer_types": LINEAR, "linear_num_key_heads": 4}, "granite": {"logits_scaling": 4.0},
    "granitemoe": {"logits_scaling": 4.0},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2, "logits_scaling": 4.0,
                         "shared_intermediate_size": 32},
    "phi3": {"sliding_window": 16}, "phimoe": {}, "seed_oss": {}, "exaone4": {"layer_types": WINDOWED},
    "hunyuan_v1_dense": {}, "hunyuan_v1_moe": {"moe_topk": 2}, "ernie4_5": {},
    "ernie4_5_moe": {"moe_k": 2, "moe_num_experts": 4},
    "dots1": {},
    "longcat_flash": {**LATENT, "num_layers": 2, "ffn_hidden_size": 96, "expert_ffn_hidden_size": 32,
                                   "moe_topk": 2, "zero_expert_num": 2},
    "mimo_v2_flash": {"layer_types": WINDOWED},
    "kimi_linear": {**LATENT, "layer_types": LINEAR, "num_experts_per_token": 2,
                    "num_expert_group": 1, "linear_head_dim": 16, "linear_num_heads": 4},
    "apertus": {}, "falcon_h1": {"mamba_d_ssm": 128, "lm_head_multiplier": 0.5},
    "bamba": {"attn_layer_indices": [1, 3]}, "cohere2": {"layer_types": WINDOWED, "logit_scale": 0.25},
    "starcoder2": {}, "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1, "chunk_size": 16,
                                 "num_hidden_layers": 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1,
              "mamba_d_state": 8, "mamba_dt_rank": 4, "use_mamba_kernels": False},
}
OTHERS: dict[str, list[Any]] = {  # values of keys that published models of a family differ in
    "sliding_window": [3, 7, 13, 17], "head_dim": [16, 24, 48], "intermediate_size": [40, 112],
    "tie_word_embeddings": [True, False], "attention_bias": [True, False], "mlp_bias": [True, False],
    "qkv_bias": [True, False], "use_bias": [True, False],
    "attn_logit_softcapping": [2.0, 7.5], "final_logit_softcapping": [3.0, 11.0], "logits_scaling": [0.5, 3.0],
    "logit_scale": [0.125, 2.0], "lm_head_multiplier": [0.25, 2.0], "embedding_multiplier": [0.5, 3.0],
    "residual_multiplier": [0.5], "attention_multiplier": [0.3], "query_pre_attn_scalar": [20, 48],
    "num_experts_per_tok": [1, 3], "moe_topk": [2, 3], "norm_topk_prob": [True, False],
    "routed_scaling_factor": [0.5, 2.5], "n_shared_experts": [2], "first_k_dense_replace": [0, 2],
    "partial_rotary_factor": [0.5, 1.0],
    "conv_L_cache": [2, 4], "linear_conv_kernel_dim": [2, 3], "mamba_d_conv": [2, 3], "conv_kernel": [2, 3],
    "mamba_chunk_size": [8, 24], "chunk_size": [8, 24], "mamba_n_groups": [2, 3], "n_groups": [2, 3],
    "linear_key_head_dim": [8, 24], "linear_value_head_dim": [8, 24],
    "attention_chunk_size": [5, 11], "index_topk": [4, 12], "rope_theta": [500.0], "rms_norm_eps": [1e-5],
    "attn_layer_offset": [0], "expert_layer_offset": [0], "use_qk_norm": [True, False], "qk_norm": [True, False],
    "use_sliding_window": [True], "max_window_layers": [1, 2], "num_hidden_layers": [4],
}
TOWER = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_heads": 2,
         "depth": 1, "image_size": 28, "patch_size": 14, "out_hidden_size": 64, "num_position_embeddings": 16}
# models that read images too: the family of their text, what else their configuration has, what their tower has
SEEING: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "gemma3": ("gemma3_text", {"mm_tokens_per_image": 4, "image_token_id": 380, "boi_token_index": 381},
               {"image_size": 56}),
    "gemma3n": ("gemma3n_text", {}, {}),
    "gemma4": ("gemma4_text", {}, {}),
    "mistral3": ("mistral", {}, {"head_dim": 16}),
    "qwen2_5_vl": ("qwen2_5_vl_text", {"image_token_id": 380}, {}),
    "qwen3_vl": ("qwen3_vl_text", {"image_token_id": 380}, {"deepstack_visual_indexes": [0]}),
    "internvl": ("qwen2", {"image_token_id": 380}, {"image_size": [56, 56], "patch_size": [14, 14]}),
    "qwen3_5": ("qwen3_5_text", {"image_token_id": 380}, {}),
    "qwen3_5_moe": ("qwen3_5_moe_text", {}, {}),
    "llama4": ("llama4_text", {}, {"vision_output_dim": 64, "projector_input_dim": 64, "projector_output_dim": 64}),
    "kimi_k25": ("deepseek_v3", {}, {"pos_emb_height": 4, "pos_emb_width": 4}),
    "glm5_next": ("glm5_next_text", {}, {"projection_intermediate_size": 32}),
    "step3p7": ("step3p5", {}, {}),
}
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]}}
TEXTS: dict[str, dict[str, Any]] = {  # families that are the text of such models alone
    "qwen2_5_vl_text": MROPE, "qwen3_vl_text": MROPE,
    "glm5_next_text": {**INDEXED, "index_kpool": 2, "linear_head_dim": 16, "linear_num_heads": 4, "qk_rope_head_dim": 0,
                       "layer_types": LINEAR},
    "step3p5": {"num_sliding_attention_heads": 2, "share_expert_dim": 32},
}

SOFT = 380  # the token that stands for features
QWEN_MARKS = {"image_token": "<soft>", "video_token": "<video>"}
MARKS = {"gemma3": {"boi_token": "<boi>", "eoi_token": "<eoi>", "image_token": "<soft>"},
         "internvl": {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<soft>",
                      "video_token": "<video>"}}
BREAKS = ["\n" * count for count in range(1, 6)]  # of Gemma's tokenizer


def listed() -> dict[str, tuple[str, str]]:
    """family -> (engine, why), of families.txt."""
    lines = (Path(__file__).parent / "families.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split(maxsplit=2) for line in lines if line and not line.startswith("#")]
    return {family: (engine, why) for family, engine, why in rows}


def architecture(family: str) -> str:
    """The name of its class, as config.json and vLLM's list have it."""
    from transformers.models.auto import modeling_auto as names

    alone, whole = names.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, names.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    return (whole if family in SEEING or family not in alone else alone)[family]


def config(family: str, varied: int | None = None):
    """The configuration of a small model of a family. varied: seed of another of the same family, as `other`."""
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[family]
    if family in SEEING:
        text, more, tower = SEEING[family]
        known = set(kind().vision_config.to_dict()) if kind().vision_config else set()
        return kind(text_config=config(text, varied).to_dict(), pad_token_id=0, **more, vision_config={
            **{key: value for key, value in TOWER.items() if key in known}, **tower})
    defaults = kind().to_dict()
    known = set(defaults)
    said = {**{key: value for key, value in SIZES.items() if key in known}, **(SHAPES | TEXTS)[family]}
    return kind(**said if varied is None else other(said, defaults, Random(varied)))


def other(said: dict[str, Any], defaults: dict[str, Any], random: Random) -> dict[str, Any]:
    """Another configuration: some of OTHERS, other heads and widths, kinds of layers in another order."""
    known = {key for key, value in (defaults | said).items() if value is not None} & defaults.keys()
    width, (heads, key_heads) = random.choice([48, 96]), random.choice([(2, 2), (4, 1), (3, 3), (6, 2), (3, 1)])
    latent, fixed = "kv_lora_rank" in known, bool({"kv_lora_rank", "num_heads"} & known)
    sizes = {"hidden_size": width, "num_attention_heads": heads, "num_key_value_heads": heads if latent else key_heads,
             "mamba_n_heads": width // 8, "mamba_num_heads": width // 8, "num_heads": width // 8,
             "mamba_d_ssm": 2 * width}
    if "v_head_dim" in known and not latent:  # MiMo's windows have heads of their own
        del sizes["num_attention_heads"], sizes["num_key_value_heads"]
    made = said | {key: value for key, value in sizes.items() if key in known}
    for key, values in OTHERS.items():
        value, chosen = random.choice(values), random.random() < 0.6
        if chosen and key in known and not isinstance(said.get(key), list) and not (fixed and key == "head_dim"):
            made[key] = value
    for key in ("layer_types", "layers_block_type"):
        if key in said:
            made[key] = random.sample(said[key], len(said[key]))
    if "mrope_section" in made.get("rope_parameters", {}):
        half = (made.get("head_dim") or made["hidden_size"] // made["num_attention_heads"]) // 2
        made["rope_parameters"] = {**made["rope_parameters"],
                                   "mrope_section": [half - half // 3 * 2, half // 3, half // 3]}
    return made


def make(family: str, path: Path, seed: int = 0, varied: int | None = None) -> None:
    """Writes a random model in float32, without a tokenizer. varied: as in `config`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    from ouroboros.stages.learner.engine import policy

    made = config(family, varied)
    kind = AutoModelForImageTextToText if family in {*SEEING, "mistral4"} else AutoModelForCausalLM
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = kind.from_config(made, dtype=torch.float32)
        for buffer in policy.saved_buffers(model).values():  # they begin as zeros or ones, which a reader may assume
            if buffer.is_floating_point():
                buffer.add_(0.05 * torch.randn_like(buffer))
        for weight in model.parameters():  # Gemma 3's projection of features
            if weight.dim() > 1 and not weight.any():
                torch.nn.init.normal_(weight, std=0.2)
        model.save_pretrained(path)


def processor(family: str, tokenizer: Path):
    """The processor of a model that is shown images. tokenizer: the directory of one, which gets the family's marks."""
    import transformers as made

    text = made.AutoTokenizer.from_pretrained(tokenizer)
    text.add_tokens([*BREAKS, *(f"<unused{number}>" for number in range(SOFT - len(BREAKS) - len(text)))])
    text.add_tokens(["<soft>"], special_tokens=True)
    marks = MARKS.get(family, QWEN_MARKS)
    text.add_special_tokens({"extra_special_tokens": [*marks.values()]})
    text._set_model_specific_special_tokens(marks)
    if family == "gemma3":
        square = {"height": 56, "width": 56}
        return made.Gemma3Processor(made.Gemma3ImageProcessorPil(size=square), text, image_seq_length=4)
    if family == "internvl":
        tiles = made.GotOcr2ImageProcessorPil(size={"height": 56, "width": 56}, min_patches=1, max_patches=4)
        return made.InternVLProcessor(tiles, text, made.InternVLVideoProcessor(), image_seq_length=4)
    edges = {"shortest_edge": 28 * 28, "longest_edge": 140 * 140}
    whole = made.Qwen2_5_VLProcessor if family == "qwen2_5_vl" else made.Qwen3VLProcessor
    video = made.Qwen2VLVideoProcessor if family == "qwen2_5_vl" else made.Qwen3VLVideoProcessor
    return whole(made.Qwen2VLImageProcessorPil(size=edges), text, video())


def seeing(family: str, path: Path, tokenizer: Path) -> Path:
    """Writes a random model that is shown images, with its processor. tokenizer: as for `processor`."""
    make(family, path)
    processor(family, tokenizer).save_pretrained(path)
    return path
