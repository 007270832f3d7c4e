"""Measures rft steps of today's kinds of models on one GPU: engine against trainer, and packed rows beside rows.

    python -m benchmarks.gpu_families --root /tmp/families --out families.json

Random bfloat16 models of a few layers, with the kinds of layers of tests/families.py and the sizes of heads, states,
windows and groups that the published models have (FAMILIES). 16 tasks x 8 rollouts of 128 prompt and 512 response
tokens (65,536 tokens) a step, mode=colocate, one engine; each variant in a process of its own, which a limit ends. A
variant that vllm does not answer for is run again with the transformers engine. Speeds are medians of the steps after
the first. Requires a GPU, vllm and deepspeed.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpu_path import QUESTION, make_tasks, tokenizer
from benchmarks.gpu_peers import run_limited
from tests import families

COMMON = {"vocab_size": 32768, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 4,
          "max_position_embeddings": 4096, "eos_token_id": 1, "pad_token_id": 0, "bos_token_id": None,
          "initializer_range": 0.02}
YARN = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "truncate": False, "original_max_position_embeddings": 4096}
GEMMA = {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "query_pre_attn_scalar": 256,
         "num_hidden_layers": 6, "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
         "intermediate_size": 4096}
QWEN35 = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "layer_types": families.LINEAR,
          "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
          "linear_value_head_dim": 128, "partial_rotary_factor": 0.25}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {  # name -> family of transformers, settings
    "gpt-oss": ("gpt_oss", {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128,
                            "num_local_experts": 8, "num_experts_per_tok": 4, "intermediate_size": 1024,
                            "layer_types": families.WINDOWED, "rope_parameters": YARN}),
    "Nemotron-H": ("nemotron_h", {
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "mamba_num_heads": 32,
        "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "chunk_size": 128, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "moe_intermediate_size": 1024, "moe_shared_expert_intermediate_size": 1024,
        "layers_block_type": ["mamba", "moe", "attention", "mamba"]}),
    "Gemma 3, window 1024": ("gemma3_text", GEMMA | {"sliding_window": 1024}),
    "Gemma 3, window 512": ("gemma3_text", GEMMA | {"sliding_window": 512}),
    "Qwen3.5": ("qwen3_5", QWEN35),
    "Qwen3": ("qwen3", {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}),
    "Qwen3-MoE": ("qwen3_moe", {
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "num_experts": 64,
        "num_local_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 512, "norm_topk_prob": True}),
}
BACKEND = "explorer.rollout_model.extra_engine_args.additional_config.gdn_prefill_backend=triton"
NEEDED = {"Qwen3.5": {"vllm": [BACKEND]}}  # vLLM's default there compiles a kernel of flashinfer first
VARIANTS = {name: (name, []) for name in FAMILIES} | {  # name -> model, settings; `rows` beside what is packed
    f"{name}, by rows": (name, ["trainer.packing=rows"]) for name in ("Gemma 3, window 1024", "Qwen3")} | {
    "Qwen3-MoE, routings replayed": ("Qwen3-MoE", ["algorithm.enable_router_replay=true"])}


def make(name: str, path: Path) -> None:
    """Writes the model of FAMILIES, with a small tower where the family reads images too, and a tokenizer."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText

    family, settings = FAMILIES[name]
    seeing = family in families.SEEING
    known = set(CONFIG_MAPPING[families.SEEING[family][0] if seeing else family]().to_dict())
    text = {key: value for key, value in COMMON.items() if key in known} | settings
    if seeing:
        tower = {**families.TOWER, "out_hidden_size": COMMON["hidden_size"]}
        has = set(CONFIG_MAPPING[family]().vision_config.to_dict())
        config = CONFIG_MAPPING[family](text_config=text, eos_token_id=1, pad_token_id=0, vision_config={
            key: value for key, value in tower.items() if key in has})
    else:
        config = CONFIG_MAPPING[family](**text)
    torch.manual_seed(0)
    kind = AutoModelForImageTextToText if seeing else AutoModelForCausalLM
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        kind.from_config(config, dtype=torch.bfloat16).save_pretrained(path)
    tokenizer(COMMON["vocab_size"]).save_pretrained(path)


