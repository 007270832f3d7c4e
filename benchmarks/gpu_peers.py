"""Measures a whole GRPO step on one GPU: this tree, an older one, TRL and verl with vLLM, in turns on one machine.

    python -m benchmarks.gpu_peers --root /tmp/peers --other /path/to/older/checkout --out peers.json

The same for all: a random model in the shape of Qwen2.5-0.5B (bfloat16), 64 prompts x 8 responses of 128 and 512
tokens, a hash of the response as reward, one update per step with AdamW at 1e-6, temperature 1, no KL term, engine and
trainer alternating on the GPU (the engine sleeps). Each run is a process of its own. Ours: seconds of the step and its
parts from the tables of the stage, which include writing every rollout and a proven hand-over of the weights in a file.
The other tree runs with gradient checkpointing, as its benchmarks/gpu_path.py does. TRL: seconds between the callbacks
of step begin and end, after a synchronisation. verl: the seconds that it prints. The first step of each is left out.
Requires a GPU, vllm and deepspeed; for TRL the packages of benchmarks/requirements-trl.txt, for verl those that
benchmarks/verl_grpo.py names.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.gpu_path import PROMPT_TOKENS, QUESTION, RESPONSE_TOKENS, TASKS, make_model, make_tasks

TRL = {"TRL, micro-batches of 32, gradient checkpointing": {"rows": 32, "recompute": True},
       "TRL, micro-batches of 16": {"rows": 16, "recompute": False}}
VERL = {"verl, gradient checkpointing": {"prompt": PROMPT_TOKENS - 1, "response": RESPONSE_TOKENS, "tasks": 64}}
OTHER = {"overrides": ["trainer.enable_gradient_checkpointing=true"]}  # as in its benchmarks/gpu_path.py
PARTS = ("rollout_seconds", "train_seconds", "publish_seconds", "sync_seconds", "train_other_seconds",
         "explore_other_seconds")


def ours(root: Path, model: Path, steps: int, overrides: tuple[str, ...] = ()) -> dict:
    """Runs one rft stage; returns the rows of its steps. Called with the code of the tree in the current directory."""
    from pipeline.check.judge import compose
    from pipeline.plan.plan import make_plan
    from pipeline.store import tables

    plan = make_plan(compose([
        f"checkpoint_root_dir={root}", "project=gpu", "name=peers", "mode=colocate", "monitor.monitor_type=none",
        "stages=[{stage_name: rft}]", "model.init.enable=false", f"model.model_path={model}",
        f"model.max_prompt_tokens={PROMPT_TOKENS}", f"model.max_response_tokens={RESPONSE_TOKENS}",
        "buffer.explorer_input.default_reward_fn_type=benchmarks.gpu_path:hash_reward",
        "buffer.explorer_input.eval_tasksets=[]", f"buffer.total_steps={steps}", "buffer.batch_size=64",
        "synchronizer.sync_offset=0", "synchronizer.sync_interval=1", "algorithm.optimizer.lr=1e-6",
        "explorer.rollout_model.gpu_memory_utilization=0.4", "explorer.rollout_model.max_num_seqs=512",
        "trainer.max_token_len_per_gpu=32768", "trainer.save_interval=1000", *overrides]))
    plan.freeze()
    make_tasks(Path(next(s for s in plan.stages if s.name == "curate").directory))
    stage = next(s for s in plan.stages if s.name == "rft")
    subprocess.run([sys.executable, "-m", "stages.rft", stage.directory], check=True)
    with tables.connect([("gpu", Path(stage.directory))]) as session:
        rows = session.sql(QUESTION).to_arrow_table().to_pylist()
    return {"seconds": [row["seconds"] for row in rows], "names": PARTS,
            "parts": [[row[part] for part in PARTS] for row in rows],
            "peak_gib": max(row["peak_memory_gib"] or 0 for row in rows)}


def trl(root: Path, model: Path, steps: int, rows: int, recompute: bool) -> dict:
    """Runs TRL's GRPOTrainer with vLLM colocated; returns the seconds of its steps and its peak memory."""
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    random, seconds = np.random.default_rng(0), []
    prompts = ["".join(chr(c) for c in random.integers(97, 123, PROMPT_TOKENS)) for _ in range(TASKS)]

    class Clock(TrainerCallback):
        def on_step_begin(self, *_, **__):
            self.begin = time.perf_counter()

        def on_step_end(self, *_, **__):
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - self.begin)

    def reward(completions: list[str], **_) -> list[float]:
        return [float(hashlib.sha256(text.encode()).digest()[0] % 2) for text in completions]

    settings = GRPOConfig(
        output_dir=str(root), per_device_train_batch_size=rows, gradient_accumulation_steps=512 // rows,
        num_generations=8, max_completion_length=RESPONSE_TOKENS, learning_rate=1e-6, beta=0.0, temperature=1.0,
        bf16=True, gradient_checkpointing=recompute, use_vllm=True, vllm_mode="colocate", max_steps=steps,
        vllm_gpu_memory_utilization=0.4, vllm_enable_sleep_mode=True, report_to=[], save_strategy="no",
        model_init_kwargs={"dtype": "bfloat16"})
    trainer = GRPOTrainer(model=str(model), reward_funcs=reward, args=settings, callbacks=[Clock()],
                          train_dataset=Dataset.from_dict({"prompt": prompts}),
                          processing_class=AutoTokenizer.from_pretrained(model))
    trainer.train()
    return {"seconds": seconds, "peak_gib": torch.cuda.max_memory_allocated() / 2**30}


