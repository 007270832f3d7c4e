"""Measures an rft step's overhead (neither generation nor training) and the weight sync latency.

Computed from a run's tables, without new measurements. Explorer and trainer may run concurrently, so their seconds do
not add up to the wall time. The overhead is measured on the *critical path*: backwards from the end of the last step,
always to the part that was waited for. Trainer step t comes after trainer step t - 1 or, when it waited for rows, after
the explorer step that generated them; explorer step s comes after explorer step s - 1 or, when it waited for weights,
after the trainer step that published them. The parts on this path fill the wall time; a checkpoint or query of one side
during another's wait costs nothing. Without waits the path is the trainer's own time.

Limits: at most 8% of the path is neither generation nor training; publish + load + prove at most 0.15 s (median).
"""

from dataclasses import dataclass

from benchmarks.measurement import Measurement, open_run, parser, spread, stage_of, table
from ouroboros.pipeline.job.schedule import Schedule, rft_schedule
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.store import files, tables

SHARE_NEEDED, SYNC_NEEDED = 0.08, 0.15
WAITED = 0.004  # seconds; after a wait shorter than two polls (pipeline/job/waiting.py) the file already existed
WORK = ("generation", "training")


@dataclass
class Tables:
    """Rows of `steps` and `rollouts` by step."""

    steps: dict[int, dict]
    rollouts: dict[int, dict]
    schedule: Schedule


def read(stage, config) -> Tables:
    """Reads the tables of one rft stage."""
    session = tables.connect([("run", stage)])

    def by_step(name: str) -> dict[int, dict]:
        return {row["step"]: row for row in session.sql(f"SELECT * FROM {name}").to_arrow_table().to_pylist()}

    # the number of tasks only affects the end of the schedule, which is not used here
    return Tables(by_step("steps"), by_step("rollouts"), rft_schedule(config, 1))


def trainer_parts(row: dict) -> dict[str, float]:
    """Seconds of one trainer step, excluding waits."""
    return {"training": row["train_seconds"], "publish weights": row["publish_seconds"] or 0.0,
            "trainer: SQL, packing, files": row["train_other_seconds"]}


def explorer_parts(row: dict) -> dict[str, float]:
    """Seconds of one explorer step, excluding waits."""
    return {"generation": row["rollout_seconds"], "load and prove weights": row["sync_seconds"],
            "explorer: rewards, files": row["other_seconds"]}


def critical_path(found: Tables, first: int, last: int) -> dict[str, float]:
    """Seconds of each part on the critical path over trainer steps `first` to `last`.

    A trainer step that the explorer waited for is counted completely, although its work after publishing (about half of
    its files) may be off the path.
    """
    parts: dict[str, float] = {}
    side, step = "trainer", last
    while step >= first if side == "trainer" else step > found.schedule.last_explorer_step(first - 1):
        row = (found.steps if side == "trainer" else found.rollouts)[step]
        for name, seconds in (trainer_parts if side == "trainer" else explorer_parts)(row).items():
            parts[name] = parts.get(name, 0.0) + seconds
        if side == "trainer" and row["train_wait_seconds"] > WAITED:
            side, step = "explorer", found.schedule.last_explorer_step(step)
        elif side == "explorer" and row["wait_seconds"] > WAITED and row["weights_version"] >= first:
            side, step = "trainer", row["weights_version"]
        else:
            step -= 1
    return parts


def sync_seconds(found: Tables, first: int) -> tuple[list[float], list[float], list[float]]:
    """Publish, load and prove, and their sum, for every loaded version from trainer step `first` on."""
    pairs = [(found.steps[row["weights_version"]]["publish_seconds"], row["sync_seconds"])
             for row in found.rollouts.values()
             if row["probe_max_difference"] is not None and row["weights_version"] >= first]
    return [p for p, _ in pairs], [s for _, s in pairs], [p + s for p, s in pairs]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--warmup", type=int, default=5, help="first steps, which do not count (default: 5)")
    given = arguments.parse_args()
    view = open_run(given)
    stage = stage_of(view, "rft").directory
    config = Config.partial(files.read_json(stage / "stage.json")["config"])
    said = Measurement("overhead", f"Where the time of an rft step goes: {stage.name} of {view.run}")
    found = read(stage, config)
    first, last = given.warmup + 1, max(found.steps)
    path = critical_path(found, first, last)
    count = last - first + 1
    wall = sum(found.steps[s]["seconds"] for s in range(first, last + 1))
    path["schedule: polling, the rest"] = wall - sum(path.values())
    share = 1.0 - sum(path.get(name, 0.0) for name in WORK) / wall
    order = sorted(path, key=lambda name: (name not in WORK, -path[name]))
    rows = [[name, path[name] / count, 100 * path[name] / wall] for name in order]
    said.add(f"{count} steps, {wall:.1f} s; sync_interval {config.synchronizer.sync_interval}, sync_offset "
             f"{config.synchronizer.sync_offset}, mode {config.mode}")
    said.add(table(["on the critical path", "s/step", "%"], [*rows, ["wall time", wall / count, 100.0]]))
    published, loaded, synced = sync_seconds(found, first)
    result = {name: spread(values) for name, values in (("publish", published), ("load", loaded), ("sum", synced))}
    said.add(table(["weight sync, seconds", "min", "median", "max"], [
        ["publish", *result["publish"].values()], ["load and prove", *result["load"].values()],
        ["publish + load + prove", *result["sum"].values()]]))
    holds = {"share": share <= SHARE_NEEDED, "sync": result["sum"]["median"] <= SYNC_NEEDED}
    slow = sum(seconds > SYNC_NEEDED for seconds in synced)
    words = {True: "holds", False: "MISSED"}
    said.add(f"neither generation nor training: {share:.1%}; needed at most {SHARE_NEEDED:.0%}: "
             f"{words[holds['share']]}")
    said.add(f"median weight sync: needed at most {SYNC_NEEDED} s: {words[holds['sync']]}; "
             f"{slow} of {len(synced)} took longer")
    said.save({"path_seconds": path, "wall_seconds": wall, "steps": count, "share": share, "sync": result,
               "slow_syncs": slow, "holds": holds})


if __name__ == "__main__":
    main()
