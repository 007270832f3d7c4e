"""Runs rft stages of each way to use several GPUs, and the longest rows that one and two of them train.

    python -m benchmarks.gpu_two --root /tmp/two --out two.jsonl
    python -m benchmarks.gpu_two --root /tmp/long --out long.jsonl --long Qwen2.5-0.5B --tokens 32768 --tokens 65536

The first: random bfloat16 models in the shape of Qwen2.5-0.5B, 64 tasks x 8 rollouts of 128 + 512 tokens a step, vllm
(VARIANTS, MORE); for each the largest memory in use on its GPUs by NVML, the estimate of `ouro config check` and the
largest difference of a log-prob at a hand-over of weights. `killed and resumed` ends every process after its first
checkpoint and starts the stage again. The second: sft updates of a single row (or with `--lora 7B LoRA`), without an
engine, layers recomputed, on one GPU and split between two (`trainer.ulysses_sequence_parallel_size=2`). Each result is
a line of --out as soon as it is there. Requires as many GPUs as a variant takes (CUDA_VISIBLE_DEVICES), vllm,
deepspeed and pynvml.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.gpu_memory import DeviceMemory, estimate
from benchmarks.gpu_path import ENDS_WITH_US, QUESTION, SHAPES, make_model, make_tasks
from benchmarks.gpu_peers import TWO, planned
from benchmarks.gpu_update import RECOMPUTE, Shape, settings

SMALL, LARGER = "Qwen2.5-0.5B", "Qwen2.5-1.5B"
AHEAD = ["synchronizer.sync_offset=1", "explorer.rollout_model.gpu_memory_utilization=0.3"]
DRIVEN = ["mode=both", "synchronizer.max_staleness=2"]
FOUR = ["trainer.ranks=4", "explorer.rollout_model.engine_num=4"]
LORA = "model.lora_configs=[{lora_rank: 16, lora_alpha: 32, target_modules: all-linear}]"
SPLIT = "trainer.ulysses_sequence_parallel_size=2"
KILLED = "killed and resumed"
VARIANTS: dict[str, tuple[str, list[str]]] = {  # name -> shape, settings
    "one GPU, in turns": (SMALL, []),
    "in turns": (SMALL, TWO),
    "at once": (SMALL, [*TWO, *AHEAD, "trainer.overlap=true"]),
    "mode=both": (SMALL, ["mode=both", *AHEAD[:1]]),
    "ZeRO-2": (SMALL, [*TWO, "trainer.zero_stage=2"]),
    "ZeRO-3": (SMALL, [*TWO, "trainer.zero_stage=3"]),
    "tensor parallel": (SMALL, ["trainer.ranks=2", "explorer.rollout_model.tensor_parallel_size=2"]),
    "LoRA": (SMALL, [*TWO, LORA]),
    "PPO with a critic": (SMALL, [*TWO, "algorithm=ppo"]),
    "sequences split": (SMALL, [*TWO, SPLIT]),
    "1.5B": (LARGER, [*TWO, "trainer.max_token_len_per_gpu=16384"]),
    KILLED: (SMALL, [*TWO, "trainer.save_interval=1"]),
    "one GPU, truncated sampling": (SMALL, ["model.top_p=0.9", "model.top_k=50"]),
    "trainer_driven": (SMALL, [*DRIVEN, "synchronizer.sync_style=trainer_driven"]),
    "explorer_driven": (SMALL, [*DRIVEN, "synchronizer.sync_style=explorer_driven"]),
}
MORE = {  # those that take three or four GPUs
    "mode=both, engines on two more": (SMALL, ["mode=both", *AHEAD[:1], "explorer.rollout_model.engine_num=2"]),
    "mode=both, engines on three more": (SMALL, ["mode=both", *AHEAD[:1], "explorer.rollout_model.engine_num=3"]),
    "four, in turns": (SMALL, FOUR),
    "four, at once": (SMALL, [*FOUR, *AHEAD, "trainer.overlap=true"]),
}


def rounded(values: dict) -> dict:
    return {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in values.items()}


def run(words: list[str], output: Path, limit: float, until: Callable[[], bool] = lambda: False, **more: str) -> str:
    """Runs a command; after `limit` seconds, or once `until` says so, all of its processes are killed."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("a") as file:
        process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
                                   preexec_fn=ENDS_WITH_US, env=os.environ | more)
        begin = time.monotonic()
        while process.poll() is None:
            if until() or time.monotonic() - begin > limit:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return "killed"
            time.sleep(0.1)
    return f"exit code {process.returncode}"


def rollouts(given, name: str) -> dict:
    """One variant: its steps, memory and estimate."""
    from ouroboros.pipeline.store import records, tables

    variants = VARIANTS | MORE
    shape, overrides = variants[name]
    model, root = given.root / shape, given.root / f"v{list(variants).index(name)}"
    if not model.exists():
        make_model(model, shape)
    plan, stage = planned(root, model, given.steps, [*overrides, *given.overrides])
    plan.freeze()
    make_tasks(Path(next(one for one in plan.stages if one.name == "curate").directory))
    directory, words = Path(stage.directory), [sys.executable, "-m", "ouroboros.stages.rft", stage.directory]
    begin, ended = time.time(), []
    with DeviceMemory() as memory:
        if name == KILLED:
            ended.append(run(words, root / "output", given.limit,
                             lambda: (directory / "checkpoints" / "step=1").exists()))
        ended.append(run(words, root / "output", given.limit))
    with tables.connect([("gpu", directory)]) as session:
        steps = session.sql(QUESTION).to_arrow_table().to_pylist()
    probes = [tables.read(tables.step_file(directory, "rollouts", step), records.Rollout).to_pylist()[0]
              ["probe_max_difference"] for step in tables.steps_present(directory, "rollouts")]
    found = {"variant": name, "ended": ended, "process_seconds": time.time() - begin, "gpu_gib": memory.largest,
             "estimate_gib": estimate(stage.config, model),
             "probe": max((one for one in probes if one is not None), default=None), "steps": steps}
    if len(steps) < given.steps:
        found["failed"] = (root / "output").read_text(errors="replace")[-3000:]
    return found


