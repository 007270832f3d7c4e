"""Measures rollouts on one GPU with one and several engines, of this tree and of another.

    python -m benchmarks.gpu_rollout --root /tmp/rollout --other /path/to/older/checkout --out rollout.json

A random model in the shape of Qwen2.5-0.5B (bfloat16), 64 tasks x 8 rollouts of 128 prompt and 512 response tokens a
step (262,144 tokens), with log-probs and a seed for each request: the stage `rollout` (mode=explore), which writes rows
as in training. Each variant is a separate process, and the variants take turns, so that a machine that changes its
speed changes it for all. Prints medians and spreads over the steps after the first, the seconds until the engines were
open, and the share of answers equal to those of the first variant's first run. Requires a GPU and vllm.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from benchmarks.gpu_path import PROMPT_TOKENS, RESPONSE_TOKENS, make_model, make_tasks

ENGINES = "explorer.rollout_model.engines_per_gpu"
VARIANTS = {"1 engine": [f"{ENGINES}=1"], "2 engines": [f"{ENGINES}=2"], "3 engines": [f"{ENGINES}=3"],
            "4 engines": [f"{ENGINES}=4"],
            **{f"{n} engine{'s' * (n > 1)}, batch invariant": [
                f"{ENGINES}={n}", "explorer.rollout_model.batch_invariant=true"] for n in (1, 2)}}


def measure(root: Path, model: Path, overrides: list[str], steps: int) -> dict:
    """Runs one stage of rollouts; returns its steps. Called with the code of the tree in the current directory."""
    from ouroboros.pipeline.check.judge import compose
    from ouroboros.pipeline.plan.plan import make_plan
    from ouroboros.pipeline.store import records, tables

    usual = [
        f"checkpoint_root_dir={root}", "project=gpu", "name=rollout", "mode=explore", "monitor.monitor_type=none",
        "stages=[{stage_name: rollout}]", "model.init.enable=false", f"model.model_path={model}",
        f"model.max_prompt_tokens={PROMPT_TOKENS}", f"model.max_response_tokens={RESPONSE_TOKENS}",
        "buffer.explorer_input.default_reward_fn_type=benchmarks.gpu_path:hash_reward",
        "buffer.explorer_input.eval_tasksets=[]", f"buffer.total_steps={steps}", "buffer.batch_size=64",
        "explorer.rollout_model.gpu_memory_utilization=0.5", "explorer.rollout_model.max_num_seqs=512"]
    given = {override.partition("=")[0] for override in overrides}
    plan = make_plan(compose([*(one for one in usual if one.partition("=")[0] not in given), *overrides]))
    plan.freeze()
    make_tasks(Path(next(s for s in plan.stages if s.name == "curate").directory))
    stage = next(s for s in plan.stages if s.name == "rollout")
    begin = time.time()
    subprocess.run([sys.executable, "-m", "ouroboros.stages.rollout", stage.directory], check=True)
    rollouts = [tables.read(tables.step_file(Path(stage.directory), "rollouts", step), records.Rollout).to_pylist()[0]
                for step in range(1, steps + 1)]
    tokens = tables.read(tables.step_file(Path(stage.directory), "experience", 2), records.Experience)
    return {"steps": [[one["tokens"], one["rollout_seconds"], one["other_seconds"]] for one in rollouts],
            "seconds": time.time() - begin, "answers": tokens.column("response_tokens").to_pylist()}


def started(tree: Path, given, name: str, overrides: list[str]) -> dict:
    """`measure` in its own process, with the code of a tree."""
    answer, root = given.root / f"{name}.json", given.root / name
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(
        [f"{tree}/src", str(tree), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-P", str(Path(__file__).resolve()), "--root", str(root), "--steps", str(given.steps),
               "--model", str(given.root / "model"), "--one", str(answer), *(f"--set={one}" for one in overrides)]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    return {"failed": (done.stdout + done.stderr)[-1500:]} if done.returncode else json.loads(answer.read_text())


def line(name: str, runs: list[dict], wanted: list[list[int]] | None) -> dict:
    """The figures of a variant over all of its processes."""
    if failed := [run["failed"] for run in runs if "failed" in run]:
        return {"variant": name, "failed": failed[0]}
    speeds = [tokens / seconds for run in runs for tokens, seconds, _ in run["steps"][1:]]
    equal = [one == other for one, other in zip(runs[0]["answers"], wanted or (), strict=False)]
    return {"variant": name, "tokens/s": round(median(speeds)), "lowest": round(min(speeds)),
            "highest": round(max(speeds)), "steps": len(speeds),
            "rewards and rows s": round(median(other for run in runs for _, _, other in run["steps"][1:]), 3),
            "start s": [round(run["seconds"] - sum(a + b for _, a, b in run["steps"]), 1) for run in runs],
            "equal answers": round(sum(equal) / len(equal), 3) if equal else None}


def compare(given) -> list[dict]:
    here = Path(__file__).resolve().parent.parent
    given.root.mkdir(parents=True, exist_ok=True)
    if not (given.root / "model").exists():
        make_model(given.root / "model")
    runs = {name: (here, overrides) for name, overrides in VARIANTS.items()
            if not given.only or name in given.only} | {" ".join(given.set): (here, given.set) for _ in given.set[:1]}
    if given.other:
        runs = {"the other tree": (given.other, []), **runs}
    found: dict[str, list[dict]] = {name: [] for name in runs}
    for turn in range(given.rounds):
        for index, (name, (tree, overrides)) in enumerate(runs.items()):
            found[name].append(started(tree, given, f"v{index}-{turn}", overrides))
            print(json.dumps(line(name, found[name][-1:], None)), flush=True)
    first = next(iter(found.values()))[0].get("answers")
    return [line(name, runs, first) for name, runs in found.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="an empty directory for model and results")
    parser.add_argument("--other", type=Path, help="a checkout to compare with")
    parser.add_argument("--steps", type=int, default=4, help="steps of a process, the first of which warms up")
    parser.add_argument("--rounds", type=int, default=2, help="how often the variants take turns")
    parser.add_argument("--only", action="append", choices=VARIANTS, help="a variant to measure; default: all")
    parser.add_argument("--set", action="append", default=[], help="an override of one more variant")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        given.one.write_text(json.dumps(measure(given.root, given.model, given.set, given.steps)))
        return
    lines = compare(given)
    for one in lines:
        print(json.dumps(one))
    base, *ours = lines
    for one in ours:
        if not {"failed"} & {*base, *one}:
            print(f"{one['variant']}: {one['tokens/s'] / base['tokens/s']:.2f} x {base['variant']}")
    if given.out:
        given.out.write_text(json.dumps(lines, indent=1))


if __name__ == "__main__":
    main()
