"""Measures one of today's kinds of models on one GPU: packed and padded rows, and rft steps of engine and trainer.

    python -m benchmarks.gpu_families --root /tmp/families --out families.jsonl     # or make test-gpu-models
    python -m benchmarks.gpu_families --root /tmp/families --out qwen3_5.jsonl --family qwen3_5 --part rft --limit 560

A random bfloat16 model of a few layers, with the kinds of layers of tests/families.py and the sizes of heads, states,
windows and groups that the published models have (FAMILIES). First the update alone, without an engine: GRPO over 128
rows of 128 prompt and 512 response tokens, packed and by rows, each in its own process. Then one rft stage with
vllm, mode=colocate, one engine, 16 tasks x 8 rollouts of the same lengths a step; qwen3_moe also with its routings
replayed. A limit ends what takes longer. Each step is a line of --out as soon as it is done, so a machine that is lost
keeps what it measured; at the end the last steps are printed as a table. Requires a GPU, vllm and deepspeed.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu_memory import DeviceMemory, estimate
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
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {  # name -> model_type, settings
    "gpt_oss": ("gpt_oss", {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128,
                            "num_local_experts": 8, "num_experts_per_tok": 4, "intermediate_size": 1024,
                            "layer_types": families.WINDOWED, "rope_parameters": YARN}),
    "nemotron_h": ("nemotron_h", {
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "mamba_num_heads": 32,
        "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "chunk_size": 128, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "moe_intermediate_size": 1024, "moe_shared_expert_intermediate_size": 1024,
        "layers_block_type": ["mamba", "moe", "attention", "mamba"]}),
    "gemma3": ("gemma3_text", GEMMA | {"sliding_window": 512}),
    "gemma3_270m": ("gemma3_text", GEMMA | {  # the whole of Gemma 3 270M
        "sliding_window": 512, "vocab_size": 262144, "hidden_size": 640, "intermediate_size": 2048,
        "num_hidden_layers": 18, "layer_types": 3 * GEMMA["layer_types"]}),
    "qwen3_5": ("qwen3_5", QWEN35),
    "qwen3": ("qwen3", {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}),
    "qwen3_moe": ("qwen3_moe", {
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "num_experts": 64,
        "num_local_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 512, "norm_topk_prob": True}),
    "gemma4": ("gemma4_text", GEMMA | {
        "sliding_window": 512, "num_attention_heads": 8, "global_head_dim": 512, "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 32768}),
    "glm4_moe": ("glm4_moe", {
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "n_routed_experts": 32,
        "num_experts_per_tok": 8, "moe_intermediate_size": 512, "use_qk_norm": True, "attention_bias": True}),
    "deepseek_v3": ("deepseek_v3", {
        "num_attention_heads": 16, "num_key_value_heads": 16, "n_routed_experts": 32, "n_group": 4, "topk_group": 2,
        "num_experts_per_tok": 4, "moe_intermediate_size": 512, "first_k_dense_replace": 1, "q_lora_rank": 512,
        "topk_method": "noaux_tc"}),
}
BACKEND = "explorer.rollout_model.extra_engine_args.additional_config.gdn_prefill_backend=triton"
NEEDED = {"qwen3_5": [BACKEND]}  # vLLM's default there compiles a kernel of flashinfer first
ALONE = {"PYTHONUNBUFFERED": "1", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
REPLAYED = "algorithm.enable_router_replay=true"
IN_ORDER = ("qwen3_5", "gpt_oss", "qwen3_moe", "nemotron_h", "gemma3", "gemma4", "glm4_moe", "deepseek_v3")
COLUMNS = {  # of the table -> of a line of --out, or several
    "step, s": ("seconds",), "rollout, tokens/s": ("rollout_tokens_per_second",),
    "update, tokens/s": ("train_tokens_per_second",), "rows": ("packing",),
    "mismatch: mean, max": ("mismatch_mean", "mismatch_max"), "probes": ("probes",),
    "NVML; estimate, GiB": ("gpu_gib", "estimate_gib"), "ended": ("ended",)}


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
    tokenizer(text.get("vocab_size", COMMON["vocab_size"])).save_pretrained(path)


def settings(root: Path, model: Path, given, overrides: list[str]):
    """The configuration of the stage rft."""
    from ouroboros.pipeline.check.judge import compose

    usual = [
        f"checkpoint_root_dir={root}", "project=gpu", "name=family", "mode=colocate", "monitor.monitor_type=none",
        "stages=[{stage_name: rft}]", "model.init.enable=false", f"model.model_path={model}",
        f"model.max_prompt_tokens={given.prompt}", f"model.max_response_tokens={given.response}",
        "buffer.explorer_input.default_reward_fn_type=benchmarks.gpu_path:hash_reward",
        "buffer.explorer_input.eval_tasksets=[]", f"buffer.total_steps={given.steps}",
        f"buffer.batch_size={given.tasks}", "synchronizer.sync_interval=1", "synchronizer.sync_offset=0",
        "algorithm.optimizer.lr=1e-6", "trainer.save_interval=1000",
        "explorer.rollout_model.gpu_memory_utilization=0.4", "explorer.rollout_model.engines_per_gpu=1",
        "trainer.max_token_len_per_gpu=16384"]
    given_too = {one.partition("=")[0] for one in overrides}
    return compose([*(one for one in usual if one.partition("=")[0] not in given_too), *overrides])


def update(given, model: Path) -> None:
    """Steps of the trainer alone, in this process: a line of --out each."""
    import numpy as np
    import torch

    from ouroboros.pipeline.compose.recipe import effective
    from ouroboros.stages import recompute
    from ouroboros.stages.learner import separation
    from ouroboros.stages.learner.actor import Actor
    from ouroboros.stages.learner.engine.batch import Row
    from ouroboros.stages.learner.engine.zero import Process
    from ouroboros.stages.learner.objective import Objective

    asked = settings(model.parent, model, given, [f"trainer.packing={given.one}", *given.overrides])
    config, process = effective(asked, asked.stages[0]), Process.start(1)
    recompute.resolve(config, model, False)
    actor, objective = Actor(model, config, process), Objective(config)
    random, both = np.random.default_rng(0), given.prompt + given.response
    separation.prove_policy(actor, config, random.integers(5, COMMON["vocab_size"], 2 * both).tolist())
    rows = [Row(f"r{i}", random.integers(5, COMMON["vocab_size"], both).tolist(), given.prompt, [1] * given.response,
                {"advantages": [1.0, -1.0][i % 2]}) for i in range(8 * given.tasks)]
    for row, values in zip(rows, actor.score_rows(rows), strict=True):
        row.columns |= dict.fromkeys(("rollout_logprobs", "old_logprobs"), row.spread(values))
    for number in range(1, given.steps + 2):
        begin = time.perf_counter()
        result = actor.step(rows, objective, 1e-6, number)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        note(given, part=f"update-{given.one}", packing=actor.way.name, why=actor.way.why, step=number, seconds=seconds,
             train_tokens_per_second=result.tokens / seconds, loss=result.loss, grad_norm=result.grad_norm,
             peak_gib=actor.peak_memory_gib())
    process.stop()


def rollouts(given, model: Path, part: str, overrides: list[str]) -> None:
    """One rft stage in its own processes: a line of --out for each step, and one of how it ended."""
    from ouroboros.pipeline.plan.plan import make_plan
    from ouroboros.pipeline.store import records, tables

    root = given.root / given.family / part
    question = QUESTION.replace("compiled_graphs\n", "compiled_graphs, packing, mismatch_p95, routed_differently\n")
    plan = make_plan(settings(root, model, given, overrides))
    plan.freeze()
    make_tasks(Path(next(s for s in plan.stages if s.name == "curate").directory))
    stage, seen = next(s for s in plan.stages if s.name == "rft"), 0
    directory = Path(stage.directory)

    def follow() -> None:
        nonlocal seen
        if len(tables.steps_present(directory, "steps")) == seen:
            return
        with tables.connect([("gpu", directory)]) as session:
            made = session.sql(question).to_arrow_table().to_pylist()
        for row in made[seen:]:
            note(given, part=part, **row)
        seen = len(made)

    with DeviceMemory() as memory:
        limited(given, part, [sys.executable, "-m", "ouroboros.stages.rft", str(directory)], follow)
    probes = [tables.read(tables.step_file(directory, "rollouts", step), records.Rollout).to_pylist()[0]
              ["probe_max_difference"] for step in tables.steps_present(directory, "rollouts")]
    logs = {path.name: path.read_text(errors="replace")[-1500:] for path in directory.glob("*.log")}
    note(given, part=part, probes=probes, gpu_gib=memory.largest, estimate_gib=estimate(stage.config, model),
         **({} if seen == given.steps else {"logs": logs}))


def limited(given, part: str, words: list[str], each: Callable[[], None] = lambda: None) -> None:
    """A command, and a line of --out of how it ended; its output is next to --out."""
    output = given.out.with_name(f"{given.out.stem}-{given.family}-{part}.log")
    ended = run_limited(words, output, given.limit, each, env=ALONE | os.environ)
    tail = {} if ended == "exit code 0" else {"output": output.read_text(errors="replace")[-1500:]}
    note(given, part=part, ended=ended, **tail)


def note(given, **fields) -> None:
    line = json.dumps({"family": given.family} | {name: float(f"{value:.5g}") if isinstance(value, float) else value
                       for name, value in fields.items()})
    with given.out.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="a directory for the model and the stages' results")
    parser.add_argument("--family", choices=FAMILIES, action="append", help=f"default: {', '.join(IN_ORDER)}")
    parser.add_argument("--out", type=Path, required=True, help="file to which a JSON line is added for each step")
    parser.add_argument("--part", action="append", choices=("update", "rft", "replayed"), help="default: all")
    parser.add_argument("--steps", type=int, default=2, help="optimizer steps of a stage; the update makes one more")
    parser.add_argument("--tasks", type=int, default=16, help="of a step, with 8 rollouts each")
    parser.add_argument("--prompt", type=int, default=128, help="tokens; tasks have 128")
    parser.add_argument("--response", type=int, default=512, help="tokens")
    parser.add_argument("--limit", type=float, default=280, help="seconds after which a process is ended")
    parser.add_argument("--one", choices=("packed", "rows", "auto"), help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*", help="more settings, key=value")
    given = parser.parse_args()
    given.root.mkdir(parents=True, exist_ok=True)
    asked = given.family or IN_ORDER
    if given.one:  # the process of one update, of the last family
        given.family = asked[-1]
        update(given, given.root / given.family / "model")
        return
    for family in asked:
        given.family = family
        measure(given)
    table(given.out)


def measure(given) -> None:
    """The parts of one family."""
    model = given.root / given.family / "model"
    if not model.exists():
        make(given.family, model)
    parts = given.part or ["update", "rft", *["replayed"] * (given.family == "qwen3_moe")]
    if "update" in parts:
        for packing in ("auto", "rows"):
            limited(given, f"update-{packing}", [sys.executable, "-m", "benchmarks.gpu_families", *sys.argv[1:],
                                                 "--family", given.family, "--one", packing])
    for part in (part for part in parts if part != "update"):
        rollouts(given, model, part, [*NEEDED.get(given.family, []), *given.overrides,
                                      *[REPLAYED] * (part == "replayed")])


def table(out: Path) -> None:
    """Prints the last step of each family and part."""
    found: dict[tuple[str, str], dict] = {}
    for line in map(json.loads, out.read_text().splitlines()):
        found.setdefault((line.get("family", ""), line["part"]), {}).update(line)
    print("\n| | " + " | ".join(COLUMNS) + " |\n|" + "---|" * (1 + len(COLUMNS)))
    for (family, part), line in found.items():
        cells = ("; ".join(str(line.get(key, "")) for key in keys) for keys in COLUMNS.values())
        print(f"| {family}, {part} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
