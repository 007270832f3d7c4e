"""Trains the smallest shape for many steps, and prints what grows.

    python -m benchmarks.soak --root DIR [--steps 2000] [--minutes 60] [--out FILE] [key=value ...]

Starts one rft stage as a run does, without Snakemake (a machine with a GPU may have neither it nor Data-Juicer), and
looks at it every `--every` seconds: memory that only this process holds (USS) and open handles of each of its
processes, shared memory, files of the stage beyond tables of steps and checkpoints, memory of the GPUs that it may use.
Growth is the median slope of all pairs of looks (Theil and Sen) after the first tenth of the steps, per 100 steps and
divided by the median. Seconds per step come from the table `steps`. Exits with 1 where anything grows by more than 1%,
and with 2 after fewer than LEAST steps, of which the noise is larger than that.
After `--minutes` the stage receives SIGTERM, and the steps that it made count. On a GPU give `mode=colocate`: the
engine sleeps and wakes at each step.
"""

import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import psutil
from scipy.stats import theilslopes
from tabulate import tabulate

from benchmarks.gpu_path import ENDS_WITH_US, make_tasks
from benchmarks.measurement import machine, stage_parser, versions
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.job import devices
from ouroboros.pipeline.plan.plan import make_plan
from ouroboros.pipeline.store import files, tables
from ouroboros.pipeline.store.launch import command

MOST, WARM = 0.01, 0.1  # growth per 100 steps; the share of the steps that caches fill in
LEAST = 200  # steps of a verdict: of 44 the slopes of resting curves were 1.4% (benchmarks/gpu_path.md)
SETTINGS = [
    "name=soak", "monitor.monitor_type=none", "model.init.enable=true", "model.init.hidden_size=32",
    "model.init.num_hidden_layers=1", "model.init.num_attention_heads=1", "model.init.num_key_value_heads=1",
    "model.max_prompt_tokens=32", "model.max_response_tokens=16", "buffer.batch_size=4", "algorithm.repeat_times=4",
    "buffer.explorer_input.default_reward_fn_type=benchmarks.gpu_path:hash_reward",
    "buffer.explorer_input.eval_tasksets=[]", "algorithm.optimizer.lr=1e-6", "trainer.save_interval=50",
    "algorithm.optimizer.lr_scheduler_type=constant", "trainer.max_checkpoints_to_keep=2", "stages=[{stage_name: rft}]"]


def growth(steps: list[float], values: list[float]) -> float:
    """The robust slope of values over steps, per 100 steps, as a share of their median; 0 where all are 0."""
    begin = WARM * max(steps)
    kept = [(step, value) for step, value in zip(steps, values, strict=True) if step >= begin]
    middle = sorted(value for _, value in kept)[len(kept) // 2]
    with np.errstate(invalid="ignore"):  # its interval, which a constant curve has none of
        slope = theilslopes([value for _, value in kept], [step for step, _ in kept]).slope
    return float(100 * slope / middle) if middle else 0.0


def name(process: psutil.Process) -> str:
    """What a process of the stage is: its module, or the title that it gave itself."""
    words = process.cmdline()
    return words[words.index("-m") + 1].rpartition(".")[2] if "-m" in words else Path(words[0]).name if words else "?"


def look(stage: Path, root: psutil.Process) -> dict[str, float]:
    """What the processes of a stage hold now, by the name of the curve."""
    found: dict[str, float] = defaultdict(float)
    for process in (root, *root.children(recursive=True)):
        try:
            found[f"{name(process)}: MiB"] += process.memory_full_info().uss / 2**20
            found[f"{name(process)}: handles"] += process.num_fds()
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    found["shared memory: MiB"] = sum(one.st_blocks for one in _stats(Path("/dev/shm").iterdir())) / 2048
    found["files beyond steps and checkpoints"] = sum(
        not path.name.startswith("step=") and "checkpoints" not in path.relative_to(stage).parts
        for path in stage.rglob("*") if path.is_file())
    if own := devices.visible_gpus(None):
        asked = ["nvidia-smi", f"--id={','.join(own)}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        found["GPUs: MiB"] = sum(map(float, subprocess.check_output(asked, text=True).split()))
    return found


def _stats(paths: Iterable[Path]) -> Iterable[os.stat_result]:
    for path in paths:
        try:
            yield path.stat()
        except FileNotFoundError:
            continue


def soak(stage: Path, steps: int, seconds: float, every: float) -> dict[str, tuple[list[float], list[float]]]:
    """Runs a stage of `steps` steps, for at most `seconds`. Returns (steps, values) of each curve that spans half
    of the looks; none is of what ends after the last step."""
    curves: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    running = subprocess.Popen(command("ouroboros.stages.rft", str(stage)), preexec_fn=ENDS_WITH_US)
    end, looks = time.monotonic() + seconds, 0
    while running.poll() is None:
        if time.monotonic() > end:
            running.send_signal(signal.SIGTERM)
            running.wait()
        elif 0 < (made := len(list((stage / "steps").glob("step=*")))) < steps:
            looks += 1
            for curve, value in look(stage, psutil.Process(running.pid)).items():
                curves[curve][0].append(made)
                curves[curve][1].append(value)
        time.sleep(every)
    return {curve: found for curve, found in curves.items() if len(found[0]) > looks / 2}


def main() -> int:
    parser = stage_parser(__doc__, steps=2000)
    parser.add_argument("--minutes", type=float, default=60, help="after which the stage receives SIGTERM")
    parser.add_argument("--every", type=float, default=5, help="seconds between two looks")
    given = parser.parse_args()
    plan = make_plan(compose([*SETTINGS, f"checkpoint_root_dir={given.root}", f"buffer.total_steps={given.steps}",
                              *given.overrides]))
    plan.freeze()
    by_kind = {stage.kind: Path(stage.directory) for stage in plan.stages}
    make_tasks(by_kind["curate"], prompt=16, response=16, count=64)
    if "model" in by_kind:
        subprocess.run(command("ouroboros.stages.model", str(by_kind["model"])), check=True)
    stage = by_kind["rft"]
    curves = soak(stage, given.steps, 60 * given.minutes, given.every)
    with tables.connect([("soak", stage)]) as session:
        seconds = session.sql("SELECT step, seconds FROM steps ORDER BY step").fetchall()
    curves["seconds per step"] = tuple(map(list, zip(*seconds, strict=True)))
    grown = {curve: growth(*found) for curve, found in curves.items()}
    rows = [(curve, *(values[int(part * (len(values) - 1))] for part in (WARM, 0.5, 1)), f"{100 * grown[curve]:+.2f}%")
            for curve, (_, values) in curves.items()]
    print(tabulate(rows, [f"{len(seconds)} steps", "after a tenth", "half", "end", "per 100 steps"], floatfmt=".4g"))
    if given.out:
        files.write_json(given.out, {"machine": machine(), "versions": versions(), "growth": grown, "curves": curves})
    if len(seconds) < LEAST:
        print(f"no verdict: the slopes of {len(seconds)} steps are noise, {LEAST} are needed: give it more --minutes",
              file=sys.stderr)
        return 2
    return int(any(share > MOST for share in grown.values()))


if __name__ == "__main__":
    sys.exit(main())
