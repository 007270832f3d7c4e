"""Measures the update alone on one GPU: forward, backward and optimizer of steps, of this tree and of another.

    python -m benchmarks.gpu_update --root /tmp/update --other /path/to/older/checkout --out update.json

A random model in the shape of Qwen2.5-0.5B (bfloat16), or another `--shape`; 512 rows of 128 prompt and 512 response
tokens (327,680 tokens a step), GRPO or `--stage sft`, ZeRO 1, micro-batches of at most 32,768 tokens. Each variant is a
separate process, and the variants take turns, so that a machine that changes its speed changes it for all. The other
tree runs with gradient checkpointing, as its `benchmarks.gpu_path` does. `--group 8` compares prefixes that rows share
with those of each row: once with the defaults, then `--prompt 2048 --rows 128`, and `--prompt 16384 --response 64
--rows 64`; with `--prompt 1024 --response 2048 --turns 4 --rows 64` groups are conversations behind one system
prompt, of four turns of 128 tokens that are given and 384 that are trained, forked at each turn. Prints medians and
spreads over all measured steps, the estimate of memory, MFU, and how far the log-probs of 16 rows are from those of a
float32 model (`--no-exact`: not). MFU is counted as prime-rl does (src/prime_rl/trainer/perf.py): 6 x parameters in
matrix products + 12 x layers x width x length for each token, of 989 TFLOP/s. Requires a GPU and deepspeed, but neither
vllm nor Snakemake.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.gpu_path import SHAPES, make_model

PEAK = 989e12  # bfloat16 operations per second of an H100 SXM or H200, without sparsity
WARM = 2  # steps of a process that are not measured
SHARING = {"shared where that saves": [], "rows apart": ["trainer.share_prompts=false"],
           "every prefix shared": ["trainer.share_prompts=true"]}
RECOMPUTE = "trainer.enable_gradient_checkpointing=true"
VARIANTS = {  # name -> overrides, of this tree
    "as set by default": [],
    "gradient checkpointing": [RECOMPUTE],
    "eager, gradient checkpointing": ["trainer.compile=false", RECOMPUTE],
}
EXACT = ["model.dtype=float32", "trainer.attention=padded", "trainer.compile=false", RECOMPUTE]


@dataclass(frozen=True)
class Shape:
    """Rows of a step, tokens of each, how many follow one another with the same prompt, and the turns of a response.

    turns: of conversations, if more than one: all rows have the same prompt, and `group` of them the first turn; each
    further turn forks in two.
    """

    rows: int
    prompt: int
    response: int
    group: int
    turns: int = 1

    def make(self, count: int) -> list:
        from ouroboros.stages.learner.engine.batch import Row

        random, made = np.random.default_rng(0), []
        for i in range(count):
            if i % self.group == 0 and (i == 0 or self.turns == 1):
                prompt = random.integers(0, 151936, self.prompt).tolist()
            response = self.conversation(i) if self.turns > 1 else random.integers(0, 151936, self.response).tolist()
            given = self.response // self.turns // 4 if self.turns > 1 else 0  # of a turn, by a user
            mask = ([0] * given + [1] * (self.response // self.turns - given)) * self.turns
            made.append(Row(f"r{i}", prompt + response, self.prompt, mask, {"advantages": 1.0 if i % 2 else -1.0}))
        return made

    def conversation(self, row: int) -> list[int]:
        """The turns of a row, equal where conversation, turn and branch are."""
        tokens: list[int] = []
        for turn in range(self.turns):
            branch = row % self.group >> self.turns - 1 - turn
            random = np.random.default_rng([1, row // self.group, turn, branch])
            tokens += random.integers(0, 151936, self.response // self.turns).tolist()
        return tokens


def settings(overrides: list[str], shape: Shape, stage: str = "rft"):
    from ouroboros.pipeline.check.judge import compose
    from ouroboros.pipeline.compose.recipe import effective

    usual = ["monitor.monitor_type=none", "trainer.zero_stage=1", "trainer.max_token_len_per_gpu=32768",
             "algorithm.optimizer.lr=1e-6", f"model.max_prompt_tokens={shape.prompt}",
             f"model.max_response_tokens={shape.response}"]
    given = {override.partition("=")[0] for override in overrides}
    config = compose([*(one for one in usual if one.partition("=")[0] not in given), *overrides])
    return effective(config, next(one for one in config.stages if one["stage_name"] == stage))


def flops_per_token(config, length: int) -> float:
    """Floating-point operations of forward and backward per token, as prime-rl counts them. config: transformers'."""
    width, layers, heads = config.hidden_size, config.num_hidden_layers, config.num_attention_heads
    head = getattr(config, "head_dim", None) or width // heads
    attention = 2 * width * head * (heads + config.num_key_value_heads)
    multiplied = layers * (attention + 3 * width * config.intermediate_size) + width * config.vocab_size
    return 6 * multiplied + 12 * layers * width * length


