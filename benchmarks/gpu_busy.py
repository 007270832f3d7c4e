"""Measures which part of a step one GPU is busy: the union of the seconds of all kernels of all processes.

    python -m benchmarks.gpu_busy --root /tmp/busy --out busy.json [key=value ...]

The rft stage of benchmarks/gpu_peers.py with its settings and more steps; from the end of its second step on, every
Python process that has opened the GPU records its kernels and copies for `--seconds` of wall time (torch's profiler, of
the GPU alone); the figure is that of the whole steps that ended within. Kernels of different processes that run at
once count once. NVML's own figure, the share of its sampling intervals in which a kernel ran, is given too. Apart from
timed runs. Requires a GPU, vllm, deepspeed and pynvml.
"""

import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

from benchmarks.gpu_path import make_model
from benchmarks.measurement import stage_parser

HOOK = '''
import os, sys, threading, time
def record(to, seconds):
    while not os.path.exists(to + "/start"):
        time.sleep(0.02)
    torch = sys.modules.get("torch")
    if not (torch and hasattr(torch, "cuda") and torch.cuda.is_initialized()):
        return
    from torch.profiler import ProfilerActivity, profile
    taken = profile(activities=[ProfilerActivity.CUDA])
    taken.start()
    begin = time.time()
    time.sleep(max(seconds - (time.time() - begin), 0))
    end = time.time()
    taken.stop()
    spans = [(one.start_ns(), one.start_ns() + one.duration_ns()) for one in taken.profiler.kineto_results.events()
             if one.device_type() == torch.autograd.DeviceType.CUDA]
    with open(f"{to}/{os.getpid()}.tmp", "w") as file:
        file.write(f"{begin} {end} {' '.join(sys.argv)[:60]}\\n")
        file.writelines(f"{a} {b}\\n" for a, b in spans)
    os.rename(f"{to}/{os.getpid()}.tmp", f"{to}/{os.getpid()}.spans")
if os.environ.get("BUSY_TO"):
    threading.Thread(target=record, args=(os.environ["BUSY_TO"], float(os.environ["BUSY_SECONDS"])),
                     daemon=True).start()
'''  # becomes sitecustomize.py, which every Python process imports


def union(spans: list[tuple[float, float]]) -> float:
    """The length that spans (begin, end) cover together."""
    covered, last = 0.0, float("-inf")
    for begin, end in sorted(spans):
        covered += max(end - max(begin, last), 0.0)
        last = max(last, end)
    return covered


def watch(directory: Path, to: Path, seconds: float, utilization: list[int]) -> None:
    """Starts the recording after step 2 and samples NVML meanwhile."""
    import pynvml

    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    while not list(directory.glob("**/steps/step=000002.parquet")):
        time.sleep(0.05)
    (to / "start").touch()
    end = time.time() + seconds
    while time.time() < end:
        utilization.append(pynvml.nvmlDeviceGetUtilizationRates(device).gpu)
        time.sleep(0.1)


def main() -> None:
    from benchmarks.gpu_peers import ours

    parser = stage_parser(__doc__, steps=9)
    parser.add_argument("--seconds", type=float, default=20, help="of the recording: some whole steps")
    parser.add_argument("--limit", type=float, default=240, help="seconds after which the stage is ended")
    parser.add_argument("--model", type=Path, help="as benchmarks.gpu_peers makes it; default: made")
    given = parser.parse_args()
    root, model = given.root, given.model or given.root / "model"
    hook, to = root / "hook", root / "spans"
    hook.mkdir(parents=True)
    to.mkdir()
    (hook / "sitecustomize.py").write_text(HOOK)
    if not model.exists():
        make_model(model)
    os.environ |= {"PYTHONPATH": f"{hook}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", "BUSY_TO": str(to),
                   "BUSY_SECONDS": str(given.seconds)}
    utilization: list[int] = []
    threading.Thread(target=watch, args=(root, to, given.seconds, utilization), daemon=True).start()
    steps = ours(root / "run", model, SimpleNamespace(steps=given.steps, limit=given.limit), given.overrides)
    found, every, begins, ends = {}, [], [], []
    for file in sorted(to.glob("*.spans")):
        first, *lines = file.read_text().splitlines()
        begin, end, name = first.split(" ", 2)
        spans = [tuple(int(one) / 1e9 for one in text.split()) for text in lines]
        found[f"{file.stem} {name}"] = {"kernels": len(spans), "busy_s": round(union(spans), 3)}
        every += spans
        begins.append(float(begin))
        ends.append(float(end))
    ended = [file.stat().st_mtime for file in sorted(root.glob("**/steps/step=*.parquet"))]
    whole = [one for one in ended if max(begins) <= one <= min(ends)]
    wall = whole[-1] - whole[0]
    within = [(max(a, whole[0]), min(b, whole[-1])) for a, b in every if b > whole[0] and a < whole[-1]]
    figures = {"wall_s": round(wall, 3), "busy_s": round(union(within), 3), "busy": round(union(within) / wall, 3),
               "recorded_steps": len(whole) - 1,
               "nvml": round(sum(utilization) / max(len(utilization), 1) / 100, 3), "processes": found,
               "steps": steps}
    if given.out:
        given.out.write_text(json.dumps(figures, indent=1))
    print(json.dumps({key: value for key, value in figures.items() if key != "steps"}))


if __name__ == "__main__":
    main()
