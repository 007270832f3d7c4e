"""Parameters counted from config.json, against numbers worked out by hand and against transformers itself."""

import json

import pytest

from pipeline.settings.lora import adapter_parameters
from pipeline.store.errors import ModelError
from pipeline.store.model_shape import (
    CHARACTERS,
    Shape,
    absent_model,
    read_config,
    read_shape,
    room_problem,
    shape_at,
    shape_of,
    shape_of_init,
    split_problem,
    uncounted,
    wrong_model,
)
from tests.configs import composed

QWEN2 = {"model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
         "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": True,
         "max_position_embeddings": 32768}
QWEN3 = {**QWEN2, "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
         "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072}
LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
         "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}


@pytest.mark.parametrize(("config", "layer", "parameters"), [
    # Qwen2.5-0.5B, heads 64 wide: q 896 x 896 + 896 = 803,712; k and v 896 x 128 + 128 = 114,816 each; o 802,816;
    # MLP 3 x 896 x 4864 = 13,074,432; norms 1,792. Embedding 151,936 x 896 = 136,134,656, once; last norm 896
    (QWEN2, 14_912_384, 136_134_656 + 24 * 14_912_384 + 896),
    # untied: the head as large as the embedding
    ({**QWEN2, "tie_word_embeddings": False}, 14_912_384, 2 * 136_134_656 + 24 * 14_912_384 + 896),
    # Qwen3-0.6B: q and o 1024 x 2048 = 2,097,152 each; k and v 1024 x 1024 = 1,048,576 each; MLP 9,437,184;
    # norms 2,048; norms of the heads 2 x 128
    (QWEN3, 2 * 2_097_152 + 2 * 1_048_576 + 9_437_184 + 2_048 + 256, 596_049_920),
    # Llama-3-8B, as its card says 8.03 billion
    (LLAMA, 218_112_000, 8_030_261_248),
])
def test_parameters_are_those_worked_out_by_hand(config, layer, parameters):
    shape = shape_of(config)
    assert shape.layer == layer
    assert shape.parameters == parameters


def test_the_model_that_is_made_has_the_parameters_that_are_counted(tiny_model, tiny_settings):
    model = json.loads((tiny_model / "config.json").read_text())
    from safetensors import safe_open

    with safe_open(tiny_model / "model.safetensors", "pt") as file:
        held = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118 - no mapping
    assert shape_of(model).parameters == held
    assert model["vocab_size"] == CHARACTERS
    init = {**composed()["model"], "init": {**composed()["model"]["init"], "num_hidden_layers": 2,
                                            "num_key_value_heads": 1}}
    assert shape_of_init(init).parameters == held


@pytest.mark.parametrize("config", [
    {}, {"model_type": "gpt2", "n_embd": 768}, {**LLAMA, "model_type": "mixtral"}, {**QWEN3, "num_experts": 128},
    {**QWEN3, "model_type": ["qwen3"]},
    {**QWEN2, "hidden_size": None}])
def test_a_shape_that_is_not_counted_is_unknown(config):
    assert shape_of(config) is None


TINY = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 48, "vocab_size": 100, "num_experts_per_tok": 2}
QWEN_EXPERTS = {**TINY, "num_experts": 6, "moe_intermediate_size": 20}
DEEPSEEK = {**TINY, "num_key_value_heads": 4, "n_routed_experts": 6, "n_shared_experts": 2, "moe_intermediate_size": 20,
            "first_k_dense_replace": 1, "kv_lora_rank": 12, "q_lora_rank": 10, "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 4, "v_head_dim": 6}
MIXTURES = [
    {**TINY, "model_type": "mixtral", "num_local_experts": 6},
    {**QWEN_EXPERTS, "model_type": "qwen2_moe", "shared_expert_intermediate_size": 28, "decoder_sparse_step": 2},
    {**QWEN_EXPERTS, "model_type": "qwen2_moe", "shared_expert_intermediate_size": 28, "qkv_bias": False},
    {**QWEN_EXPERTS, "model_type": "qwen3_moe", "head_dim": 16, "mlp_only_layers": [0, 2], "tie_word_embeddings": True},
    {**DEEPSEEK, "model_type": "deepseek_v2", "q_lora_rank": None},
    {**DEEPSEEK, "model_type": "deepseek_v3"},
]


@pytest.mark.parametrize("config", MIXTURES, ids=lambda config: config["model_type"])
def test_models_with_experts_have_the_parameters_that_transformers_makes(config):
    """Those of the model on torch's meta device, and of the linear layers that an adapter may stand beside."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    given = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **given))
    shape = shape_of(config)
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert shape.critic == sum(p.numel() for p in model.model.parameters()) + 32 + 1
    linear = [m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"]
    everywhere = {"lora_rank": 3, "target_modules": "all-linear", "exclude_modules": []}
    assert adapter_parameters(shape, everywhere) == sum(3 * (m.in_features + m.out_features) for m in linear)


@pytest.mark.parametrize(("config", "billions"), [
    # by their cards: Mixtral 8x7B, 46.7 billion; Qwen3-30B-A3B, 30.5; DeepSeek-V3, 671
    ({**LLAMA, "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2}, 46.7),
    ({**QWEN3, "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
      "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
      "tie_word_embeddings": False}, 30.5),
    ({"model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
      "num_key_value_heads": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
      "n_shared_experts": 1, "vocab_size": 129280, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
      "qk_rope_head_dim": 64, "v_head_dim": 128}, 671.0),
])
def test_published_models_with_experts_have_the_size_of_their_cards(config, billions):
    assert shape_of(config).parameters / 1e9 == pytest.approx(billions, abs=0.06)


def test_what_is_not_counted_is_named():
    assert uncounted({"model_type": "qwen2_5_vl"}).startswith("its model_type is qwen2_5_vl; counted are llama, ")
    assert uncounted({**LLAMA, "model_type": "mixtral"}) == (
        "its model_type is mixtral, and its config.json does not say num_local_experts, num_experts_per_tok")
    assert uncounted({**QWEN3, "num_experts": 128}).endswith("is qwen3, and it has num_experts: a qwen3 has no experts")
    assert uncounted(QWEN3) is None


def test_a_size_of_the_experts_that_is_no_number_is_an_error(tmp_path):
    wrong = {**MIXTURES[3], "num_experts": "6", "mlp_only_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(wrong))
    with pytest.raises(ModelError, match="has num_experts='6', mlp_only_layers=2; needed whole numbers"):
        read_config(str(tmp_path))


@pytest.mark.parametrize(("config", "key"), [
    (MIXTURES[5], "first_k_dense_replace"), (MIXTURES[5], "num_experts_per_tok"), (MIXTURES[3], "decoder_sparse_step")])
def test_a_size_that_may_be_absent_may_not_be_null(tmp_path, config, key):
    """transformers puts its own value in place of an absent one only; with null it cannot build the model."""
    (tmp_path / "config.json").write_text(json.dumps({**config, key: None}))
    assert wrong_model(str(tmp_path)).endswith(f"config.json there has {key}=None; needed whole numbers.")
    assert shape_at(str(tmp_path)) is None
    (tmp_path / "config.json").write_text(json.dumps({name: value for name, value in config.items() if name != key}))
    assert wrong_model(str(tmp_path)) is None
    assert shape_at(str(tmp_path)) is not None


def test_a_model_that_is_not_here_has_no_shape(tmp_path):
    model = {"init": {"enable": False}, "model_path": str(tmp_path)}
    assert read_shape(model) is None
    (tmp_path / "config.json").write_text(json.dumps(QWEN2))
    assert read_shape(model) == Shape(151936, 896, 24, 14, 2, 64, 4864, True, True, False, 32768)
    assert read_shape({"init": {"enable": False}, "model_path": None}) is None


def test_room_is_judged_by_the_longest_sequence():
    model = {"max_model_len": None, "max_prompt_tokens": 1000, "max_response_tokens": 25}
    assert room_problem("/m", model, 1025) is None
    assert room_problem("/m", model, None) is None
    assert "=/m: it has room for 1024 tokens (max_position_embeddings), and" in room_problem("/m", model, 1024)
    assert "or prompt + response, is 2048." in room_problem("/m", {**model, "max_model_len": 2048}, 1025)


@pytest.mark.parametrize(("parts", "fits"), [(1, True), (2, True), (7, False), (14, True), (4, False)])
def test_heads_are_cut_evenly(parts, fits):
    """14 heads, 2 key/value heads: 7 parts would leave 2 key/value heads for 7, 14 give each to seven."""
    problem = split_problem(shape_of(QWEN2), parts)
    assert (problem is None) == fits
    assert fits or f"tensor_parallel_size={parts}: the model has 14 attention heads and 2" in problem
    assert fits or "needed one of 1, 2, 14." in problem


def test_a_directory_that_is_there_is_no_name_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "an id of the hub (org/name)" in absent_model("org/name")
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert "org/name: the directory is empty" in absent_model("org/name")
    (tmp_path / "org" / "name" / "tokenizer.json").write_text("{}")
    assert "org/name: the directory has no config.json" in absent_model("org/name")
    assert "hf download" not in absent_model("org/name")
    assert "it is a file" in absent_model("org/name/tokenizer.json")
