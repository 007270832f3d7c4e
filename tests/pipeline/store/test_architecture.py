"""What `ouro config check` accepts and refuses of a model's config.json, as the hub's files write it."""

import json

import pytest

from ouroboros.pipeline.check import preflight
from ouroboros.pipeline.check.model import untrainable_models
from ouroboros.pipeline.compose.recipe import effective
from ouroboros.pipeline.job.devices import Gpus
from ouroboros.pipeline.store.architecture import unpacked, untrainable
from tests.configs import changed, places
from tests.golden.messages import wording

NO_GPU, GPU, ELSEWHERE = Gpus(0, None, False), Gpus(1, 80.0, False), Gpus(1, 80.0, True)
QWEN = {"model_type": "qwen2", "num_hidden_layers": 24, "use_sliding_window": False, "sliding_window": 32768,
        "max_window_layers": 21}  # Qwen2.5-0.5B
LONGROPE = {"model_type": "phi3", "original_max_position_embeddings": 4096, "max_position_embeddings": 131072}

ACCEPTED = {
    "Llama: nothing of it": {"model_type": "llama", "rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
    "Qwen2: the window is switched off": {**QWEN, "sliding_window": 64},
    "Qwen2: on, and no layer so high": {**QWEN, "use_sliding_window": True, "sliding_window": 64,
                                        "max_window_layers": 24},
    "Qwen2: on, as long as the sequences": {**QWEN, "use_sliding_window": True, "sliding_window": 128},
    "Qwen2: a window and no switch": {"model_type": "qwen2", "sliding_window": 64},
    "Qwen2: completed by transformers": {**QWEN, "sliding_window": None, "layer_types": ["full_attention"] * 24},
    "Qwen3: null": {"model_type": "qwen3", "sliding_window": None, "max_window_layers": 28},
    "Qwen3-MoE: off": {"model_type": "qwen3_moe", "sliding_window": 64, "use_sliding_window": False},
    "Qwen2-MoE: 0, as transformers writes it": {"model_type": "qwen2_moe", "sliding_window": 0},
    "Mistral 0.3: null": {"model_type": "mistral", "sliding_window": None},
    "Mistral 0.1: longer": {"model_type": "mistral", "sliding_window": 4096},
    "Mistral: not said, so 4096": {"model_type": "mistral"},
    "Phi-3: longer": {"model_type": "phi3", "sliding_window": 2047},
    "Phi-3 128k: stretched beyond": {**LONGROPE, "rope_scaling": {"type": "longrope"}},
    "Phi-2: dropout": {"model_type": "phi", "resid_pdrop": 0.1, "partial_rotary_factor": 0.4},
    "Gemma": {"model_type": "gemma", "head_dim": 256, "hidden_activation": None},
    "Gemma 3, text: short": {"model_type": "gemma3_text", "sliding_window": 512, "attn_logit_softcapping": None,
                             "final_logit_softcapping": None},
    "Gemma 2 without what it has": {"model_type": "gemma2", "attn_logit_softcapping": None,
                                    "final_logit_softcapping": None},
    "ModernBERT decoder: windows as long as the sequences": {"model_type": "modernbert-decoder"},
    "SmolLM3": {"model_type": "smollm3"}, "OLMo 2": {"model_type": "olmo2"},
    "Granite": {"model_type": "granite", "logits_scaling": 8.0}, "Cohere": {"model_type": "cohere"},
    "the output alone": {"model_type": "nanochat", "final_logit_softcapping": 15.0},
    "Qwen3-VL": {"model_type": "qwen3_vl", "vision_config": {"depth": 32}, "text_config": {
        "model_type": "qwen3_vl_text"}},
    "no state: keys without a value": {"model_type": "llama", "mamba_d_state": None, "conv_kernel": 0,
                                       "text_config": {}, "use_mamba_kernels": False, "linear_attn_config": None,
                                       "attn_type_list": [1, 1]},
    "no state: words like those": {"model_type": "llama", "use_linear_bias": True, "cache_implementation": "hybrid",
                                   "rope_scaling": {"rope_type": "linear", "factor": 2.0},
                                   "mlp_layer_types": ["sparse"],
                                   "output_hidden_states": True, "conversation_style": 1, "linear_scaling": 2.0},
}
UNPACKED = {
    "Qwen2: on": ({**QWEN, "use_sliding_window": True, "sliding_window": 64}, "last 64 tokens (sliding_window)"),
    "Qwen3-MoE: on": ({"model_type": "qwen3_moe", "sliding_window": 64, "use_sliding_window": True}, "last 64 tokens"),
    "Mistral: short": ({"model_type": "mistral", "sliding_window": 127}, "rows have up to 128"),
    "Llama 4: chunks, not said": ({"model_type": "llama4_text"}, "layers of chunked_attention"),
    "Llama 4: chunks": ({"model_type": "llama4_text", "attention_chunk_size": 64}, "layers of chunked_attention"),
    "kinds of layers that are no texts": ({"model_type": "qwen2", "layer_types": ["full_attention", 3, None]},
                                          "layers of 3, None (layer_types)"),
    "ModernBERT decoder: short": ({"model_type": "modernbert-decoder", "local_attention": 64},
                                  "last 64 tokens (local_attention)"),
    "sinks": ({"model_type": "granite_swa"}, "need attention sinks"),
    "chosen keys": ({"model_type": "deepseek_v32"}, "need attention to chosen keys"),
    "a mask of its own": ({"model_type": "doge"}, "need a mask of its own"),
    "Mixtral: short": ({"model_type": "mixtral", "sliding_window": 64}, "last 64 tokens"),
    "Phi-3: short": ({"model_type": "phi3", "sliding_window": 100}, "last 100 tokens"),
    "Gemma 2": ({"model_type": "gemma2", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
                "attn_logit_softcapping=50.0"),
    "Gemma 2: not said": ({"model_type": "gemma2"}, "attn_logit_softcapping=50.0"),
    "Gemma 3, text: some layers": ({"model_type": "gemma3_text", "sliding_window": 64, "layer_types": [
        "sliding_attention", "full_attention"]}, "last 64 tokens"),
    "Gemma 3: of its text": ({"model_type": "gemma3", "vision_config": {"depth": 2}, "text_config": {
        "model_type": "gemma3_text", "sliding_window": 64}}, "last 64 tokens"),
    "GPT-2": ({"model_type": "gpt2"}, "no decoder of the name `model`"),
    "GPT-NeoX": ({"model_type": "gpt_neox"}, "no decoder of the name `model`"),
    "Falcon": ({"model_type": "falcon"}, "no replaceable attention and no decoder"),
    "BLOOM": ({"model_type": "bloom"}, "no replaceable attention and no decoder"),
    "Qwen3-Next": ({"model_type": "qwen3_next", "layer_types": ["linear_attention", "full_attention"]},
                   "layer_types=linear_attention"),
    "chunks": ({"model_type": "llama4_text", "layer_types": ["chunked_attention"]}, "layers of chunked_attention"),
    "gpt-oss": ({"model_type": "gpt_oss", "sliding_window": 4096}, "attention sinks"),
}
REFUSED = {
    "nobody has it": ({"model_type": "llama_9"}, "no causal language model of model_type llama_9"),
    "nobody has it: a path": ({"model_type": "../../x"}, "no causal language model of model_type ../../x"),
    "BERT": ({"model_type": "bert"}, "both directions"),
    "T5": ({"model_type": "t5", "is_encoder_decoder": True}, "is_encoder_decoder"),
    "Whisper": ({"model_type": "whisper"}, "is_encoder_decoder"), "BART": ({"model_type": "bart"}, "encoder"),
    "Pegasus": ({"model_type": "pegasus"}, "encoder"), "RemBERT": ({"model_type": "rembert"}, "both directions"),
    "quantized, of a model with a tower": ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"},
                                            "quantization_config": {"quant_method": "awq"}}, "quantized (awq)"),
    "both directions": ({"model_type": "gemma", "use_bidirectional_attention": True}, "use_bidirectional_attention"),
    "Phi-3 128k: stretched": ({**LONGROPE, "original_max_position_embeddings": 100, "rope_scaling": {
        "type": "longrope"}}, "beyond 100 tokens (longrope)"),
}

