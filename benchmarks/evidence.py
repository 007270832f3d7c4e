"""A pretrained model on tasks of reasoning-gym, on one GPU: gains by seed, TRL's GRPOTrainer, and six methods.

    ouro fetch reasoning-gym
    python -m benchmarks.evidence base  --root DIR --model MODEL                  # first: it chooses tasks and prompts
    python -m benchmarks.evidence train --root DIR --model MODEL --only alone     # ours alone on the GPU: the curve
    python -m benchmarks.evidence train --root DIR --model MODEL --only trl       # TRL, as alone (needs TRL)
    python -m benchmarks.evidence train --root DIR --model MODEL --only gains methods --lanes 8
    python -m benchmarks.evidence score --root DIR --model MODEL                  # all that is complete

MODEL: a Hugging Face directory. Each cell is a run in a separate directory below DIR; what is complete is not made
again, and a model that has its scores is not scored again. All runs have the prompts, reward, batch, learning rate and
steps of benchmarks/evidence.yaml. Their stages are started by their commands, so neither Snakemake nor Data-Juicer is
needed. TRL is set as benchmarks/gpu_peers.py found best: colocated vLLM without sleep mode, no gradient checkpointing.
Seconds are counted from the plan of a run. One engine answers the held-out tasks with every model: SAMPLES replies
at temperature 1, and a greedy one; intervals are over tasks, those of gains paired.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.gpu_peers import run_limited
from benchmarks.measurement import HERE, table
from benchmarks.real_model import said
from ouroboros.operators.reward import accuracy_reward
from ouroboros.operators.statistics import difference_interval, mean_interval, pass_at_k
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.job.tasksets import read_eval, read_train
from ouroboros.pipeline.plan.hub import located
from ouroboros.pipeline.plan.plan import Plan, make_plan
from ouroboros.pipeline.store import files, tables
from ouroboros.workflows.protocol.prompts import task_texts

# reasoning-gym's generators by which the base model is measured; the first of them may be trained on
ADDING = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}
FIRSTS = {"gsm_symbolic": {}, "chain_sum": ADDING, "gcd": {"max_value": 60},
          "products": {"min_digits": 1, "max_digits": 2}}
SECOND = {"letter_counting": {"min_words": 2, "max_words": 4}}
BASES = FIRSTS | SECOND | {name: {} for name in (
    "basic_arithmetic", "simple_equations", "lcm", "leg_counting", "fraction_simplification", "power_function",
    "number_sequence", "spell_backward")}
STEPS = "Solve the problem step by step. End with a line that has nothing but #### and the answer: #### 42"
PROMPTS = {"steps": (STEPS, 192), "alone": ("Reply with the answer alone.", 24)}  # system prompt, tokens of a reply
METHODS = ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo")
SEEDS, SAMPLES, HELD_OUT, TRAIN, POSSIBLE = (1, 2, 3), 8, 192, 2000, 0.3
ROWS, CACHE = 128, 4 << 30  # of a micro-batch of TRL; bytes of the scoring engine's cache
CELLS = ("alone", "trl", "gains", "methods")
SHARED = ("explorer.rollout_model.gpu_memory_utilization=0.05", "explorer.rollout_model.engines_per_gpu=2",
          "trainer.max_token_len_per_gpu=4096", "trainer.max_checkpoints_to_keep=1")  # of a GPU with other runs on it
FEWER = {"dapo": 26}  # steps in which its resampling generates about what the others do in all of theirs

COLUMNS = ("run", "step", "seconds", "sampled", "gain, points", "greedy", f"pass@{SAMPLES}", "one answer",
           "tokens a reply", "million tokens")

Run = tuple[str, str, int]  # task, method, seed


def chosen(given: argparse.Namespace) -> dict[str, str]:
    """The two tasks of the runs, and the prompt of each: the one by which the base model's pass@8 is higher. The first
    is gsm_symbolic, or of FIRSTS the one with the lowest accuracy; where pass@8 is above POSSIBLE."""
    found: dict[str, dict] = {}
    for one in files.read_json(given.root / "base.json")["bases"]:
        task, best = one["task"], found.get(one["task"])
        if not best or (one["pass"], one["sampled"]) > (best["pass"], best["sampled"]):
            found[task] = one
    possible = sorted((found[task] for task in FIRSTS if found[task]["pass"][0] > POSSIBLE),
                      key=lambda one: (one["task"] != "gsm_symbolic", one["sampled"][0]))
    first = possible[0]["task"] if possible else max(FIRSTS, key=lambda task: found[task]["pass"][0])
    return {task: found[task]["prompt"] for task in (first, *SECOND)}


def cells(given: argparse.Namespace) -> dict[str, list[Run]]:
    tasks = list(chosen(given))
    return {"alone": [(tasks[0], "grpo", 1)], "trl": [(tasks[0], "trl", 1)],
            "gains": [(task, "grpo", seed) for seed in SEEDS for task in tasks][1:],
            "methods": [(tasks[0], method, seed) for seed in SEEDS for method in METHODS[1:]]}


def name_of(run: Run) -> str:
    return "-".join(map(str, run))


def planned(given: argparse.Namespace, run: Run) -> Plan:
    """The plan of a run; TRL's is that of ours, as is what held-out tasks are read of; the base's has those of all."""
    task, method, seed = run
    ours, source = method if method in METHODS else "grpo", "buffer.explorer_input"
    prompt, tokens = PROMPTS["steps" if method == "base" else chosen(given)[task]]
    held = "".join(f"{{name:{name},path:'reasoning-gym://{name}',split:test,source_args:{arguments(name, HELD_OUT)}}},"
                   for name in (BASES if method == "base" else [task]))
    config, problems = located(compose([
        f"recipe={HERE / 'evidence.yaml'}", f"checkpoint_root_dir={given.root / name_of(run)}", f"name={name_of(run)}",
        f"model.model_path={given.model}", f"model.max_response_tokens={tokens}", f"algorithm={ours}", f"seed={seed}",
        "algorithm.repeat_times=8",
        f"{source}.system_prompt='{prompt}'", f"{source}.taskset.path=reasoning-gym://{task}",
        f"{source}.taskset.source_args={arguments(task, TRAIN)}", f"{source}.eval_tasksets=[{held[:-1]}]",
        *([f"buffer.total_steps={FEWER[method]}"] if method in FEWER else []),
        *(SHARED if given.lanes > 1 else ()), *given.overrides]))
    if problems:
        sys.exit("\n".join(problems))
    return make_plan(config)


def arguments(task: str, size: int) -> str:
    made = {"size": size, "seed": 1} | BASES[task]
    return "{" + ",".join(f"{name}:{value}" for name, value in made.items()) + "}"


def made(plan: Plan, directory: str) -> Path:
    """A stage of a plan by its directory, which is made, with what it needs, where it is not complete."""
    [stage] = [one for one in plan.stages if one.directory == directory]
    for needed in {one.directory for one in plan.stages} & set(stage.inputs.values()):
        made(plan, needed)
    if not files.is_complete(directory):
        subprocess.run([sys.executable, "-m", f"ouroboros.stages.{stage.kind}", directory], check=True)
    return Path(directory)


def stage_of(plan: Plan, name: str):
    plan.freeze()
    [stage] = [one for one in plan.stages if one.name == name]
    return stage


def train(given: argparse.Namespace, run: Run) -> None:
    """Makes one run, and ROOT/NAME.json once it is complete: its seconds, its tokens, and the models that it kept."""
    plan = planned(given, run)
    stage = stage_of(plan, "rft")
    begin = time.time() if run[1] == "trl" else (Path(stage.directory) / "stage.json").stat().st_mtime
    if run[1] == "trl":
        found = trl(given, stage.config, made(plan, stage.inputs["tasks"]), begin)
    else:
        rft = made(plan, stage.directory)
        kept = {int(one.name.rpartition("=")[2]): one for one in (rft / "checkpoints").iterdir() if one.is_dir()}
        with tables.connect([("run", rft)]) as session:
            tokens = session.execute("SELECT sum(tokens) FROM rollouts").fetchone()[0]
            steps = session.execute("SELECT step, seconds, solve_rate FROM steps ORDER BY step").fetchall()
        found = {"tokens": tokens, "steps": steps, "kept": [
            {"step": step, "seconds": (place / files.MANIFEST).stat().st_mtime - begin, "model": str(place / "model")}
            for step, place in sorted(kept.items())]}
    files.write_json(given.root / f"{name_of(run)}.json", found | {"seconds": time.time() - begin})


def trl(given: argparse.Namespace, config, tasks: Path, begin: float) -> dict:
    """Trains with GRPOTrainer on the tasks and settings of a run of ours; returns the policies that it kept, when each
    step ended, and its log."""
    os.environ |= {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    tokenizer, saved, ends, paused = AutoTokenizer.from_pretrained(given.model), [], [], [0.0]
    ((_, rows),) = read_train(tasks, config.buffer.explorer_input)
    optimizer, total = config.algorithm.optimizer, config.buffer.total_steps

    def reward(completions, answer, **_):
        return [accuracy_reward(one, truth)["accuracy"] for one, truth in zip(completions, answer, strict=True)]

    class Keep(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            torch.cuda.synchronize()
            now, step = time.time(), state.global_step
            ends.append((step, now - begin - paused[0]))
            if step % config.trainer.save_interval == 0 or step == total:
                place = given.root / "trl" / str(step)
                tensors = {name: tensor.to(torch.bfloat16) for name, tensor in trainer.model.state_dict().items()}
                trainer.model.save_pretrained(place, state_dict=tensors)
                tokenizer.save_pretrained(place)
                saved.append({"step": step, "seconds": now - begin - paused[0], "model": str(place)})
                paused[0] += time.time() - now  # ours writes in the background

    longest = config.model.max_prompt_tokens + config.model.max_response_tokens
    trainer = GRPOTrainer(
        model=str(given.model), reward_funcs=reward, callbacks=[Keep()], processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"prompt": task_texts(tokenizer, rows, config),
                                         "answer": [row.answer for row in rows]}),
        args=GRPOConfig(
            output_dir=str(given.root / "trl"), max_steps=total, seed=config.seed, num_generations=8,
            per_device_train_batch_size=ROWS, temperature=1.0, beta=0.0, bf16=True,
            gradient_accumulation_steps=8 * config.buffer.batch_size // ROWS,
            max_completion_length=config.model.max_response_tokens, learning_rate=optimizer.lr,
            lr_scheduler_type="constant_with_warmup", warmup_steps=optimizer.lr_warmup_steps, weight_decay=0.0,
            use_vllm=True, vllm_mode="colocate", vllm_gpu_memory_utilization=0.25, vllm_max_model_length=longest,
            vllm_enable_sleep_mode=False, gradient_checkpointing=False, report_to=[],
            save_strategy="no", logging_steps=1, model_init_kwargs={"dtype": "float32"}))
    trainer.train()
    return {"kept": saved, "ends": ends, "log": trainer.state.log_history}


def train_all(given: argparse.Namespace) -> None:
    """Makes the runs of the cells, `lanes` at a time, each in a process with a limit."""
    late = time.monotonic() + given.limit

    def make(run: Run) -> str:
        words = [sys.executable, "-m", "benchmarks.evidence", "one", "--root", given.root, "--model", given.model,
                 "--lanes", given.lanes, "--run", *run, "--set", *given.overrides]
        if (given.root / f"{name_of(run)}.json").exists():
            return "complete"
        if late - time.monotonic() < given.least:
            return "not begun"
        return run_limited(list(map(str, words)), given.root / f"{name_of(run)}.log", late - time.monotonic())

    runs = [run for cell in given.only for run in cells(given)[cell]]
    with ThreadPoolExecutor(given.lanes) as pool:
        for run, ended in zip(runs, pool.map(make, runs), strict=True):
            print(f"{name_of(run)}: {ended}", flush=True)


class Answers:
    """One engine that answers held-out tasks with any of the models."""

    def __init__(self, given: argparse.Namespace):
        os.environ |= {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
        from transformers import AutoTokenizer
        from vllm import LLM

        self.tokenizer = AutoTokenizer.from_pretrained(given.model)
        self._engine = LLM(str(given.model), gpu_memory_utilization=0.2, max_model_len=1024, max_num_seqs=1024,
                           generation_config="vllm", kv_cache_memory_bytes=CACHE)

    def load(self, model: str) -> None:
        self._engine.collective_rpc("reload_weights", kwargs={"weights_path": model})
        self._engine.reset_prefix_cache()

    def of(self, rows, config) -> dict:
        """The accuracies of SAMPLES replies to each task and of its greedy one, the tokens of a reply, and the share of
        tasks that one answer to all of them solves."""
        from vllm import SamplingParams

        texts = task_texts(self.tokenizer, rows, config)
        prompts = [{"prompt_token_ids": self.tokenizer.encode(text, add_special_tokens=False)} for text in texts]
        usual, rates, counts = {"max_tokens": config.model.max_response_tokens,
                                "stop_token_ids": [self.tokenizer.eos_token_id]}, [], []
        for sampling in ({"n": SAMPLES, "temperature": 1.0, "seed": 1}, {"temperature": 0.0}):
            replies = self._engine.generate(prompts, SamplingParams(**usual | sampling), use_tqdm=False)
            rates.append([[accuracy_reward(one.text, task.answer)["accuracy"] for one in reply.outputs]
                          for reply, task in zip(replies, rows, strict=True)])
            counts.append(float(np.mean([len(one.token_ids) for reply in replies for one in reply.outputs])))
        [(_, most)] = Counter(task.answer for task in rows).most_common(1)
        return {"sampled": rates[0], "greedy": [one for [one] in rates[1]], "tokens": counts[0],
                "constant": most / len(rows)}


def base(given: argparse.Namespace) -> None:
    """Measures the base model on every task by both prompts: ROOT/base.json."""
    plan = planned(given, (next(iter(BASES)), "base", 1))
    stage = stage_of(plan, "evaluate_rft")
    tasks, found, engine = made(plan, stage.inputs["tasks"]), [], Answers(given)
    for source in stage.config.buffer.explorer_input.eval_tasksets:
        rows = list(read_eval(tasks, source))[:given.held]
        for prompt, (text, tokens) in PROMPTS.items():
            config = stage.config.but("buffer.explorer_input.system_prompt", text)
            one = engine.of(rows, config.but("model.max_response_tokens", tokens))
            found.append({"task": source.name, "prompt": prompt, "tasks": len(rows)} | summary(one))
            print({name: said(value) if isinstance(value, list) else value for name, value in found[-1].items()})
    files.write_json(given.root / "base.json", {"bases": found})


def score(given: argparse.Namespace) -> None:
    """Scores every model that is kept and has no scores yet, the last of each run first; writes each as it is made."""
    late, engine, asked = time.monotonic() + given.limit, Answers(given), {}
    done = {(one["run"][0], one["model"]) for one in scores(given)}
    while time.monotonic() < late:
        left = [one for one in waiting(given) if (one["run"][0], one["model"]) not in done]
        if not left and not given.follow:
            break
        if not left:
            time.sleep(2)
            continue
        one = left[0]
        task, model = one["run"][0], one["model"]
        done.add((task, model))
        if task not in asked:
            plan = planned(given, (task, "held", 1))  # no view that a run may write
            stage = stage_of(plan, "evaluate_rft")
            [source] = stage.config.buffer.explorer_input.eval_tasksets
            asked[task] = read_eval(made(plan, stage.inputs["tasks"]), source), stage.config
        engine.load(model)
        found = one | engine.of(*asked[task])
        with (given.root / "scores.jsonl").open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(f"{name_of(one['run'])} step {one['step']}, {one['seconds']:.0f} s: {summary(found)}", flush=True)


def waiting(given: argparse.Namespace) -> list[dict]:
    """The models to score: the base on each task, the last of each run, then what curves need."""
    found = [{"run": [task, "base", 0], "step": 0, "seconds": 0.0, "model": str(given.model)} for task in chosen(given)]
    runs = [run for cell in cells(given).values() for run in cell]
    pages = [(run, given.root / f"{name_of(run)}.json") for run in runs]
    kept = [[{"run": list(run)} | one for one in files.read_json(page)["kept"]] for run, page in pages if page.exists()]
    curves = [one for several in kept for one in several[:-1] if tuple(one["run"]) in runs[:2]]
    return found + [several[-1] for several in kept] + curves


def scores(given: argparse.Namespace) -> list[dict]:
    page = given.root / "scores.jsonl"
    return [json.loads(line) for line in page.read_text().splitlines()] if page.exists() else []


def summary(one: dict) -> dict:
    """Means with their 95% intervals: (mean, low, high)."""
    return {"sampled": mean_interval([float(np.mean(replies)) for replies in one["sampled"]]),
            "greedy": mean_interval(one["greedy"]), "tokens": round(one["tokens"], 1), "constant": one["constant"],
            "pass": mean_interval([pass_at_k(len(replies), int(sum(replies)), SAMPLES) for replies in one["sampled"]])}


def row(one: dict, base: dict) -> list:
    """The cells of COLUMNS of a scored model but the last; base: the scores before training."""
    mean, low, high = difference_interval([float(np.mean(now)) - float(np.mean(then)) for now, then in zip(
        one["sampled"], base["sampled"], strict=True)])
    gain = f"{100 * mean:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
    found = summary(one)
    return [name_of(one["run"]), one["step"], round(one["seconds"]), said(found["sampled"]), gain,
            said(found["greedy"]), said(found["pass"]), found["constant"], found["tokens"]]


def page(given: argparse.Namespace) -> None:
    """Prints the scored models, with what each run generated for training."""
    found = scores(given)
    before = {one["run"][0]: one for one in found if one["run"][1] == "base"}
    rows = []
    for one in found:
        run = given.root / f"{name_of(one['run'])}.json"
        tokens = files.read_json(run).get("tokens") if run.exists() else None
        rows.append([*row(one, before[one["run"][0]]), tokens and round(tokens / 1e6, 2)])
    print(table(COLUMNS, sorted(rows, key=lambda one: (one[0], one[1]))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("base", "train", "score", "page", "one"))
    for name in ("root", "model"):
        parser.add_argument(f"--{name}", type=lambda text: Path(text).resolve(), required=True)
    parser.add_argument("--only", nargs="+", choices=CELLS, default=CELLS)
    parser.add_argument("--lanes", type=int, default=1, help="runs at a time on the GPU; their seconds are no others'")
    parser.add_argument("--limit", type=float, default=3600, help="seconds after which nothing runs")
    parser.add_argument("--least", type=float, default=0, help="seconds that have to be left for a run to begin")
    parser.add_argument("--held", type=int, default=HELD_OUT, help="tasks of each set by which the base is measured")
    parser.add_argument("--follow", action="store_true", help="score also what is completed meanwhile")
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--set", dest="overrides", nargs="*", default=[], help="more settings of ours, key=value")
    given = parser.parse_args()
    given.root.mkdir(parents=True, exist_ok=True)
    if given.what == "one":
        train(given, (*given.run[:2], int(given.run[2])))
    else:
        {"base": base, "train": train_all, "score": score, "page": page}[given.what](given)


if __name__ == "__main__":
    main()