def measure(given, overrides: list[str], shape: Shape, logprobs: Path) -> dict:
    """Steps of one variant in this process: seconds of each, the first one's, memory, loss and gradient norm."""
    import torch
    from transformers import AutoConfig

    from ouroboros.stages import recompute
    from ouroboros.stages.learner.actor import Actor
    from ouroboros.stages.learner.engine.process import Process
    from ouroboros.stages.learner.objective import Objective

    model, steps = given.root / "model", given.steps
    config, process = settings(overrides, shape, given.stage), Process.start(1)
    found, cuda = {"seconds": [], "losses": [], "norms": []}, process.device.type == "cuda"
    if hasattr(config.trainer, "compile"):
        print(recompute.resolve(config, model, False), file=sys.stderr)
        if hasattr(recompute, "needed"):  # not in older trees
            found["estimate_gib"] = recompute.needed(config, model, False) / 2**30
    actor = Actor(model, config, process)
    if given.exact:
        np.save(logprobs, np.concatenate(actor.score_rows(shape.make(16))))
    if steps:
        objective, rows = Objective(config), shape.make(shape.rows)
        for row, values in zip(rows, actor.score_rows(rows), strict=True):
            every = np.zeros(len(row.mask))
            every[np.asarray(row.mask, bool)] = values
            row.columns |= dict.fromkeys(("rollout_logprobs", "old_logprobs"), every.tolist())
        actor.peak_memory_gib()
        for number in range(1, WARM + steps + 1):
            begin = time.perf_counter()
            result = actor.step(rows, objective, 1e-6, number)
            if cuda:
                torch.cuda.synchronize()
            found["seconds"].append(time.perf_counter() - begin)
            found["losses"].append(result.loss)
            found["norms"].append(result.grad_norm)
        found |= {"peak_gib": actor.peak_memory_gib() or 0.0, "tokens": result.tokens,
                  "graphs": getattr(result, "compiled_graphs", None),
                  "flops": flops_per_token(AutoConfig.from_pretrained(model), shape.prompt + shape.response)}
    if hasattr(getattr(actor, "way", None), "every"):  # not in older trees
        micros = process.pack(rows, config.trainer.max_token_len_per_gpu, fill=actor.way.fill) if steps else []
        found |= {"computed": sum(len(micro.input_ids) for micro in micros), "micro_batches": len(micros)}
    if hasattr(config.trainer, "compile"):
        from ouroboros.stages.learner.engine.compiled import GRAPHS

        found |= {"graphs": GRAPHS.count, "compile_seconds": GRAPHS.seconds, "refused": GRAPHS.refused,
                  "checkpointing": config.trainer.enable_gradient_checkpointing}
    process.stop()
    return found


def started(tree: Path, given, name: str, overrides: list[str], shape: Shape, steps: int) -> dict:
    """`measure` in its own process, with the code of a tree."""
    answer, wrapped = given.root / f"{name}.json", [f"--set={one}" for one in overrides]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(
        [f"{tree}/src", str(tree), os.environ.get("PYTHONPATH", "")]),
                                "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    begin = time.time()
    command = [sys.executable, "-P", str(Path(__file__).resolve()), "--root", str(given.root), "--steps", str(steps),
               "--stage", given.stage, "--exact" if given.exact else "--no-exact",
               *(f"--{key}={value}" for key, value in asdict(shape).items())]
    done = subprocess.run([*command, "--one", str(answer), *wrapped], cwd=tree, env=environment, capture_output=True,
                          text=True, check=False)
    if done.returncode:
        return {"failed": done.stderr[-1500:]}
    return json.loads(answer.read_text()) | {"process_seconds": time.time() - begin}