RECURRENT = {  # what says that some layer carries a state along the sequence -> how it is named
    "a family whose config.json may leave all at its default": ({"model_type": "nemotron_h"}, ""),
    "another": ({"model_type": "bamba"}, ""),
    "Jamba": ({"model_type": "jamba"}, ""),
    "Falcon-H1": ({"model_type": "falcon_h1", "lm_head_multiplier": 0.04}, "mamba_"),
    "ZAYA": ({"model_type": "zaya"}, ""),
    "Mamba": ({"model_type": "falcon_mamba"}, "model_type=falcon_mamba"),
    "RWKV": ({"model_type": "rwkv7"}, "model_type=rwkv7"),
    "Kimi": ({"model_type": "kimi_linear"}, "model_type=kimi_linear"),
    "xLSTM": ({"model_type": "xlstm"}, "model_type=xlstm"),
    "unheard of, by its name": ({"model_type": "my-mamba2"}, "model_type=my_mamba2"),
    **{key: ({"model_type": "unheard_of", key: value}, key) for key, value in {
        "mamba_d_state": 16, "n_mamba_heads": 2, "mamba_headdim": 64, "ssm_state_size": 128, "ssm_cfg": {"layer": "M1"},
        "conv_kernel": 4, "conv_L_cache": 3, "sconv_kernel_size": 4, "conv1d_width": 4, "short_conv_kernel_size": 4,
        "linear_num_value_heads": 32, "linear_attn_config": {"heads": 2}, "linear_conv_kernel_dim": 4,
        "lru_width": 2560, "state_size": 16, "time_step_rank": 48, "rwkv_head_size": 64, "attn_type_list": [0, 1],
        "cca_time0": 2, "hybrid_override_pattern": "M-M*", "attn_layer_period": 8, "attn_layer_indices": [9, 18],
        "hyena_filters": 16, "full_attn_idxs": [2, 5], "use_retention": True, "mtp_ssm": 1}.items()},
    **{f"{key} of {kind}": ({"model_type": "unheard_of", key: ["full_attention", kind]}, f"{key}={kind}")
       for key, kind in [("layer_types", "linear_attention"), ("layers_block_type", "mamba"), ("layer_types", "conv"),
                         ("block_types", "recurrent"), ("layers_block_type", "hybrid"),
                         ("layer_types", "hybrid_sliding"), ("attention_types", "gated_deltanet"),
                         ("mixer_types", "mamba2"), ("attn_types", "linear")]},
    "one kind for all": ({"model_type": "unheard_of", "token_mixer": "gated_delta_net"}, "token_mixer=gated_delta_net"),
    "nested": ({"model_type": "unheard_of", "text_config": {"model_type": "qwen3_5_text"}}, "linear_conv_kernel_dim"),
    "nested twice": ({"model_type": "unheard_of", "a_config": {"b_config": {"layer_types": ["mamba"]}}},
                     "a_config.b_config.layer_types=mamba"),
}