def line(found: dict) -> dict:
    """The figures of a variant: medians of its steps after the first."""
    if len(found.get("steps", ())) < 2:
        return {key: value for key, value in found.items() if key != "steps"}
    parts = ("seconds", "rollout_seconds", "train_seconds", "publish_seconds", "sync_seconds", "peak_memory_gib",
             "mismatch_mean")
    later = {part: [step[part] for step in found["steps"][1:] if step[part] is not None] for part in parts}
    return rounded({"variant": found["variant"], **{part: median(values) for part, values in later.items() if values},
                    "gpu_gib": found["gpu_gib"], "estimate_gib": found["estimate_gib"], "probe": found["probe"],
                    "ended": " / ".join(found["ended"])})


# ----------------------------------------------------------------------------------------------------------- long rows


def long_row(given, cards: int, tokens: int) -> dict:
    """Updates of one row on one or two GPUs: tokens per second and memory, or the end of the output."""
    model, out = given.root / given.long, given.root / f"{given.long}-{cards}-{tokens}.json"
    if not model.exists():
        make_model(model, given.long, max_position_embeddings=1 << 20)
    words = [sys.executable, "-m", "benchmarks.gpu_two", *sys.argv[1:], "--one", str(out), "--cards", str(cards),
             "--row", str(tokens)]
    output, failed = out.with_suffix(".log"), []

    def one(rank: int) -> None:
        names = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(cards), "LOCAL_WORLD_SIZE": str(cards),
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        ended = run(words, output, given.limit, lambda: bool(failed), **names)
        if ended != "exit code 0":  # the others would wait for it
            failed.append(ended)

    with DeviceMemory() as memory:
        ranks = [threading.Thread(target=one, args=(rank,)) for rank in range(cards)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
    found = {"shape": given.long, "lora": given.lora, "cards": cards, "tokens": tokens, "gpu_gib": memory.largest}
    return rounded(found | (json.loads(out.read_text()) if out.exists() else {
        "failed": output.read_text(errors="replace")[-1500:]}))


def update(given) -> None:
    """One rank of `long_row`."""
    import torch

    from ouroboros.stages import recompute
    from ouroboros.stages.learner.actor import Actor
    from ouroboros.stages.learner.engine.process import Process
    from ouroboros.stages.learner.objective import Objective

    shape = Shape(1, 64, given.row - 64, 1)
    split = [f"trainer.{name}={value}" for name, value in (
        ("ranks", given.cards), ("ulysses_sequence_parallel_size", given.cards),
        ("max_token_len_per_gpu", -(-given.row // given.cards)))]
    config = settings([RECOMPUTE, *split, *[LORA] * given.lora, *given.overrides], shape, "sft")
    process = Process.start(1, given.one.with_suffix(".ranks"), given.cards)
    model = given.root / given.long
    needed = recompute.needed(config, model, False) / 2**30
    actor = Actor(model, config, process)
    objective, rows, seconds = Objective(config), shape.make(1), []
    for number in range(1, 4):
        begin = time.perf_counter()
        actor.step(rows, objective, 1e-6, number)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    if process.rank == 0:
        given.one.write_text(json.dumps({"tokens/s": given.row / min(seconds[1:]), "torch_gib": actor.peak_memory_gib(),
                                         "estimate_gib": needed, "seconds": seconds}))
    process.barrier()
    process.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="an empty directory for models and results")
    parser.add_argument("--out", type=Path, required=True, help="file to which a JSON line is added for each result")
    parser.add_argument("--only", action="append", choices=VARIANTS | MORE, help="default: those of one and two GPUs")
    parser.add_argument("--steps", type=int, default=4, help="optimizer steps, the first of which warms up")
    parser.add_argument("--limit", type=float, default=240, help="seconds after which a process is ended")
    parser.add_argument("--long", choices=SHAPES, help="measure long rows of this shape instead")
    parser.add_argument("--lora", action="store_true", help="train an adapter of rank 16 with long rows")
    parser.add_argument("--tokens", type=int, action="append", default=[], help="of the row; several are tried in turn")
    parser.add_argument("--on", type=int, action="append", default=[], choices=(1, 2), help="GPUs; default: 1 and 2")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--cards", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*", help="more settings, key=value")
    given = parser.parse_args()
    if given.one:
        return update(given)
    given.root.mkdir(parents=True, exist_ok=True)

    def told(found: dict, said: dict) -> None:
        with given.out.open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(json.dumps(said), flush=True)

    if given.long:
        for cards in given.on or (1, 2):
            for tokens in given.tokens:
                told(found := long_row(given, cards, tokens), found)
                if "failed" in found:
                    break
    for name in () if given.long else given.only or VARIANTS:
        found = rollouts(given, name)
        told(found, line(found))
    return None


if __name__ == "__main__":
    main()
