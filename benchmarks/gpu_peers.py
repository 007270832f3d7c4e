"""Measures a whole GRPO step on one GPU: this tree, an older one, TRL and verl with vLLM, in turns on one machine.

    python -m benchmarks.gpu_peers --root /tmp/peers --only 'this tree' --only 'TRL, tuned' --steps 7 --out peers.json

The same for all: a random model in the shape of Qwen2.5-0.5B (bfloat16) with a tokenizer of 151,936 words, 64 prompts x
8 responses of 128 and 512 tokens, a hash of the response as reward (0 or 1), one update per step with AdamW at 1e-6,
temperature 1, no KL term, engine and trainer on one GPU. Each run is a separate process; peers have two rows, one as
their documents advise and one as a user who knows them sets it (TRL, VERL below), and ours runs also with rollouts one
step ahead of the trainer, in turns and at once (AHEAD), and on two GPUs (TWO_GPUS). Seconds of a step: ours from the
tables of the stage, which include writing every rollout and a proven hand-over of the weights in a file; TRL's between
its callbacks of step begin and end, after a synchronisation; verl's as it prints them. The first step of each run is
left out. Memory is NVML's for the whole device, from the start of a process to its end, and so counts engines,
trainer and CUDA contexts alike. A run that reaches its limit keeps the steps that it ended. Requires a GPU, vllm,
deepspeed and pynvml; for TRL the packages of benchmarks/requirements-trl.txt and liger-kernel, for verl those that
benchmarks/verl_grpo.py names.
"""

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.gpu_path import PROMPT_TOKENS, QUESTION, RESPONSE_TOKENS, TASKS, make_model, make_tasks

DOCUMENTED = {}  # the example for a colocated engine in TRL's vllm_integration.md: defaults for everything else
TUNED = {"gradient_checkpointing": False, "vllm_enable_sleep_mode": False, "vllm_gpu_memory_utilization": 0.25,
         "vllm_max_model_length": PROMPT_TOKENS + RESPONSE_TOKENS, "use_liger_kernel": True,
         "generation_kwargs": {"detokenize": False}}
TRL = {"TRL, as documented": {"trl": DOCUMENTED}, "TRL, tuned": {"trl": TUNED}}
VERL = {"verl, as documented": {"verl": []},
        "verl, bypass_mode": {"verl": ["algorithm.rollout_correction.bypass_mode=True"]}}
OVERLAP = ["synchronizer.sync_offset=1", "trainer.overlap=true",
           "explorer.rollout_model.kv_cache_mib=2304"]  # each of two engines: 256 rows of 640 tokens, 12 KiB a token
TWO = ["trainer.ranks=2", "explorer.rollout_model.engine_num=2"]
AHEAD = {"this tree, one step ahead": {"overrides": ["synchronizer.sync_offset=1", "trainer.overlap=false"]},
         "this tree, overlapping": {"overrides": OVERLAP}}
TWO_GPUS = {"two GPUs, in turns": {"overrides": TWO}, "two GPUs, overlapping": {"overrides": TWO + OVERLAP}}
OTHER = {"overrides": ["trainer.enable_gradient_checkpointing=true"]}  # as in its benchmarks/gpu_path.py
PARTS = ("rollout_seconds", "train_seconds", "publish_seconds", "sync_seconds", "train_other_seconds",
         "explore_other_seconds")


def planned(root: Path, model: Path, steps: int, overrides: Sequence[str]):
    """The plan of a run of one rft stage with these overrides, and that stage."""
    from ouroboros.pipeline.check.judge import compose
    from ouroboros.pipeline.plan.plan import make_plan

    usual = [
        f"checkpoint_root_dir={root}", "project=gpu", "name=peers", "mode=colocate", "monitor.monitor_type=none",
        "stages=[{stage_name: rft}]", "model.init.enable=false", f"model.model_path={model}",
        f"model.max_prompt_tokens={PROMPT_TOKENS}", f"model.max_response_tokens={RESPONSE_TOKENS}",
        "buffer.explorer_input.default_reward_fn_type=benchmarks.gpu_path:hash_reward",
        "buffer.explorer_input.eval_tasksets=[]", f"buffer.total_steps={steps}", "buffer.batch_size=64",
        "synchronizer.sync_offset=0", "synchronizer.sync_interval=1", "algorithm.optimizer.lr=1e-6",
        "explorer.rollout_model.gpu_memory_utilization=0.4", "explorer.rollout_model.max_num_seqs=512",
        "trainer.max_token_len_per_gpu=32768", "trainer.save_interval=1000"]
    changed = {override.partition("=")[0] for override in overrides}
    plan = make_plan(compose([*(one for one in usual if one.partition("=")[0] not in changed), *overrides]))
    return plan, next(stage for stage in plan.stages if stage.name == "rft")


