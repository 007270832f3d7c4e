"""Arguments of vLLM that other settings decide are refused, with that setting."""

import pytest

from ouroboros.pipeline.check import engine
from ouroboros.pipeline.job.devices import Gpus
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.explorer import OWN_ENGINE_ARGS, why_absent
from ouroboros.pipeline.settings.schema import unknown
from ouroboros.workflows.engines.vllm_engine import _arguments
from tests.configs import changed, check, lora, overridden

KEY = "explorer.rollout_model.extra_engine_args"


@pytest.mark.parametrize("name", OWN_ENGINE_ARGS)
def test_what_another_setting_decides_is_refused_with_its_name(name):
    (problem,) = check(changed({KEY: {name: "raw_logprobs"}}))
    assert (problem.key, problem.found) == (f"{KEY}.{name}", "raw_logprobs")
    assert problem.do == (f"Set {OWN_ENGINE_ARGS[name]}." if OWN_ENGINE_ARGS[name] else "Leave it out.")


def test_all_that_are_refused_are_problems_of_their_own():
    assert [one.key for one in check(changed({KEY: {"seed": 1, "dtype": "half", "block_size": 16}}))] == [
        f"{KEY}.dtype", f"{KEY}.seed"]


@pytest.mark.parametrize(("given", "path"), [
    *(({name: value}, name) for name, value in (
        ("quantization", "fp8"), ("quantization_config", {"linear": "fp8"}), ("kv_cache_dtype", "fp8"),
        ("calculate_kv_scales", True), ("mamba_ssm_cache_dtype", "float16"),
        ("speculative_config", {"method": "ngram"}), ("spec_tokens", 3), ("spec_model", "small"),
        ("load_format", "dummy"), ("load_format", "bitsandbytes"), ("model_weights", "elsewhere"),
        ("lora_dtype", "float16"), ("linear_backend", "marlin"), ("disable_sliding_window", True))),
    # within a mapping
    ({"attention_config": {"use_prefill_query_quantization": True}}, "attention_config.use_prefill_query_quantization"),
    ({"attention_config": {"indexer_kv_dtype": "mxfp4"}}, "attention_config.indexer_kv_dtype"),
    ({"attention_config": {"use_non_causal": True}}, "attention_config.use_non_causal"),
    ({"kernel_config": {"moe_backend": "emulation"}}, "kernel_config.moe_backend"),
    ({"kernel_config": {"linear_backend_per_quant": {"fp8": "triton"}}}, "kernel_config.linear_backend_per_quant"),
    ({"compilation_config": {"pass_config": {"fuse_attn_quant": True}}},
     "compilation_config.pass_config.fuse_attn_quant"),
    ({"compilation_config": {"inductor_passes": {"mine": "m.f"}}}, "compilation_config.inductor_passes"),
    ({"additional_config": {"x": {"kv_cache_dtype": "fp8"}}}, "additional_config.x.kv_cache_dtype"),
    # what chooses among kernels alone, and the engine as it is
    *((given, None) for given in (
        {"attention_config": {"backend": "FLASH_ATTN", "disable_flashinfer_q_quantization": True}},
        {"kernel_config": {"moe_backend": "triton", "linear_backend": "auto"}}, {"disable_sliding_window": False},
        {"compilation_config": {"cudagraph_mode": "NONE", "pass_config": {"fuse_attn_quant": False}}},
        {"additional_config": {"gdn_prefill_backend": "triton"}}, {"quantization": None}, {"kv_cache_dtype": "auto"},
        {"load_format": "safetensors"}, {"enable_prefix_caching": False}, {"mamba_ssm_cache_dtype": "float32"},
        {"kv_cache_dtype": "bfloat16"}, {"load_format": "runai_streamer"}))])
def test_an_engine_that_was_not_proved_to_answer_like_the_trainer_is_refused(given, path):
    assert [problem.key for problem in check(changed({KEY: given}))] == [f"{KEY}.{path}"] * bool(path)


@pytest.mark.parametrize("key", [
    "explorer.rollout_model.quantization", "explorer.rollout_model.speculative_config", "model.load_in_4bit",
    "explorer.rollout_model.kv_cache_dtype", "actor_rollout_ref.rollout.quantization", "trainer.quantization",
    "explorer.rollout_model.load_in_4bit", "explorer.auxiliary_models.0.quantization"])
def test_a_key_that_would_quantize_or_guess_tokens_ahead_has_its_reason(key):
    problem = unknown(key)
    assert problem.needed.endswith(why_absent(key))
    assert problem.do == "Leave it out."