def measure(root: Path, model: Path, given, overrides: list[str]) -> dict:
    """One rft stage: its steps, or the end of its output."""
    from pipeline.check.judge import compose
    from pipeline.plan.plan import make_plan
    from pipeline.store import records, tables

    plan = make_plan(compose([
        f"checkpoint_root_dir={root}", "project=gpu", "name=family", "mode=colocate", "monitor.monitor_type=none",
        "stages=[{stage_name: rft}]", "model.init.enable=false", f"model.model_path={model}",
        f"model.max_prompt_tokens={given.prompt}", f"model.max_response_tokens={given.response}",
        "buffer.explorer_input.default_reward_fn_type=benchmarks.gpu_path:hash_reward",
        "buffer.explorer_input.eval_tasksets=[]", f"buffer.total_steps={given.steps}",
        f"buffer.batch_size={given.tasks}", "synchronizer.sync_interval=1", "synchronizer.sync_offset=0",
        "algorithm.optimizer.lr=1e-6", "trainer.save_interval=1000",
        "explorer.rollout_model.gpu_memory_utilization=0.4", "explorer.rollout_model.engines_per_gpu=1",
        "trainer.max_token_len_per_gpu=16384", *overrides]))
    plan.freeze()
    make_tasks(Path(next(s for s in plan.stages if s.name == "curate").directory))
    directory = Path(next(s for s in plan.stages if s.name == "rft").directory)
    ended = run_limited([sys.executable, "-m", "stages.rft", str(directory)], root / "output", given.limit)
    with tables.connect([("gpu", directory)]) as session:
        question = QUESTION.replace("loss\n", "loss, packing, mismatch_p95, routed_differently\n")
        rows = session.sql(question).to_arrow_table().to_pylist()
    probes = [tables.read(tables.step_file(directory, "rollouts", step), records.Rollout).to_pylist()[0]
              ["probe_max_difference"] for step in tables.steps_present(directory, "rollouts")]
    found = {"ended": ended, "steps": rows, "probes": probes}
    logs = [path.read_text(errors="replace")[-3000:] for path in directory.glob("*.log")]
    return found if len(rows) == given.steps else found | {"failed": "\n".join(
        [(root / "output").read_text(errors="replace")[-2500:], *logs])}


def line(name: str, found: dict) -> dict:
    if "failed" in found:
        return {"variant": name, "engine": found["engine"], "failed": found["failed"][-600:]}
    later = found["steps"][1:]
    middle = {part: median(step[part] for step in later) for part in (
        "seconds", "rollout_tokens_per_second", "train_tokens_per_second", "mismatch_mean", "mismatch_p95")}
    return {"variant": name, "engine": found["engine"], "packing": later[-1]["packing"],
            **{part: float(f"{value:.4g}") for part, value in middle.items()},
            "routed_differently": later[-1]["routed_differently"],
            "mismatch_max": max(step["mismatch_max"] for step in found["steps"]),
            "probe": max(one for one in found["probes"] if one is not None)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="an empty directory for models and results")
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the figures and the steps of each run")
    parser.add_argument("--steps", type=int, default=3, help="optimizer steps, the first of which warms up")
    parser.add_argument("--tasks", type=int, default=16, help="of a step, with 8 rollouts each")
    parser.add_argument("--prompt", type=int, default=128, help="tokens; tasks have 128")
    parser.add_argument("--response", type=int, default=512, help="tokens")
    parser.add_argument("--limit", type=float, default=120, help="seconds after which a variant is ended")
    parser.add_argument("--only", action="append", choices=VARIANTS, help="what to measure; default: all")
    parser.add_argument("overrides", nargs="*", help="more settings, key=value")
    given = parser.parse_args()
    made = {}
    for index, (name, (shape, settings)) in enumerate(VARIANTS.items()):
        if given.only and name not in given.only:
            continue
        model = given.root / shape.replace(" ", "_").replace(",", "")
        if not model.exists():
            make(shape, model)
        for engine in ("vllm", "transformers"):
            asked = [*settings, f"explorer.rollout_model.engine_type={engine}",
                     *NEEDED.get(name, {}).get(engine, []), *given.overrides]
            made[name, engine] = {"engine": engine} | measure(given.root / f"v{index}-{engine}", model, given, asked)
            print(json.dumps(line(name, made[name, engine])), flush=True)
            given.out.write_text(json.dumps([line(one, run) | run for (one, _), run in made.items()], indent=1))
            if "failed" not in made[name, engine]:
                break


if __name__ == "__main__":
    main()