def ours(root: Path, model: Path, given, overrides: tuple[str, ...] = ()) -> list[dict]:
    """Runs one rft stage; returns its steps. Called with the code of the tree in the current directory."""
    from ouroboros.pipeline.store import tables

    plan, stage = planned(root, model, given.steps, overrides)
    plan.freeze()
    make_tasks(Path(next(s for s in plan.stages if s.name == "curate").directory))
    ended = run_limited([sys.executable, "-m", "ouroboros.stages.rft", stage.directory], root / "output", given.limit)
    with tables.connect([("gpu", Path(stage.directory))]) as session:
        rows = session.sql(QUESTION).to_arrow_table().to_pylist()
    if not rows or (ended.startswith("exit code") and ended != "exit code 0"):
        raise RuntimeError(f"{ended}: {(root / 'output').read_text()[-2500:]}")
    return [{"seconds": row["seconds"], "torch_gib": row["peak_memory_gib"], **{part: row[part] for part in PARTS}}
            for row in rows]


def trl(root: Path, model: Path, given, settings: dict) -> list[dict]:
    """Runs TRL's GRPOTrainer with vLLM colocated; writes each step to `given.one` as it ends."""
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
    from trl.generation.vllm_generation import VLLMGeneration

    random, steps, parts = np.random.default_rng(0), [], {}
    prompts = ["".join(chr(c) for c in random.integers(97, 123, PROMPT_TOKENS)) for _ in range(TASKS)]
    for name in ("sync_weights", "generate"):
        setattr(VLLMGeneration, name, timed(getattr(VLLMGeneration, name), parts, name))

    class Clock(TrainerCallback):
        def on_step_begin(self, *_, **__):
            parts.clear()
            torch.cuda.synchronize()
            self.begin = time.perf_counter()

        def on_step_end(self, *_, **__):
            torch.cuda.synchronize()
            steps.append({"seconds": time.perf_counter() - self.begin, **parts,
                          "torch_gib": torch.cuda.max_memory_allocated() / 2**30})
            given.one.write_text(json.dumps(steps))

    def reward(completions: list[str], **_) -> list[float]:
        return [float(hashlib.sha256(text.encode()).digest()[0] % 2) for text in completions]

    trainer = GRPOTrainer(
        model=str(model), reward_funcs=reward, callbacks=[Clock()],
        train_dataset=Dataset.from_dict({"prompt": prompts}), processing_class=AutoTokenizer.from_pretrained(model),
        args=GRPOConfig(
            output_dir=str(root), per_device_train_batch_size=32, gradient_accumulation_steps=16, num_generations=8,
            max_completion_length=RESPONSE_TOKENS, learning_rate=1e-6, beta=0.0, temperature=1.0, bf16=True,
            use_vllm=True, vllm_mode="colocate", max_steps=given.steps, report_to=[], save_strategy="no",
            model_init_kwargs={"dtype": "bfloat16"}, **settings))
    trainer.train()
    return steps


def timed(function, parts: dict[str, float], name: str):
    """The function; adds its seconds, with those of the GPU, to `parts`."""
    import torch

    def run(*arguments, **named):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        made = function(*arguments, **named)
        torch.cuda.synchronize()
        parts[name] = parts.get(name, 0.0) + time.perf_counter() - begin
        return made

    return run


def verl(root: Path, model: Path, given, overrides: list[str]) -> list[dict]:
    from benchmarks.verl_grpo import train  # an older tree, which `ours` runs with this file, has no such module

    return train(root, model, given.steps, given.limit, overrides)


def run_limited(words: list[str], output: Path, limit: float, each: Callable[[], None] = lambda: None, **where) -> str:
    """Runs a command with its output in a file; ends it and all of its session after `limit` seconds, or when this
    process is asked to end. each: called every second and at the end."""
    output.parent.mkdir(parents=True, exist_ok=True)
    late = time.monotonic() + limit
    with output.open("w") as file:
        process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, start_new_session=True, **where)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
        try:
            while time.monotonic() < late and process.poll() is None:
                time.sleep(1)
                each()
        finally:
            if over := process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    each()
    return f"no end after {limit:.0f} s" if over else f"exit code {process.returncode}"