def test_what_neither_quantizes_nor_guesses_has_another_reason_and_other_unknown_keys_have_none():
    def reason(name, value):
        return check(changed({KEY: {name: value}}))[0].needed

    fewer, guessed = reason("kv_cache_dtype", "fp8"), reason("speculative_config", {"method": "ngram"})
    others = {reason(*one) for one in (("sliding_window", 5), ("watermark_config", {"x": 1}), ("load_format", "dummy"))}
    assert (fewer, len(others)) == (guessed, 1)
    assert fewer not in others
    assert not any(map(why_absent, ("explorer.rollout_model.engine_nums", "model.sliding_window", "trainer.rank")))


CPU, GPU = Gpus(0, None, False), Gpus(1, 80.0, True)
ENGINE = "explorer.rollout_model"


@pytest.mark.parametrize(("settings", "gpus", "keys"), [
    ({KEY: {"blok_size": 16}}, GPU, [f"{KEY}.blok_size"]),
    ({KEY: {"block_size": "banana"}}, GPU, [f"{KEY}.block_size"]),
    ({KEY: {"enable_prefix_caching": 1}}, GPU, [f"{KEY}.enable_prefix_caching"]),
    ({KEY: {"block_size": 16, "cpu_offload_gb": 1, "max_num_batched_tokens": 8192}}, GPU, []),
    *(({KEY: {name: value}}, GPU, [f"{KEY}.{name}"]) for name, value in (
        ("max_num_batched_tokens", -4), ("max_num_batched_tokens", 0), ("max_num_batched_tokens", "many"),
        ("max_num_batched_tokens", 8), ("block_size", 0), ("cpu_offload_gb", -1), ("kv_cache_dtype", "fp9"),
        ("scheduling_policy", "best"))),
    ({"explorer.tool_call_parser": "hermess"}, GPU, ["explorer.tool_call_parser"]),
    ({"explorer.tool_call_parser": "hermes"}, GPU, []),
    ({f"{ENGINE}.batch_invariant": True}, CPU, [f"{ENGINE}.batch_invariant"]),
    ({f"{ENGINE}.batch_invariant": True}, GPU, []),
    ({f"{ENGINE}.kv_cache_mib": 10**9}, CPU, [f"{ENGINE}.kv_cache_mib"]),
    ({f"{ENGINE}.engine_type": "transformers", f"{ENGINE}.tensor_parallel_size": 2}, GPU,
     [f"{ENGINE}.tensor_parallel_size"]),
    ({"trainer.attention": "varlen"}, CPU, ["trainer.attention"]), ({"trainer.attention": "varlen"}, GPU, []),
    ({"trainer.attention": "padded"}, CPU, [])])
def test_what_an_engine_or_a_trainer_would_refuse_at_its_start(settings, gpus, keys):
    assert [problem.key for problem in engine.unfit_engine(changed(settings), gpus)] == keys


def test_arguments_of_vllm_beside_another_engine_are_a_warning():
    other = {f"{ENGINE}.engine_type": "transformers", KEY: {"block_size": 16}}
    assert [problem.key for problem in engine.of_stage(changed(other), None, CPU, False)["warnings"]] == [KEY]
    assert engine.unfit_engine(changed(other), CPU) == []
    assert "'priority'?" in engine.unfit_engine(changed({KEY: {"scheduling_policy": "prioritty"}}), GPU)[0]


@pytest.mark.parametrize("gpu", [True, False])
def test_the_list_has_every_argument_that_an_engine_is_started_with(gpu, tiny_model):
    config = overridden()
    own = _arguments(tiny_model, config, gpu, True, lora(lora_rank=8)).keys()
    # a user may set the first on a machine with a GPU, the second anywhere
    assert own - {"enable_chunked_prefill", "block_size"} <= OWN_ENGINE_ARGS.keys()
    assert "enable_chunked_prefill" not in own or not gpu


def test_the_settings_that_it_names_exist():
    named = {word.strip(",()") for use in OWN_ENGINE_ARGS.values() if use for word in use.split() if "." in word}
    for key in named:
        section = Config
        for part in key.partition("=")[0].split("."):
            assert part in section.model_fields, key
            section = section.model_fields[part].annotation


@pytest.mark.parametrize(("kind", "image_key", "refused"), [
    ("qwen3_vl", "photo", True), ("qwen3_vl", None, False), ("qwen2_5_vl", "photo", False)])
def test_images_that_vllm_reads_otherwise_than_the_trainer(kind, image_key, refused):
    config = changed({"explorer.rollout_model.engine_type": "vllm",
                      "buffer.explorer_input.taskset.format.image_key": image_key})
    found = engine.of_stage(config, {"model_type": kind}, Gpus(1, 80.0, True), False)["problems"]
    assert [problem.key for problem in found if problem] == ["explorer.rollout_model.engine_type"] * refused
