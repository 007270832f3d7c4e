"""Measures stage overhead: Snakemake, Hydra, Python imports, the monitor.

commands   before a run: `ouro --help`, composing the configuration, a dry run, and single imports
no work    a recipe of a few tasks without training, in a temporary directory, by snakemake with one core: the wall
           time of a job, from Snakemake's start of it to its end, is then nearly all overhead. Limit: under 4 s for
           stages without torch. The remainder of the total is Snakemake's own: start, planning, scheduling
the run    each job of a finished run against the seconds of its own work, and the time until the first
           optimizer step or rollout began
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measurement import HERE, Measurement, open_run, parser, spread, table
from ouroboros.pipeline.results.view import Node, View, open_view
from ouroboros.pipeline.store import files, tables

NEEDED_SECONDS = 4.0
WITHOUT_TORCH = ("tasks", "curate", "report")
HOME = HERE.parent
SNAKEMAKE = [sys.executable, "-m", "snakemake", "--quiet", "all"]
NO_WORK = ["stages=[]", "name=nowork", "data_processor.task_pipeline.generator_args.tasks=50",
           "data_processor.task_pipeline.generator_args.demonstrations=50"]
IMPORTS = ("pyarrow.parquet", "duckdb", "hydra", "mlflow.tracking", "torch", "transformers", "deepspeed", "vllm")


def seconds_of(command: Sequence[str], directory: Path = HOME) -> float:
    """Wall seconds of a command; exits when it fails."""
    begin = time.perf_counter()
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - begin
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with exit code {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
    return seconds


def commands(repetitions: int) -> dict[str, dict[str, float]]:
    """Seconds of commands before any stage, and of imports (Python's own start-up included)."""
    python = [sys.executable, "-c"]
    wanted = {
        "python": [*python, "pass"],
        "ouro --help": [str(Path(sys.executable).parent / "ouro"), "--help"],
        "compose and plan": [*python, "from ouroboros.commands.run.snakefile import load_plan; load_plan({})"],
        "snakemake -n": [*SNAKEMAKE, "-n"],
        **{f"import {name}": [*python, f"import {name}"] for name in IMPORTS},
    }
    found: dict[str, list[float]] = {name: [] for name in wanted}
    for _ in range(repetitions):
        for name, command in wanted.items():
            found[name].append(seconds_of(command))
    return {name: spread(values) for name, values in found.items()}


def jobs(directory: Path) -> dict[str, float]:
    """Wall seconds of each finished job by stage directory name, from Snakemake's records in `directory`."""
    found = {}
    for path in (directory / ".snakemake" / "metadata").rglob("*"):
        if path.is_file() and (job := json.loads(path.read_text())).get("log") and job["endtime"]:
            found[Path(job["log"][0]).parent.name] = job["endtime"] - job["starttime"]
    return found


def no_work(repetitions: int) -> tuple[dict[str, list[tuple[float, float]]], list[float]]:
    """Per stage (job seconds, own seconds) of every repetition; Snakemake's own seconds of each."""
    stages: dict[str, list[tuple[float, float]]] = {}
    own = []
    for _ in range(repetitions):
        with tempfile.TemporaryDirectory() as name:
            root = Path(name)
            whole = seconds_of([*SNAKEMAKE, "--cores", "1", "--snakefile", str(HOME / "Snakefile"), "--directory", name,
                                "--config", f"overrides={json.dumps(NO_WORK)}"], root)
            walls = jobs(root)
            for stage in open_view(root / "runs" / "ouroboros" / "nowork").stages:
                work = files.read_json(stage.directory / files.MANIFEST)["seconds"]
                stages.setdefault(stage.name, []).append((walls[stage.directory.name], work))
            own.append(whole - sum(walls.values()))
    return stages, own


def first_work(stage: Node) -> float | None:
    """Seconds from a training stage's start to its first step or rollout; None for other stages."""
    if stage.kind not in ("train", "rft"):
        return None
    name, parts = ("rollouts", ("rollout_seconds", "other_seconds")) if stage.kind == "rft" else ("steps", ("seconds",))
    row = tables.connect([("run", stage.directory)]).execute(
        f"SELECT {' + '.join(parts)} FROM {name} WHERE step = 1").fetchone()
    end = tables.step_file(stage.directory, name, 1).stat().st_mtime
    return end - row[0] - files.read_json(stage.directory / files.MANIFEST)["started"]


def finished_run(view: View, root: Path) -> list[list]:
    """Stage, job seconds (None when run by hand), own seconds, difference, seconds to the first work."""
    walls, rows = jobs(root), []
    for stage in view.stages:
        if not files.is_complete(stage.directory):
            continue
        own, wall = files.read_json(stage.directory / files.MANIFEST)["seconds"], walls.get(stage.directory.name)
        rows.append([stage.name, wall, own, None if wall is None else wall - own, first_work(stage)])
    return rows


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--repetitions", type=int, default=5, help="of the commands and of no work (default: 5)")
    given = arguments.parse_args()
    view = open_run(given)
    said = Measurement("stages", "What a stage costs beyond its work")
    before = commands(given.repetitions)
    said.add(table(["seconds", "min", "median", "max"], [[name, *values.values()] for name, values in before.items()]))
    idle, own = no_work(given.repetitions)
    spreads = {name: spread([wall for wall, _ in pairs]) for name, pairs in idle.items()}
    rows = [[name, *s.values(), spread([work for _, work in idle[name]])["median"],
             s["median"] < NEEDED_SECONDS if name in WITHOUT_TORCH else None] for name, s in spreads.items()]
    said.add(table(["no work, seconds of a job", "min", "median", "max", "of which inside the stage", "under 4 s"],
                   [*rows, ["Snakemake's own, all jobs", *spread(own).values(), None, None]]))
    run = finished_run(view, given.root)
    said.add(table([f"{view.run}, seconds", "job", "own work", "beyond", "until its first step"], run))
    held = all(spreads[name]["median"] < NEEDED_SECONDS for name in WITHOUT_TORCH)
    said.add(f"needed: a stage without torch costs under {NEEDED_SECONDS:.0f} s beyond its work: "
             f"{'holds' if held else 'MISSED'}")
    said.save({"commands": before, "no_work": spreads, "snakemake_own": spread(own), "run": run, "holds": held})


if __name__ == "__main__":
    main()
