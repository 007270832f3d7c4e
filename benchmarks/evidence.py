"""A pretrained model on tasks of packages, on one GPU: gains by seed, six methods, and TRL's GRPOTrainer.

    ouro fetch reasoning-gym && ouro fetch bfcl-eval
    python -m benchmarks.evidence base  --root DIR --model MODEL                  # first: it chooses the two tasks
    python -m benchmarks.evidence train --root DIR --model MODEL --only gains methods --lanes 8
    python -m benchmarks.evidence train --root DIR --model MODEL --only alone     # ours alone on the GPU: the curve
    python -m benchmarks.evidence train --root DIR --model MODEL --only trl       # TRL, as alone (needs TRL)
    python -m benchmarks.evidence score --root DIR --model MODEL                  # all that is complete
    python -m benchmarks.evidence page  --root DIR --model MODEL                  # the tables

MODEL: a Hugging Face directory. Each run has a separate directory below DIR; what is complete is not made again, and a
model that has its scores is not scored again. A complete run keeps its models in DIR/models and no other checkpoint,
since the optimizer states of twenty runs fill a disk. Runs have the settings of benchmarks/evidence.yaml, and their
stages are started by their commands, so neither Snakemake nor Data-Juicer is needed. TRL is set as
benchmarks/gpu_peers.py found best (colocated vLLM without sleep mode, no gradient checkpointing), a step in one
micro-batch. Seconds are counted from the plan of a run. One engine answers the held-out tasks with every model: SAMPLES
replies at temperature 1, and a greedy one; intervals are over tasks, those of gains paired.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.gpu_peers import run_limited
from benchmarks.measurement import HERE, table
from benchmarks.real_model import said
from ouroboros.operators.reward import accuracy_reward, calls_reward, final_answers
from ouroboros.operators.statistics import difference_interval, mean_interval, pass_at_k
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.job.tasksets import read_eval, read_train
from ouroboros.pipeline.plan.hub import located
from ouroboros.pipeline.plan.plan import Plan, make_plan
from ouroboros.pipeline.store import files, tables
from ouroboros.workflows.protocol.prompts import task_texts


class Task(NamedTuple):
    """A set of tasks with the arguments of its generator, the system prompt, and the longest reply in tokens."""
    path: str
    arguments: dict[str, Any]
    prompt: str
    tokens: int
    reward: Callable = accuracy_reward

    def taskset(self, name: str, size: int, split: str) -> str:
        """The tasks as an override. Those of calls are too few to be split."""
        split, form = ("all", "messages") if self.reward is calls_reward else (split, "plaintext")
        args = ",".join(f"{key}:{value}" for key, value in {"size": size, **self.arguments}.items())
        return (f"{{name:{name},path:'{self.path}',split:{split},source_args:{{{args}}},"
                f"format:{{prompt_type:{form}}},default_reward_fn_type:{self.reward.__name__}}}")


SUM, PRODUCT, NEEDLE = ("reasoning-gym://chain_sum", "reasoning-gym://products", "reasoning-gym://needle_haystack")
SUMS = {"seed": 1, "min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}
PRODUCTS = {"seed": 1, "min_digits": 1, "max_digits": 2}
ALONE, NAME = "Reply with the answer alone.", "Reply with the name alone."
TASKS = {
    "sums": Task(SUM, SUMS, "Answer with the whole equation, like this: 3 + 4 = 7", 20),
    "sums_alone": Task(SUM, SUMS, ALONE, 12),
    "products": Task(PRODUCT, PRODUCTS, "Answer with the whole equation, like this: 3 * 4 = 12", 20),
    "products_alone": Task(PRODUCT, PRODUCTS, ALONE, 12),
    "calls": Task("bfcl-eval://live_simple", {}, "", 64, calls_reward),
    "needle": Task(NEEDLE, {"seed": 1, "min_num_statements": 4, "max_num_statements": 8}, NAME, 12),
    "needle_long": Task(NEEDLE, {"seed": 1, "min_num_statements": 20, "max_num_statements": 30}, NAME, 12),
    "spelling": Task("reasoning-gym://spell_backward", {"seed": 1, "min_word_len": 3, "max_word_len": 4},
                     "Reply with the word alone, like this: eerht", 8),
    "letters": Task("reasoning-gym://letter_counting", {"seed": 1, "min_words": 15, "max_words": 30}, ALONE, 8),
}
TEMPLATE = HERE / "evidence_tools.jinja"  # the model's, which leaves tools out, with tools
METHODS = ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo")
SEEDS, SAMPLES, HELD_OUT, TRAIN = (1, 2, 3), 8, 192, 2000
SPREAD = 0.1  # most that one answer solves of a task to train on: a policy finds it before it finds a skill
CACHE = 4 << 30  # bytes of the scoring engine's cache
CELLS = ("gains", "methods", "alone", "trl")
SHARED = ("explorer.rollout_model.gpu_memory_utilization=0.05", "explorer.rollout_model.engines_per_gpu=2",
          "explorer.rollout_model.enforce_eager=true", "trainer.compile=false", "trainer.max_token_len_per_gpu=4096",
          "trainer.save_interval=1000")  # of a GPU with other runs on it, where starting takes longer than decoding
FEWER = {"dapo": 20}  # steps of a method that generates several times what others do in a step

COLUMNS = ("run", "step", "seconds", "sampled", "gain, points", "greedy", "gain, points", f"pass@{SAMPLES}",
           "one answer", "tokens a reply", "million tokens")

Run = tuple[str, str, int]  # task, method, seed


def chosen(given: argparse.Namespace) -> list[str]:
    """The two sets with the highest pass@SAMPLES, one of a generator, of those where no answer solves more than
    SPREAD."""
    spread = [one for one in files.read_json(given.root / "base.json")["bases"] if one["constant"] <= SPREAD]
    best: dict[str, str] = {}
    for one in sorted(spread, key=lambda one: -one["pass"][0]):
        best.setdefault(TASKS[one["task"]].path, one["task"])
    return list(best.values())[:2]


def cells(given: argparse.Namespace) -> dict[str, list[Run]]:
    tasks = chosen(given)
    return {"gains": [(task, "grpo", seed) for seed in SEEDS for task in tasks],
            "methods": [(tasks[0], method, seed) for seed in SEEDS for method in METHODS[1:]],
            "alone": [(tasks[0], "alone", 1)], "trl": [(tasks[0], "trl", 1)]}


def name_of(run: Run) -> str:
    return "-".join(map(str, run))


def planned(given: argparse.Namespace, run: Run) -> Plan:
    """The plan of a run; TRL's is that of ours, as is what held-out tasks are read of; the base's has those of all."""
    task, method, seed = run
    ours, source = method if method in METHODS else "grpo", "buffer.explorer_input"
    about, place = TASKS[task], given.root / name_of(run) / "store" / ".tasks"
    if not place.exists():  # tasks of a generator are made once
        for one in (place.parent, given.root / ".tasks"):
            one.mkdir(parents=True, exist_ok=True)
        place.symlink_to(given.root / ".tasks")
    held = ",".join(TASKS[name].taskset(name, HELD_OUT, "test") for name in (TASKS if method == "base" else [task]))
    config, problems = located(compose([
        f"recipe={HERE / 'evidence.yaml'}", f"checkpoint_root_dir={given.root / name_of(run)}", f"name={name_of(run)}",
        f"model.model_path={given.model}", f"model.chat_template_path={TEMPLATE}",
        f"model.max_response_tokens={about.tokens}", f"algorithm={ours}", f"seed={seed}", "algorithm.repeat_times=8",
        f"{source}.system_prompt='{about.prompt}'", f"{source}.taskset={about.taskset('train', TRAIN, 'train')}",
        f"{source}.eval_tasksets=[{held}]",
        *([f"buffer.total_steps={FEWER[method]}"] if method in FEWER else []),
        *(SHARED if given.lanes > 1 else ()), *given.overrides]))
    if problems:
        sys.exit("\n".join(problems))
    return make_plan(config)


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
        with tables.connect([("run", rft)]) as session:
            tokens = session.execute("SELECT sum(tokens) FROM rollouts").fetchone()[0]
            steps = session.execute("SELECT step, seconds, solve_rate FROM steps ORDER BY step").fetchall()
        found = {"tokens": tokens, "steps": steps, "kept": kept(given, run, rft / "checkpoints", begin)}
    files.write_json(given.root / f"{name_of(run)}.json", found | {"seconds": time.time() - begin})


def kept(given: argparse.Namespace, run: Run, checkpoints: Path, begin: float) -> list[dict]:
    """Moves the models out of the checkpoints of a run, and deletes the rest of them."""
    found = []
    for place in sorted(one for one in checkpoints.iterdir() if one.is_dir()):
        step = int(place.name.rpartition("=")[2])
        ended, model = (place / files.MANIFEST).stat().st_mtime, given.root / "models" / f"{name_of(run)}-{step}"
        shutil.copytree(place / "model", model)
        found.append({"step": step, "seconds": ended - begin, "model": str(model)})
    shutil.rmtree(checkpoints)
    return found


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
            per_device_train_batch_size=8 * config.buffer.batch_size, temperature=1.0, beta=0.0, bf16=True,
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
        self.tokenizer.chat_template = TEMPLATE.read_text()
        self._engine = LLM(str(given.model), gpu_memory_utilization=0.2, max_model_len=2048, max_num_seqs=1024,
                           enforce_eager=True, generation_config="vllm", kv_cache_memory_bytes=CACHE)

    def load(self, model: str) -> None:
        self._engine.collective_rpc("reload_weights", kwargs={"weights_path": model})
        self._engine.reset_prefix_cache()

    def of(self, rows, config, reward: Callable) -> dict:
        """The accuracies of SAMPLES replies to each task and of its greedy one, the tokens of a reply, the share of
        tasks that one answer to all of them solves, and that of the most frequent answer among the greedy replies."""
        from vllm import SamplingParams

        texts = task_texts(self.tokenizer, rows, config)
        prompts = [{"prompt_token_ids": self.tokenizer.encode(text, add_special_tokens=False)} for text in texts]
        usual, rates, counts = {"max_tokens": config.model.max_response_tokens,
                                "stop_token_ids": [self.tokenizer.eos_token_id]}, [], []
        for sampling in ({"n": SAMPLES, "temperature": 1.0, "seed": 1}, {"temperature": 0.0}):
            replies = self._engine.generate(prompts, SamplingParams(**usual | sampling), use_tqdm=False)
            texts = [[one.text for one in reply.outputs] for reply in replies]
            for text, task in ((text, task) for several, task in zip(texts, rows, strict=True) for text in several):
                getattr(reward, "begin_comparison", reward)(text, task.answer)  # so that formulas are compared at once
            rates.append([[reward(text, task.answer)["accuracy"] for text in several]
                          for several, task in zip(texts, rows, strict=True)])
            counts.append(float(np.mean([len(one.token_ids) for reply in replies for one in reply.outputs])))
        greedy = [text for [text] in texts]
        answers = greedy if reward is calls_reward else [
            final_answers(text, task.answer, False)[0] for text, task in zip(greedy, rows, strict=True)]
        return {"sampled": rates[0], "greedy": [one for [one] in rates[1]], "tokens": counts[0], "replies": greedy,
                "constant": most_frequent([task.answer for task in rows]), "same": most_frequent(answers)}


def most_frequent(values: Sequence[str]) -> float:
    """The share of the most frequent value."""
    return Counter(values).most_common(1)[0][1] / len(values)


def base(given: argparse.Namespace) -> None:
    """Measures the base model on every task: ROOT/base.json."""
    plan = planned(given, (next(iter(TASKS)), "base", 1))
    stage = stage_of(plan, "evaluate_rft")
    tasks, found, engine = made(plan, stage.inputs["tasks"]), [], Answers(given)
    for source in stage.config.buffer.explorer_input.eval_tasksets:
        rows, about = read_eval(tasks, source), TASKS[source.name]
        config = stage.config.but("buffer.explorer_input.system_prompt", about.prompt)
        one = engine.of(rows, config.but("model.max_response_tokens", about.tokens), about.reward)
        found.append({"task": source.name} | summary(one) | {"replies": one["replies"][:8]})
        print({name: said(value) if isinstance(value, tuple) else value for name, value in found[-1].items()})
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
        found = one | engine.of(*asked[task], TASKS[task].reward)
        with (given.root / "scores.jsonl").open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(f"{name_of(one['run'])} step {one['step']}, {one['seconds']:.0f} s: {summary(found)}", flush=True)


def waiting(given: argparse.Namespace) -> list[dict]:
    """The models to score: the base on each task, the last of each run, then what curves need."""
    found = [{"run": [task, "base", 0], "step": 0, "seconds": 0.0, "model": str(given.model)} for task in chosen(given)]
    runs = [run for cell in cells(given).values() for run in cell]
    pages = [(run, given.root / f"{name_of(run)}.json") for run in runs]
    made = [[{"run": list(run)} | one for one in files.read_json(page)["kept"]] for run, page in pages if page.exists()]
    return found + [several[-1] for several in made] + [one for several in made for one in several[:-1]]


def scores(given: argparse.Namespace) -> list[dict]:
    page = given.root / "scores.jsonl"
    return [json.loads(line) for line in page.read_text().splitlines()] if page.exists() else []


def summary(one: dict) -> dict:
    """Means with their 95% intervals: (mean, low, high)."""
    return {"sampled": mean_interval([float(np.mean(replies)) for replies in one["sampled"]]),
            "greedy": mean_interval(one["greedy"]), "tokens": round(one["tokens"], 1),
            "constant": round(one["constant"], 3), "same": round(one["same"], 3),
            "pass": mean_interval([pass_at_k(len(replies), int(sum(replies)), SAMPLES) for replies in one["sampled"]])}


def gain(now: Sequence, then: Sequence) -> str:
    """The mean of paired differences by task with its 95% interval, in points."""
    mean, low, high = difference_interval([float(np.mean(one)) - float(np.mean(other))
                                           for one, other in zip(now, then, strict=True)])
    return f"{100 * mean:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def row(one: dict, base: dict) -> list:
    """The cells of COLUMNS of a scored model but the last; base: the scores before training."""
    found = summary(one)
    return [name_of(one["run"]), one["step"], round(one["seconds"]), said(found["sampled"]),
            gain(one["sampled"], base["sampled"]), said(found["greedy"]), gain(one["greedy"], base["greedy"]),
            said(found["pass"]), found["same"], found["tokens"]]


def page(given: argparse.Namespace) -> None:
    """Prints the scored models, with what each run generated for training, and the methods compared with grpo."""
    found = scores(given)
    before = {one["run"][0]: one for one in found if one["run"][1] == "base"}
    rows = []
    for one in found:
        run = given.root / f"{name_of(one['run'])}.json"
        tokens = files.read_json(run).get("tokens") if run.exists() else None
        rows.append([*row(one, before[one["run"][0]]), tokens and round(tokens / 1e6, 2)])
    print(table(COLUMNS, sorted(rows, key=lambda one: (one[0], one[1]))))
    task, means = chosen(given)[0], {}
    for method in METHODS:  # a task's accuracy is the mean of the seeds
        seeds = [[np.mean(replies) for replies in one["sampled"]] for one in found if one["run"][:2] == [task, method]]
        means |= {method: np.mean(seeds, axis=0)} if seeds else {}
    print(table(("method", "sampled", "compared with grpo, points"), [
        [method, said(mean_interval(list(mean))), gain(mean, means["grpo"])] for method, mean in means.items()]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("base", "train", "score", "page", "one"))
    for name in ("root", "model"):
        parser.add_argument(f"--{name}", type=lambda text: Path(text).resolve(), required=True)
    parser.add_argument("--only", nargs="+", choices=CELLS, default=CELLS)
    parser.add_argument("--lanes", type=int, default=1, help="runs at a time on the GPU; their seconds are no others'")
    parser.add_argument("--limit", type=float, default=3600, help="seconds after which nothing runs")
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
