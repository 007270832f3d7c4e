"""The last lines of a failed launch: which stage, why, what to do, and where the full output is."""

import contextlib
import re
import signal
from collections.abc import Sequence
from pathlib import Path

from ouroboros.pipeline.job.context import ending, exit_code
from ouroboros.pipeline.job.ending import INTERRUPTED
from ouroboros.pipeline.job.error_file import LOG, recorded_error, told
from ouroboros.pipeline.plan.identity import Stage
from ouroboros.pipeline.results.sweep_view import SweepView, points_with
from ouroboros.pipeline.results.view import Node, View, shortened
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.files import near

MOST_SHOWN = 3  # failed stages whose cause is shown
ROOM = 6  # lines for all causes: ten with the rest, readable at a glance
UNEXPLAINED = ("it left no reason: its process was killed (the kernel does this when memory runs out), a function "
               "that it called ended it (os._exit, a crash), or its job was cancelled or ran past its time limit")
LATE = ("it ended well, but {} was not visible {} s later: its file system shows files late. The same command goes on "
        "once the file is there; `-- --latency-wait SECONDS` waits longer")
FULL = 2**20  # bytes: a disk with less free space is called full


def what_failed(shown: View | SweepView, code: int, command: str = "the same command", output: str = "",
                place: str = "", since: float = 0.0) -> str:
    """Returns the last lines of a run or sweep. command: to continue it. output: snakemake's, in the file `place`.

    since: causes recorded before this time belong to an earlier launch. A snakemake killed by a signal ended its
    stages too.
    """
    reasons = [] if code < 0 else [(stage, _reason(stage, output, since)) for stage in shown.stages]
    failed = [(stage, reason) for stage, reason in reasons if reason]
    room = ROOM // max(min(len(failed), MOST_SHOWN), 1)
    lines = [_failure_lines(shown, stage, reason, room) for stage, reason in failed[:MOST_SHOWN]]
    if more := [stage.directory.name for stage, _ in failed[MOST_SHOWN:]]:
        lines.append(f"ouro: failed too: {', '.join(more[:MOST_SHOWN])}" + (" ..." if len(more) > MOST_SHOWN else ""))
    if not failed:
        lines.append(f"ouro: snakemake {ending(code)}")
    where = f"; all output: {place}" if place else ""
    when = "to go on, once the cause is corrected" if failed else "to go on"
    return "\n".join([*lines, f"ouro: {how_far(shown)}, exit code {exit_code(code)}{where}", f"  {when}: {command}"])


def interrupted(shown: View | SweepView, since: float) -> list[str]:
    """Returns a line for each stage that was asked to end after this time: how, and what it saved."""
    found = ((stage, _reason(stage, "", since)) for stage in shown.stages)
    return [f"  {stage.name}: {reason.splitlines()[0]}" for stage, reason in found
            if reason and reason.startswith(INTERRUPTED)]


def asked_to_end(stages: Sequence[Stage], since: float) -> int | None:
    """Returns the signal that asked a stage to end after this time, wherever it came from."""
    for error in (Path(stage.error) for stage in stages):
        with contextlib.suppress(FileNotFoundError):  # most often; snakemake also deletes it before the stage starts
            text = error.read_text(encoding="utf-8", errors="replace")
            if error.stat().st_mtime >= since and (asked := re.match(rf"{INTERRUPTED} by (\w+)", text)):
                return signal.Signals[asked[1]]
    return None


def how_far(shown: View | SweepView) -> str:
    """Formats progress: `ouroboros/countdown: 5 of 8 stages are complete`; for a sweep its points too."""
    done = sum(files.is_complete(stage.directory) for stage in shown.stages)
    text = f"{shown.run}: {done} of {len(shown.stages)} stages are complete"
    if isinstance(shown, SweepView):
        points = sum(entry.view.complete for entry in shown.entries)
        text += f", {points} of {len(shown.entries)} points"
    return text


def _failure_lines(shown: View | SweepView, stage: Node, reason: str, room: int) -> str:
    first, *more = shortened(reason, max(room - 1, 1))
    points = f" ({points_with(shown, stage)})" if isinstance(shown, SweepView) else ""
    if (lack := files.lack(stage.directory, least=FULL)) and lack.partition(" (")[0] not in reason:
        more.append(f"{lack}. {files.ROOM}")
    return "\n".join([f"ouro: {stage.name} failed{points}: {first}", *(f"  {line}" for line in more),
                      f"  log: {near(stage.directory / 'stage.log')}"])


def _reason(stage: Node, output: str, since: float) -> str | None:
    """Returns why a stage failed, from its stage.error, else from its output; None if it did not fail."""
    if files.is_complete(stage.directory):
        return None
    recorded = recorded_error(stage.directory)
    if recorded and (stage.directory / "stage.error").stat().st_mtime >= since:
        return recorded
    place = re.escape(stage.directory.name)
    late = re.search(rf"^Waiting at most (\d+) seconds for missing files:\n(.*{place}/{files.MANIFEST}) ", output, re.M)
    if late:
        return LATE.format(late[2], late[1])
    if not re.search(rf"^Error in rule .*\n(?: .*\n)*? +output: .*{place}/", output, re.M):
        return None
    return _printed(stage, told(output.splitlines())) or UNEXPLAINED


def _printed(stage: Node, lines: list[str]) -> str | None:
    """Returns the error that a stage printed but could not record (full disk): the record before its last line."""
    mine = f"{stage.name}: "
    ends = [i for i, line in enumerate(lines) if line.startswith(mine + LOG) and f"/{stage.directory.name}/" in line]
    begins = [i for i in range(ends[-1]) if lines[i].startswith(mine)] if ends else []
    return "\n".join(lines[begins[-1] : ends[-1]]).removeprefix(mine) if begins else None
