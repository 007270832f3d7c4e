"""Runs rft stages with an adapter as a small card would have to hold them, and compares their memory with such a card.

    python -m benchmarks.gpu_small --root /tmp/small --out small.jsonl
    python -m benchmarks.gpu_small --root /tmp/small --out small.jsonl --only "1.5B, LoRA"
    python -m benchmarks.gpu_small --root /tmp/small --out small.jsonl --only tiny      # on a CPU, to try the script

Random bfloat16 models, one task x 8 responses of 1,024 tokens with 128 of prompt a step, engine and trainer in turns on
one GPU. Printed for each: the largest memory in use on the GPU by NVML, the estimate of `ouro config check`, the memory
of the card that it is for, and the seconds of a step; a line of --out has all steps. Requires vllm, deepspeed,
bitsandbytes and, on a GPU, pynvml.
"""

import argparse
import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path

from benchmarks.gpu_memory import DeviceMemory, estimate
from benchmarks.gpu_path import QUESTION, make_model, make_tasks
from benchmarks.gpu_peers import planned
from benchmarks.gpu_two import LORA, rounded, run

PROMPT, RESPONSE = 128, 1024
IN_TURNS = [LORA, "model.dtype=bfloat16", f"model.max_prompt_tokens={PROMPT}",
            f"model.max_response_tokens={RESPONSE}", "buffer.batch_size=1", "algorithm.repeat_times=8",
            "trainer.overlap=false", "trainer.enable_gradient_checkpointing=true",
            f"trainer.max_token_len_per_gpu={2 * (PROMPT + RESPONSE)}", "trainer.logprob_chunk_tokens=1024",
            "algorithm.optimizer.optimizer_type=adamw8bit", "explorer.rollout_model.engines_per_gpu=1",
            "explorer.rollout_model.max_num_seqs=8", "explorer.rollout_model.kv_cache_mib=768"]
CASES = {  # name -> shape, GiB that may be in use, settings
    "7B, QLoRA": ("Qwen2.5-7B", 23.5, ["model.load_in_4bit=true"]),
    "1.5B, LoRA": ("Qwen2.5-1.5B", 11.5, []),
    "1.5B, QLoRA": ("Qwen2.5-1.5B", 11.5, ["model.load_in_4bit=true"]),
    "tiny": ("tiny", 1.0, [
        "model.load_in_4bit=true", "model.max_response_tokens=32", "model.dtype=bfloat16",
        "explorer.rollout_model.engine_type=transformers", "explorer.rollout_model.kv_cache_mib=null",
        "explorer.rollout_model.gpu_memory_utilization=0.004", "trainer.max_token_len_per_gpu=512"]),
}


def card() -> float | None:
    """GiB of the GPU; None on a CPU."""
    import torch

    return torch.cuda.get_device_properties(0).total_memory / 2**30 if torch.cuda.is_available() else None


def measured(given, name: str) -> dict:
    """One case: its steps, memory and estimate."""
    from ouroboros.pipeline.store import files, records, tables

    shape, limit, overrides = CASES[name]
    model, root, gib = given.root / shape, given.root / f"case{list(CASES).index(name)}", card()
    if not model.exists():
        make_model(model, shape)
    chosen = {one.partition("=")[0]: one for one in (*IN_TURNS, *overrides, *given.overrides)}
    plan, stage = planned(root, model, given.steps, [*chosen.values()])
    plan.freeze()
    make_tasks(Path(next(one for one in plan.stages if one.name == "curate").directory), PROMPT)
    begin, ended = time.time(), []
    for one in plan.stages:  # before the GPU is measured
        if one.kind == "quantized" and not files.is_complete(one.directory):
            ended.append(run([sys.executable, "-m", "ouroboros.stages.quantized", one.directory], root / "output",
                             given.limit))
    quantized = time.time() - begin
    with DeviceMemory() if gib else nullcontext() as memory:
        ended.append(run([sys.executable, "-m", "ouroboros.stages.rft", stage.directory], root / "output", given.limit))
    directory = Path(stage.directory)
    with tables.connect([("gpu", directory)]) as session:
        steps = session.sql(QUESTION).to_arrow_table().to_pylist()
    probes = [tables.read(tables.step_file(directory, "rollouts", step), records.Rollout).to_pylist()[0]
              ["probe_max_difference"] for step in tables.steps_present(directory, "rollouts")]
    found = {"case": name, "limit_gib": limit, "gpu_gib": memory and memory.largest,
             "estimate_gib": estimate(stage.config, model) if gib else None, "ended": ended,
             "quantized_seconds": quantized, "process_seconds": time.time() - begin - quantized,
             "probe": max((one for one in probes if one is not None), default=None), "steps": steps}
    if len(steps) < given.steps:
        found["failed"] = (root / "output").read_text(errors="replace")[-3000:]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="an empty directory for models and results")
    parser.add_argument("--out", type=Path, required=True, help="file to which a JSON line is added for each result")
    parser.add_argument("--only", action="append", choices=CASES, help="default: all but tiny")
    parser.add_argument("--steps", type=int, default=3, help="optimizer steps, the first of which warms up")
    parser.add_argument("--limit", type=float, default=500, help="seconds after which a process is ended")
    parser.add_argument("overrides", nargs="*", help="more settings, key=value")
    given = parser.parse_args()
    given.root.mkdir(parents=True, exist_ok=True)
    for name in given.only or [one for one in CASES if one != "tiny"]:
        found = measured(given, name)
        with given.out.open("a") as file:
            file.write(json.dumps(found) + "\n")
        steps = found.pop("steps")[1:]
        parts = {key: [round(step[key], 2) for step in steps if step[key] is not None] for key in (
            "seconds", "rollout_seconds", "train_seconds", "sync_seconds", "peak_memory_gib")}
        print(json.dumps(rounded(found | parts)), flush=True)


if __name__ == "__main__":
    main()