def started(tree: Path, given, name: str, variant: dict) -> dict:
    """One run in its own process, with the code of a tree: its steps, seconds and the device's memory."""
    from benchmarks.gpu_memory import DeviceMemory  # an older tree, which `ours` runs with this file, has none

    answer, log = given.root / f"{name}.json", given.root / f"{name}.log"
    paths = [*(map(str, given.verl) if "verl" in variant else ()), f"{tree}/src", str(tree),
             os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "VLLM_LOGGING_LEVEL": "ERROR"}
    if {"trl", "verl"} & variant.keys():
        environment["VLLM_USE_FLASHINFER_SAMPLER"] = "0"  # TRL's vLLM fails with it
    command = [sys.executable, "-P", str(Path(__file__).resolve()), "--root", str(given.root / name), "--steps",
               str(given.steps), "--limit", str(given.limit - 15), "--model", str(given.root / "model"), "--one",
               str(answer), "--as", json.dumps(variant)]
    begin = time.time()
    with DeviceMemory() as memory:
        ended = run_limited(command, log, given.limit, cwd=tree, env=environment)
    steps = json.loads(answer.read_text()) if answer.exists() else []
    found = {"steps": steps, "process_seconds": time.time() - begin, "device_gib": memory.largest, "ended": ended}
    return found if len(steps) > 1 else found | {"failed": f"{ended}: {log.read_text()[-2500:]}"}


def line(name: str, runs: list[dict]) -> dict:
    """The figures of a variant over all of its runs, without each run's first step."""
    good = [run for run in runs if "failed" not in run]
    if not good:
        return {"variant": name, "failed": runs[0]["failed"]}
    steps = [step for run in good for step in run["steps"][1:]]
    seconds = [step["seconds"] for step in steps]
    parts = [part for part in steps[0] if part not in ("seconds", "torch_gib")]
    return {
        "variant": name, "seconds": round(median(seconds), 2), "lowest": round(min(seconds), 2),
        "highest": round(max(seconds), 2), "steps": len(seconds), "failed runs": len(runs) - len(good),
        **{part: round(float(np.nanmedian([step.get(part) or np.nan for step in steps])), 3) for part in parts},
        "start and first step s": [round(run["process_seconds"] - sum(step["seconds"] for step in run["steps"][1:]), 1)
                                   for run in good],
        "device_gib": round(max(run["device_gib"] for run in good), 1),
        "torch_gib": round(max(step["torch_gib"] or 0 for step in steps), 1),
        "ended": [run["ended"] for run in good]}


def compare(given) -> list[dict]:
    here = Path(__file__).resolve().parent.parent
    given.root.mkdir(parents=True, exist_ok=True)
    if not (given.root / "model").exists():
        make_model(given.root / "model")
    runs = {"this tree": (here, {}), **({"the other tree": (given.other, OTHER)} if given.other else {}),
            **{name: (here, variant) for name, variant in (
                AHEAD | TWO_GPUS | TRL | (VERL if given.verl else {})).items()}}
    runs = {name: run for name, run in runs.items() if (name in given.only if given.only else name not in TWO_GPUS)}
    found: dict[str, list[dict]] = {name: [] for name in runs}
    for turn in range(given.rounds):
        for index, (name, (tree, variant)) in enumerate(runs.items()):
            found[name].append(started(tree, given, f"v{index}-{turn}", variant))
            print(json.dumps(line(name, found[name][-1:])), flush=True)
            if given.out:  # after each run, so that a machine that is taken away loses one
                given.out.write_text(json.dumps([line(name, made) | {"runs": made} for name, made in found.items()
                                                 if made], indent=1))
    return [line(name, made) for name, made in found.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="an empty directory for model and results")
    parser.add_argument("--other", type=Path, help="a checkout to compare with")
    parser.add_argument("--steps", type=int, default=7, help="steps of a process, the first of which warms up")
    parser.add_argument("--rounds", type=int, default=1, help="how often the variants take turns")
    parser.add_argument("--limit", type=float, default=600, help="seconds after which a process is ended")
    parser.add_argument("--only", action="append",
                        choices=["this tree", "the other tree", *AHEAD, *TWO_GPUS, *TRL, *VERL],
                        help="what to measure; default: all that one GPU can run")
    parser.add_argument("--out", type=Path, help="JSON file for the figures and the steps of each run")
    parser.add_argument("--verl", type=Path, action="append", default=[],
                        help="a directory with packages for verl; without it verl is not measured")
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--as", dest="variant", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        kind = next((one for one in ("trl", "verl") if one in given.variant), None)
        run = {"trl": trl, "verl": verl, None: ours}[kind]
        chosen = given.variant.get(kind or "overrides", [])
        given.one.write_text(json.dumps(run(given.root, given.model, given, chosen)))
        return
    lines = compare(given)
    base, *others = lines
    for one in others:
        if not {"failed"} & {*base, *one}:
            print(f"{base['variant']}: {one['seconds'] / base['seconds']:.2f} x the speed of {one['variant']}")


if __name__ == "__main__":
    main()