def line(name: str, runs: list[dict], exact: np.ndarray | None, scored: Path) -> dict:
    """The figures of a variant over all of its processes."""
    failed = [run["failed"] for run in runs if "failed" in run]
    if failed:
        return {"variant": name, "failed": failed[0]}
    seconds = sorted(second for run in runs for second in run["seconds"][WARM:])
    speeds = [runs[0]["tokens"] / second for second in seconds]
    made = {"variant": name, "tokens/s": round(median(speeds)), "lowest": round(min(speeds)),
            "highest": round(max(speeds)), "steps": len(speeds), "seconds": round(median(seconds), 3),
            "MFU %": round(100 * median(speeds) * runs[0]["flops"] / PEAK, 1),
            "peak GiB": round(max(run["peak_gib"] for run in runs), 1),
            "estimate GiB": round(runs[0].get("estimate_gib", 0), 1) or None,
            "first step s": round(median(run["seconds"][0] for run in runs), 1),
            "computed %": round(100 * runs[0].get("computed", 0) / runs[0]["tokens"], 1) or None,
            "loss": runs[0]["losses"][0], "norms": [round(norm, 5) for norm in runs[0]["norms"][:3]],
            **{key: runs[0].get(key) for key in ("graphs", "compile_seconds", "refused", "checkpointing",
                                                 "micro_batches")}}
    if exact is not None:
        off = np.abs(np.load(scored) - exact)
        made["|log-prob - float32|"] = {"mean": float(off.mean()), "p95": float(np.quantile(off, 0.95)),
                                        "max": float(off.max()),
                                        "ratio outside [0.9, 1.1]": float((off > np.log(1.1)).mean())}
    return made


def compare(given) -> list[dict]:
    root, here = given.root, Path(__file__).resolve().parent.parent
    root.mkdir(parents=True, exist_ok=True)
    if not (root / "model").exists():
        make_model(root / "model", given.shape)
    shape = shape_of(given)
    if shape.turns > 1 and shape.group > 2 ** (shape.turns - 1):
        sys.exit(f"--group {shape.group}: {shape.turns} turns fork into {2 ** (shape.turns - 1)} rows at most.")
    variants = {name: [f"trainer.attention={name}"] for name in given.attention} or (
        SHARING if shape.group > 1 else VARIANTS)
    runs = {f"this tree, {name}": (here, [*overrides, *given.set]) for name, overrides in variants.items()
            if not given.only or name in given.only}
    if given.other:
        runs = {"the other tree": (given.other, [RECOMPUTE]), **runs}
    exact = started(here, given, "exact", EXACT, shape, 0) if given.exact else {"failed": "not asked for"}
    found: dict[str, list[dict]] = {name: [] for name in runs}
    for turn in range(given.rounds):
        for index, (name, (tree, overrides)) in enumerate(runs.items()):
            if turn == 0 or index < 3:  # the last one shows that nothing else changed
                found[name].append(started(tree, given, f"v{index}", overrides, shape, given.steps))
                if given.out:
                    given.out.write_text(json.dumps(found, indent=1))
    reference = None if "failed" in exact else np.load(root / "exact.npy")
    return [line(name, runs, reference, root / f"v{index}.npy") for index, (name, runs) in enumerate(found.items())]


def shape_of(given) -> Shape:
    return Shape(*(getattr(given, one.name) for one in fields(Shape)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="an empty directory for model and results")
    parser.add_argument("--other", type=Path, help="a checkout to compare with")
    parser.add_argument("--steps", type=int, default=5, help="measured steps of a process, after two that warm up")
    parser.add_argument("--rounds", type=int, default=2, help="how often the variants take turns")
    parser.add_argument("--attention", action="append", default=[], help="compare these values of trainer.attention "
                                                                         "instead of the usual variants")
    parser.add_argument("--rows", type=int, default=512, help="of a step")
    parser.add_argument("--prompt", type=int, default=128, help="tokens")
    parser.add_argument("--response", type=int, default=512, help="tokens")
    parser.add_argument("--group", type=int, default=1, help="rows with the same prompt, or of a conversation; above "
                                                             "1 the variants are prefixes shared and rows apart")
    parser.add_argument("--turns", type=int, default=1, help="of conversations that fork at each, behind one prompt")
    parser.add_argument("--shape", choices=SHAPES, default="Qwen2.5-0.5B")
    parser.add_argument("--stage", choices=("rft", "sft"), default="rft")
    parser.add_argument("--only", action="append", help="a variant to measure; default: all")
    parser.add_argument("--set", action="append", default=[], help="an override of all variants of this tree")
    parser.add_argument("--exact", action=argparse.BooleanOptionalAction, default=True,
                        help="compare log-probs with a float32 model's")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        found = measure(given, given.set, shape_of(given), given.one.with_suffix(".npy"))
        given.one.write_text(json.dumps(found))
        return
    lines = compare(given)
    for one in lines:
        print(json.dumps(one))
    base, *ours = lines
    if given.other and "failed" not in base:
        for one in ours:
            if "failed" not in one:
                print(f"{one['variant']}: {one['tokens/s'] / base['tokens/s']:.2f} x the other tree")
    if given.out:
        given.out.write_text(json.dumps(lines, indent=1))


if __name__ == "__main__":
    main()
