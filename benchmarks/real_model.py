"""A pretrained model on real tasks, on a GPU: held-out accuracy against seconds, ours and TRL's GRPOTrainer.

    python -m benchmarks.real_model ours  --root DIR --model MODEL --data DIR --steps 100
    python -m benchmarks.real_model trl   --root DIR --model MODEL --data DIR --steps 100      (needs TRL)
    python -m benchmarks.real_model score --root DIR --model MODEL --data DIR

MODEL: a Hugging Face directory. --data: a directory with train.jsonl and test.jsonl, rows of `question` and `answer`.
`ours` runs the recipe that `ouro init` writes for them with mode=colocate, its stages started by their commands; TRL
has the same prompts, reward, batch (64 tasks x 8 responses of at most 512 tokens) and learning rate, and is configured
as its documentation advises for one GPU: colocated vLLM without sleep, no gradient checkpointing where it fits,
micro-batches of 64. Both keep the policy of every 20 steps; `score` answers the held-out tasks with each (4 samples at
temperature 1, and greedily), with one engine and one reward for both, and prints accuracy against the seconds since the
process began, start-up included.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.plan.plan import make_plan
from ouroboros.pipeline.store import files

EVERY, TOKENS, ROOM = 20, 512, 768
SYSTEM = "Solve the problem step by step. End with a line that has nothing but #### and the answer: #### 42"


def ours(given: argparse.Namespace) -> None:
    begin, project = time.time(), given.root / "ours"
    if not project.exists():  # its check may fail for want of Data-Juicer, which these rows do not need
        subprocess.run([sys.executable, "-m", "ouroboros", "init", project, "--from", given.data / "train.jsonl",
                        "--model", given.model], check=False)
    os.chdir(project)
    changed = {one.partition("=")[0] for one in given.overrides}
    plan = make_plan(compose([*(one for one in (
        "name=real", "mode=colocate", "monitor.monitor_type=none", f"buffer.total_steps={given.steps}",
        f"algorithm.optimizer.lr={given.lr}", f"model.max_response_tokens={TOKENS}", f"model.max_prompt_tokens="
        f"{ROOM - TOKENS}", "buffer.explorer_input.eval_tasksets=[]", "data_processor.task_pipeline.operators=[]",
        "trainer.enable_gradient_checkpointing=auto",
        f"trainer.save_interval={EVERY}", "trainer.max_checkpoints_to_keep=100")
        if one.partition("=")[0] not in changed), *given.overrides]))
    plan.freeze()
    for stage in plan.stages:
        if stage.kind in ("tasks", "curate", "rft"):
            subprocess.run([sys.executable, "-m", f"ouroboros.stages.{stage.kind}", stage.directory], check=True)
    rft = Path(next(one.directory for one in plan.stages if one.kind == "rft")).resolve()
    kept = {int(one.name.rpartition("=")[2]): one for one in (rft / "checkpoints").iterdir() if one.is_dir()}
    seconds = {step: (one / files.MANIFEST).stat().st_mtime - begin for step, one in kept.items()}
    files.write_json(given.root / "ours.json", {"kept": [
        {"step": step, "seconds": seconds[step], "model": str(kept[step] / "model")} for step in sorted(kept)]})


def trl(given: argparse.Namespace) -> None:
    os.environ |= {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
    begin = time.time()
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOTrainer

    from ouroboros.operators.reward import accuracy_reward

    rows = [json.loads(line) for line in (given.data / "train.jsonl").read_text().splitlines()]
    asked = Dataset.from_list([{"prompt": prompt(row["question"]), "answer": row["answer"]} for row in rows])
    tokenizer, saved, paused = AutoTokenizer.from_pretrained(given.model), [], [0.0]

    def reward(completions, answer, **_):
        return [accuracy_reward(one[0]["content"], truth)["accuracy"]
                for one, truth in zip(completions, answer, strict=True)]

    class Keep(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            torch.cuda.synchronize()
            now, step = time.time(), state.global_step
            if step % EVERY == 0 or step == given.steps:
                place = given.root / "trl" / str(step)
                tensors = {name: tensor.to(torch.bfloat16) for name, tensor in trainer.model.state_dict().items()}
                trainer.model.save_pretrained(place, state_dict=tensors)
                tokenizer.save_pretrained(place)
                saved.append({"step": step, "seconds": now - begin - paused[0], "model": str(place)})
                files.write_json(given.root / "trl.json", {"kept": saved})
                paused[0] += time.time() - now  # ours writes in the background

    trainer = GRPOTrainer(
        model=str(given.model), reward_funcs=reward, callbacks=[Keep()], train_dataset=asked,
        processing_class=tokenizer, args=grpo_config(given))
    trainer.train()


def grpo_config(given: argparse.Namespace):
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=str(given.root / "trl"), per_device_train_batch_size=64, gradient_accumulation_steps=8,
        num_generations=8, max_completion_length=TOKENS, learning_rate=given.lr, max_steps=given.steps,
        lr_scheduler_type="constant_with_warmup", warmup_steps=max(given.steps // 20, 1), weight_decay=0.0,
        beta=0.0, temperature=1.0, bf16=True, use_vllm=True, vllm_mode="colocate", vllm_gpu_memory_utilization=0.25,
        vllm_max_model_length=ROOM, vllm_enable_sleep_mode=False, gradient_checkpointing=False, report_to=[],
        save_strategy="no", logging_steps=1, seed=1, model_init_kwargs={"dtype": "float32"})


def prompt(question: str) -> list[dict]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]


def score(given: argparse.Namespace) -> None:
    os.environ |= {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
    from transformers import AutoTokenizer
    from vllm import LLM, SamplingParams

    from ouroboros.operators.reward import accuracy_reward
    from ouroboros.operators.statistics import mean_interval

    tasks = [json.loads(line) for line in (given.data / "test.jsonl").read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    texts = [tokenizer.apply_chat_template(prompt(one["question"]), add_generation_prompt=True, tokenize=False)
             for one in tasks]
    asked = [{"prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)} for text in texts]
    engine = LLM(str(given.model), gpu_memory_utilization=0.5, max_model_len=ROOM, max_num_seqs=1024)

    def accuracy(sampling: SamplingParams) -> tuple[float, float, float]:
        answers = engine.generate(asked, sampling, use_tqdm=False)
        rates = [np.mean([accuracy_reward(one.text, task["answer"])["accuracy"] for one in answer.outputs])
                 for answer, task in zip(answers, tasks, strict=True)]
        return mean_interval(np.array(rates))

    made = [{"who": "base", "step": 0, "seconds": 0.0, "model": str(given.model)}]
    for who in ("ours", "trl"):
        if (page := given.root / f"{who}.json").exists():
            made += [{"who": who} | one for one in files.read_json(page)["kept"]]
    for one in made:
        engine.collective_rpc("reload_weights", kwargs={"weights_path": one["model"]})
        engine.reset_prefix_cache()
        one["sampled"] = accuracy(SamplingParams(n=4, temperature=1.0, max_tokens=TOKENS, seed=1))
        one["greedy"] = accuracy(SamplingParams(temperature=0.0, max_tokens=TOKENS))
        print(f"{one['who']:5} step {one['step']:4} {one['seconds']:7.0f} s  sampled {said(one['sampled'])}  greedy "
              f"{said(one['greedy'])}", flush=True)
        files.write_json(given.root / "scores.json", {"scores": made})


def said(interval: tuple[float, float, float]) -> str:
    mean, low, high = interval
    return f"{mean:.3f} [{low:.3f}, {high:.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("ours", "trl", "score"))
    for name in ("root", "model", "data"):
        parser.add_argument(f"--{name}", type=lambda text: Path(text).resolve(), required=True)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("overrides", nargs="*", help="more settings of ours, key=value")
    given = parser.parse_intermixed_args()
    given.root.mkdir(parents=True, exist_ok=True)
    {"ours": ours, "trl": trl, "score": score}[given.what](given)


if __name__ == "__main__":
    main()
