"""Seconds of one rft step: ours against TRL's GRPOTrainer, alternating on the same machine.

ours  the run's own rft stage (vLLM explorer and DeepSpeed trainer, files, SQL and MLflow included), re-run from the
      same inputs in a temporary directory. A step is the wall time from one file of the `steps` table to the next.
TRL   GRPOTrainer with transformers' generate (benchmarks/trl_grpo.py): same model, tasks, reward, settings.

Alternating exposes both to the same noise. Both use the same learning rate, by default so small that the policy does
not change: with the recipe's own rate the policies diverge, one writes shorter responses, and the steps are no longer
comparable. The table lists the tokens that each generated. TRL runs with one thread and with all cores, because on a
busy machine many threads wait for each other. Limit: ours is not slower than the faster of the two, by median and by
mean.
"""

import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from itertools import pairwise
from pathlib import Path

from benchmarks.measurement import HERE, RESULTS, Measurement, open_run, parser, spread, stage_of, table
from ouroboros.pipeline.plan.plan import Plan, make_plan
from ouroboros.pipeline.results.view import View
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.store import tables

NEEDED = 1.0
MISSING = ("TRL is not installed, and without it there is nothing to compare with. Only this benchmark needs it: "
           ".venv/bin/pip install --no-deps -r benchmarks/requirements-trl.txt")


def temporary_plan(view: View, root: Path, steps: int, lr: float | None) -> Plan:
    """The run's frozen plan in another root, with `steps` rft steps and learning rate `lr`."""
    from omegaconf import OmegaConf

    config = OmegaConf.to_container(OmegaConf.load(view.path / "config.yaml"))
    config |= {"checkpoint_root_dir": str(root), "name": "step"}
    overlay = next(stage for stage in config["stages"] if stage["stage_name"] == "rft")
    overlay.setdefault("buffer", {})["total_steps"] = steps
    if lr is not None:
        overlay.setdefault("algorithm", {}).setdefault("optimizer", {})["lr"] = lr
    return make_plan(Config.partial(config))


def copy_inputs(view: View, plan: Plan) -> Path:
    """Copies the stages that rft reads to the new root; returns the rft directory."""
    wanted = next(stage for stage in plan.stages if stage.name == "rft")
    unneeded = shutil.ignore_patterns("checkpoints", "stage.json", ".lock")
    for stage in plan.stages:
        if stage.directory in wanted.inputs.values():
            shutil.copytree(stage_of(view, stage.name).directory, stage.directory, ignore=unneeded)
    plan.freeze()
    return Path(wanted.directory)


def command(words: list[str], log: Path, threads: int | None = None) -> None:
    """Runs one of our modules with its output in `log`; exits when it fails."""
    environment = os.environ | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    with open(log, "ab") as file:
        done = subprocess.run([sys.executable, "-m", *words], cwd=HERE.parent, stdout=file, stderr=file,
                              env=environment, check=False)
    if done.returncode != 0:
        sys.exit(f"python -m {' '.join(words)} ended with exit code {done.returncode}. The end of {log}:\n"
                 + "\n".join(log.read_text(errors="replace").splitlines()[-15:]))


def our_turn(stage: Path, log: Path, warmup: int) -> tuple[list[float], list[int]]:
    """Runs the rft stage from scratch; wall seconds and generated tokens of each step after warm-up."""
    for path in stage.iterdir():
        if path.name != "stage.json":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    command(["ouroboros.stages.rft", str(stage)], log)
    ends = [tables.step_file(stage, "steps", s).stat().st_mtime_ns / 1e9 for s in tables.steps_present(stage, "steps")]
    question = f"SELECT rollout_tokens FROM steps WHERE step > {warmup + 1} ORDER BY step"
    tokens = [row[0] for row in tables.connect([("step", stage)]).execute(question).fetchall()]
    return [b - a for a, b in pairwise(ends)][warmup:], tokens


