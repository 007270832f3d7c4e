"""`ouro stop`: asks the processes of a run to end, as Ctrl-C in its terminal does."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator

from ouroboros.pipeline.job.error_file import recorded_error
from ouroboros.pipeline.job.holders import Holder, holder_of, is_locked, launches
from ouroboros.pipeline.job.process_group import GRACE_SECONDS, POLL_SECONDS
from ouroboros.pipeline.job.processes import state
from ouroboros.pipeline.results.sweep_view import SweepView, runs_of
from ouroboros.pipeline.results.view import Node, View
from ouroboros.pipeline.settings.config import Log
from ouroboros.pipeline.store import files


def stop(shown: View | SweepView) -> int:
    """Ends a run or sweep and reports what it saved; returns 0 once nothing of it is at work."""
    running = {stage.name: stage for stage in shown.stages if is_locked(stage.directory / ".lock")}
    runners = [one for path in {shown.path, *(run.path for run in runs_of(shown))} for one in launches(path)]
    here = [one for one in runners if one.is_here]
    asked, others = set(here), [f"{shown.run} is run by {one}" for one in runners if not one.is_here]
    for stage, holder in _holders(running.values()):
        if not holder.is_here:
            others += [] if here else [f"{stage.name} is made by {holder}"]  # snakemake here ends jobs elsewhere
        elif holder.runner is None:
            asked.add(holder)
        elif holder.runner not in {one.pid for one in here}:
            others.append(f"{stage.name} is made for another run, by {holder}: stop that run")
    for holder in asked:
        with contextlib.suppress(ProcessLookupError):
            os.kill(holder.pid, signal.SIGTERM)
    if not asked and not others:
        print(f"{shown.run}: no process of it runs")
        return 0
    left = _wait(shown, asked, running) if asked else []
    print("\n".join([*_saved(running, left), *(f"{line}; `ouro stop` there ends it" if " on " in line else line
                                               for line in others)]))
    return 1 if left or others else 0


def _holders(stages) -> Iterator[tuple[Node, Holder]]:
    for stage in stages:
        if holder := holder_of(stage.directory / ".lock"):
            yield stage, holder


def _wait(shown: View | SweepView, asked: set[Holder], running: dict[str, Node]) -> list[Holder]:
    """Waits for processes to end, while trainers save their last step; returns those that have not."""
    grace = max([0.0, *map(_grace, running.values())])
    print(f"{shown.run}: asked {', '.join(map(str, sorted(asked, key=str)))} to end; trainers save their last step, "
          f"for at most {grace:g} s", flush=True)
    deadline, left = time.monotonic() + grace + GRACE_SECONDS, list(asked)
    while left and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        left = [one for one in left if state(one.pid) not in ("X", "Z")]
    return left


def _grace(stage: Node) -> float:
    settings = files.read_json(stage.directory / "stage.json")["config"]["log"]
    return settings.get("grace_seconds", Log().grace_seconds)  # one that an earlier release wrote lacks it


def _saved(running: dict[str, Node], left: list[Holder]) -> list[str]:
    lines = [f"  {name}: {(recorded_error(stage.directory) or 'ended').splitlines()[0]}" for name, stage in
             running.items() if not is_locked(stage.directory / ".lock") and not files.is_complete(stage.directory)]
    return lines + [f"  {one} is still there; `kill -KILL {one.pid}` ends it at once" for one in left]