@pytest.mark.parametrize(("said", "named"), RECURRENT.values(), ids=RECURRENT)
def test_layers_with_a_state_are_not_packed_whatever_names_them(said, named):
    found = unpacked(said, 128)
    wording(found, "state-space", "linear-attention")
    assert named in found


@pytest.mark.parametrize("said", ACCEPTED.values(), ids=ACCEPTED)
def test_keys_that_change_nothing_pass(said):
    assert untrainable(said, 128) is None
    assert unpacked(said, 128) is None


@pytest.mark.parametrize(("said", "words"), UNPACKED.values(), ids=UNPACKED)
def test_what_our_attention_does_not_do_is_not_packed(said, words):
    assert words in unpacked(said, 128)
    assert untrainable(said, 128) is None


@pytest.mark.parametrize(("said", "words"), REFUSED.values(), ids=REFUSED)
def test_what_acts_is_refused_in_one_sentence(said, words):
    found = untrainable(said, 128)
    assert words in found
    assert "\n" not in found


@pytest.fixture
def quantized(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "quantization_config": {
        "quant_method": "awq"}}))
    return {"model.init.enable": False, "model.model_path": str(tmp_path)}


def test_the_check_before_a_run_says_it_of_the_first_stage_that_trains(quantized):
    (problem,) = [one for one in preflight.check(changed(quantized)).problems if "quantized" in one]
    assert (places([problem]), problem.found) == (["sft: model.model_path"], quantized["model.model_path"])


def found(gpus: Gpus, values: dict) -> list:
    """The problems of the second stage of the default recipe."""
    config = changed(values)
    settings = effective(config, config.stages[1])
    return untrainable_models(settings, settings.model, gpus)


def test_a_stage_that_trains_nothing_takes_any_model_and_a_critic_is_judged_too(quantized):
    assert len(found(NO_GPU, quantized)) == 1
    assert found(NO_GPU, quantized | {"mode": "explore"}) == []
    critic = {"model.critic_model_path": quantized["model.model_path"], "algorithm.advantage_fn": "ppo"}
    (line,) = found(NO_GPU, critic)
    assert line.startswith("model.critic_model_path=")


@pytest.mark.parametrize(("family", "attention", "gpus", "refused"), [
    ("gpt_oss", "auto", NO_GPU, False), ("gpt_oss", "auto", GPU, True), ("gpt_oss", "padded", GPU, False),
    ("gemma2", "auto", GPU, True), ("gemma2", "auto", ELSEWHERE, False), ("gemma2", "varlen", ELSEWHERE, True),
    ("gemma3_text", "auto", GPU, False), ("nemotron_h", "auto", GPU, False)])
def test_packing_is_judged_by_the_attention_of_the_stages_device(quantized, tmp_path, family, attention, gpus, refused):
    """Without flash-attn, a GPU packs by torch's attention, which has neither caps nor sinks."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    config = changed(quantized | {"trainer.packing": "packed", "trainer.attention": attention})
    settings = effective(config, config.stages[1])
    assert bool(untrainable_models(settings, settings.model, gpus)) == refused