def verl(root: Path, model: Path, steps: int, **settings) -> dict:
    from benchmarks.verl_grpo import train  # an older tree, which `ours` runs with this file, has no such module

    return train(root, model, steps, **settings)


def started(tree: Path, given, name: str, variant: dict) -> dict:
    """One run in a process of its own, with the code of a tree."""
    answer = given.root / f"{name}.json"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tree), os.environ.get("PYTHONPATH", "")]),
                                "VLLM_LOGGING_LEVEL": "ERROR"}
    if variant in TRL.values() or variant in VERL.values():
        environment |= {"VLLM_USE_FLASHINFER_SAMPLER": "0"}  # TRL's vLLM fails with it
    if variant in VERL.values():
        environment["PYTHONPATH"] = os.pathsep.join([*map(str, given.verl), environment["PYTHONPATH"]])
    command = [sys.executable, "-P", str(Path(__file__).resolve()), "--root", str(given.root / name), "--steps",
               str(given.steps), "--model", str(given.root / "model"), "--one", str(answer), "--as",
               json.dumps(variant)]
    begin = time.time()
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False,
                              timeout=given.limit)
    except subprocess.TimeoutExpired:
        return {"failed": f"no end after {given.limit} s"}
    if done.returncode:
        return {"failed": (done.stdout + done.stderr)[-3000:]}
    return json.loads(answer.read_text()) | {"process_seconds": time.time() - begin}


def line(name: str, runs: list[dict]) -> dict:
    """The figures of a variant over all of its runs, without each run's first step."""
    good = [run for run in runs if "failed" not in run]
    if not good:
        return {"variant": name, "failed": runs[0]["failed"]}
    seconds = [second for run in good for second in run["seconds"][1:]]
    found = {"variant": name, "seconds": round(median(seconds), 2), "lowest": round(min(seconds), 2),
             "highest": round(max(seconds), 2), "steps": len(seconds), "failed runs": len(runs) - len(good),
             "first step and start s": [round(run["process_seconds"] - sum(run["seconds"][1:]), 1) for run in good]}
    if "parts" in good[0]:
        parts, names = np.array([row for run in good for row in run["parts"][1:]], dtype=float), good[0]["names"]
        found |= {part: round(float(value), 3) for part, value in zip(names, np.nanmedian(parts, 0), strict=True)}
    return found | {"peak_memory_gib": round(max(run["peak_gib"] for run in good), 1)}


def compare(given) -> list[dict]:
    here = Path(__file__).resolve().parent.parent
    given.root.mkdir(parents=True, exist_ok=True)
    if not (given.root / "model").exists():
        make_model(given.root / "model")
    runs = {"this tree": (here, {}), **({"the other tree": (given.other, OTHER)} if given.other else {}),
            **{name: (here, variant) for name, variant in (TRL | (VERL if given.verl else {})).items()}}
    runs = {name: run for name, run in runs.items() if not given.only or name in given.only}
    found: dict[str, list[dict]] = {name: [] for name in runs}
    for turn in range(given.rounds):
        for index, (name, (tree, variant)) in enumerate(runs.items()):
            found[name].append(started(tree, given, f"v{index}-{turn}", variant))
            print(json.dumps(line(name, found[name][-1:])), flush=True)
    return [line(name, made) for name, made in found.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="an empty directory for model and results")
    parser.add_argument("--other", type=Path, help="a checkout to compare with")
    parser.add_argument("--steps", type=int, default=5, help="steps of a process, the first of which warms up")
    parser.add_argument("--rounds", type=int, default=2, help="how often the variants take turns")
    parser.add_argument("--limit", type=int, default=600, help="seconds after which a process is ended")
    parser.add_argument("--only", action="append", choices=["this tree", "the other tree", *TRL, *VERL],
                        help="what to measure; default: all")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    parser.add_argument("--verl", type=Path, action="append", default=[],
                        help="a directory with packages for verl; without it verl is not measured")
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--as", dest="variant", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        run = verl if given.variant in VERL.values() else trl if given.variant in TRL.values() else ours
        given.one.write_text(json.dumps(run(given.root, given.model, given.steps, **given.variant)))
        return
    lines = compare(given)
    for one in lines:
        print(json.dumps(one))
    base, *others = lines
    for one in others:
        if not {"failed"} & {*base, *one}:
            print(f"this tree: {one['seconds'] / base['seconds']:.2f} x the speed of {one['variant']}")
    if given.out:
        given.out.write_text(json.dumps(lines, indent=1))


if __name__ == "__main__":
    main()