def trl_turn(stage: Path, log: Path, warmup: int, steps: int, threads: int) -> tuple[list[float], list[int]]:
    """As `our_turn`, for TRL."""
    output = stage.parent / "trl.json"
    command(["benchmarks.trl_grpo", str(stage), str(output), "--steps", str(steps)], log, threads)
    found = json.loads(output.read_text())
    rows = json.loads((stage / "stage.json").read_text())["config"]
    rows = rows["buffer"]["batch_size"] * rows["algorithm"]["repeat_times"]
    lengths = [entry["completions/mean_length"] for entry in found["log"] if "completions/mean_length" in entry]
    return found["seconds"][warmup:], [round(length * rows) for length in lengths[warmup + 1 :]]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--steps", type=int, default=40, help="of each side, each turn (default: 40)")
    arguments.add_argument("--warmup", type=int, default=5, help="first steps, which do not count (default: 5)")
    arguments.add_argument("--turns", type=int, default=3, help="of ours and TRL (default: 3)")
    arguments.add_argument("--lr", default="1e-7", help="learning rate of both, or `recipe` (default: 1e-7)")
    given = arguments.parse_args()
    if given.steps < given.warmup + 2:
        arguments.error(f"--steps {given.steps}: needed at least --warmup + 2 = {given.warmup + 2}.")
    if importlib.util.find_spec("trl") is None:
        sys.exit(MISSING)
    view, lr = open_run(given), None if given.lr == "recipe" else float(given.lr)
    said = Measurement("step", "One rft step: ours against TRL's GRPOTrainer")
    RESULTS.mkdir(exist_ok=True)
    log = RESULTS / "step.log"
    log.unlink(missing_ok=True)
    cores = len(os.sched_getaffinity(0))
    sides = {"ours": our_turn}
    sides |= {f"TRL, {n} thread{'s' * (n > 1)}": partial(trl_turn, steps=given.steps, threads=n) for n in {1, cores}}
    turns: dict[str, list[tuple[list[float], list[int]]]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as root:
        stage = copy_inputs(view, temporary_plan(view, Path(root), given.steps, lr))
        for number in range(given.turns):
            for name, side in sides.items():
                turns[name].append(side(stage, log, given.warmup))
                seconds = statistics.median(turns[name][-1][0])
                print(f"turn {number + 1} of {given.turns}: {name}: {seconds:.3f} s a step", flush=True)
    said.add(f"{given.turns} turns of {given.steps} steps a side, the first {given.warmup} left out; "
             f"learning rate {given.lr}")
    conclude(said, turns, {"lr": given.lr, "turns": given.turns, "steps": given.steps, "warmup": given.warmup})


def conclude(said: Measurement, turns: dict[str, list[tuple[list[float], list[int]]]], settings: dict) -> None:
    """Writes the table, the ratio to the faster TRL variant, and the result files."""
    result = {}
    for name, side in turns.items():
        seconds, tokens = ([value for turn in side for value in turn[part]] for part in (0, 1))
        result[name] = spread(seconds) | {"mean": statistics.mean(seconds), "steps": len(seconds),
                                          "tokens": statistics.mean(tokens)}
    ours = result["ours"]
    best = min((r for name, r in result.items() if name != "ours"), key=lambda r: r["median"])
    ratio = {key: ours[key] / best[key] for key in ("min", "median", "max", "mean", "tokens")}
    held = ratio["median"] <= NEEDED and ratio["mean"] <= NEEDED
    rows = [[name, r["min"], r["median"], r["max"], r["mean"], r["tokens"], r["steps"]] for name, r in result.items()]
    said.add(table(["seconds a step", "min", "median", "max", "mean", "tokens/step", "steps"],
                   [*rows, ["ours / faster TRL", *ratio.values(), None]]))
    said.add(f"needed: median and mean at most {NEEDED:.2f} of the faster TRL: {'holds' if held else 'MISSED'}")
    medians = {name: [statistics.median(turn[0]) for turn in side] for name, side in turns.items()}
    said.save({"sides": result, "ratio": ratio, "turn_medians": medians, "needed": NEEDED, "holds": held, **settings})


if __name__ == "__main__":
    main()
