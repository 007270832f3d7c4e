"""One chain: a run that is killed several times, started again each time, and compared with an undisturbed one."""

import contextlib
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ouroboros.pipeline.job.processes import called
from ouroboros.pipeline.plan.plan import Plan
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.recovery import EVALUATED
from tests.kills.cases import Case
from tests.kills.shim import Operation, counted, read_trace, shimmed
from tests.toy.conftest import REPOSITORY
from tests.toy.kill import made

HANGS_SECONDS = 120.0  # after a kill all processes of the run must have ended
WHOLE_SECONDS = 900.0
# Log-probs of the engine, and what is computed of them beside those of the trainer. Where attempts advance on their own
# it depends on time which requests are computed together, and with it the last bits of these; no training uses them
# with bypass_old_logprobs=false and without rollout_correction (docs/agents.md). All else is compared to the bit.
ENGINE = {"experience": ("rollout_logprobs",), "calls": ("logprobs",),
          "steps": ("mismatch_mean", "mismatch_max", "mismatch_p95", "mismatch_outside", "kl_rollout_trainer",
                    "kl_trainer_rollout", "effective_sample_size", "corrected_fraction")}
CLOSE = 1e-4  # nats: what float32 may differ by from batch to batch


@dataclass
class Kill:
    """What shall be killed: `victim` before the count-th operation `point`, or `after` seconds, by `signal`; or else,
    and after a signal other than SIGKILL, the first process that comes to a write point which is not among `hit`."""

    victim: str = ""
    point: Operation | None = None
    count: int = 1
    torn: bool = False
    after: float = 0.0
    signal: int = signal.SIGKILL
    hit: frozenset[Operation] | None = None


@dataclass
class Killed:
    """A kill that happened: who died, doing what, at which step; and how it ended."""

    victim: str
    process: str
    operation: str
    kind: str
    path: str
    step: int | None
    random: bool
    launch: int
    ended: str = ""  # a problem of this launch: `hung`, or processes that were left


@dataclass
class Chain:
    case: Case
    root: Path
    source: Plan | None
    kills: list[Killed] = field(default_factory=list)
    traces: Counter[Operation] = field(default_factory=Counter)

    def __post_init__(self):
        shutil.rmtree(self.root, ignore_errors=True)
        self.plan = self.case.plan(self.root, self.source)
        self.launches = 0

    @property
    def command(self) -> list[str]:
        if not self.case.stage:
            return [sys.executable, "-m", "ouroboros", "run", *self.case.words(self.root)]
        (directory,) = self.case.directories(self.plan)
        kind = files.read_json(directory / "stage.json")["kind"]
        return [sys.executable, "-m", f"ouroboros.stages.{kind}", str(directory)]

    def launch(self, kill: Kill | None) -> int:
        """Starts the run, kills it, and waits until it has ended; returns its exit code."""
        self.launches += 1
        trace, killed = (self.root / f"{name}-{self.launches}" for name in ("trace", "killed"))
        more: dict[str, Any] = {}
        if kill and kill.hit is not None:
            (self.root / "hit").write_text("".join("\t".join(point) + "\n" for point in kill.hit))
            more = {"new": self.root / "hit", "new_of": ",".join((*self.case.processes, "")), "killed": killed}
        elif kill and kill.point:
            more = {"point": "|".join(map(str, (*kill.point, kill.count, kill.victim, int(kill.torn)))),
                    "killed": killed}
        began = time.monotonic()
        with open(self.root / f"output-{self.launches}", "wb") as output:
            process = subprocess.Popen(self.command, cwd=REPOSITORY, stdout=output, stderr=output,
                                       env=shimmed(self.root, trace=trace, **more), start_new_session=True)
        found = self._kill_at(process, kill, trace) if kill and kill.victim and not kill.point else None
        hung = not self._ends(process, killed, since=time.monotonic() if found else None)
        self.seconds = time.monotonic() - began
        operations = read_trace(trace)
        self.traces += counted(operations)
        if killed.exists():
            who, operation, kind, _, path = killed.read_text().rstrip("\n").split("\t")
            victim = who if kill.victim == "self" or kill.hit is not None else kill.victim
            found = Killed(victim, who, operation, kind, path, step_in(path), False, self.launches)
        left = self._left()
        if found:
            found.ended = "hung" if hung else f"left {', '.join(left)}" if left else ""
            self.kills.append(found)
        return process.returncode

    def _ends(self, process: subprocess.Popen, killed: Path, since: float | None) -> bool:
        """Waits for the end; returns whether it came in time. since: when something was killed."""
        limit = time.monotonic() + WHOLE_SECONDS
        while process.poll() is None:
            time.sleep(0.02)
            if since is None and killed.exists():
                since = time.monotonic()
            if time.monotonic() > (limit if since is None else since + HANGS_SECONDS):
                process.kill()
                process.wait()
                return False
        return True

    def output(self) -> str:
        """The end of what the last launch printed."""
        return (self.root / f"output-{self.launches}").read_text(errors="replace")[-3000:]

    def _kill_at(self, process: subprocess.Popen, kill: Kill, trace: Path) -> Killed | None:
        """Kills at a time; afterwards the trace shows what the victim had done last."""
        deadline = time.monotonic() + kill.after
        while time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.01)
        for pid in self._processes(kill.victim):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, kill.signal)
            if kill.signal != signal.SIGKILL:
                return None  # it ends by itself: only a kill while it does so counts
            done = [(operation, path) for operation, path in read_trace(trace)
                    if operation.process.startswith(kill.victim)]
            if not done:
                return None  # no log shows what it was doing
            operation, path = done[-1]
            return Killed(kill.victim, *operation, path, step_in(path), True, self.launches)
        return None

    def _processes(self, name: str) -> list[int]:
        """The processes of this run, by the words of their command lines."""
        modules = {"stage": "ouroboros.stages.", "trainer": "ouroboros.stages.learn",
                   "explorer": "ouroboros.stages.explore\0", "evaluator": "ouroboros.stages.score",
                   "snakemake": "-m\0snakemake", "ouro": "-m\0ouroboros\0"}
        children, found = ("trainer", "explorer", "evaluator"), []
        for line in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = line.read_text(errors="replace")
                child = any(modules[one] in words for one in children)
                if str(self.root) in words and modules[name] in words and not (name == "stage" and child) \
                        and not words.startswith("/bin/"):
                    found.append(int(line.parent.name))
        return found

    def _left(self) -> list[str]:
        """Processes of the run that outlived it: they have some seconds to end."""
        deadline = time.monotonic() + 60.0
        while time.monotonic() < deadline:
            mine = [int(line.parent.name) for line in Path("/proc").glob("[0-9]*/cmdline") if self._is_mine(line)]
            if not mine:
                return []
            time.sleep(0.1)
        names = [called(pid) for pid in mine]
        for pid in mine:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return names

    def _is_mine(self, line: Path) -> bool:
        with contextlib.suppress(OSError):
            return str(self.root) in line.read_text(errors="replace")
        return False


def step_in(path: str) -> int | None:
    """The step, or the weights version, that a path belongs to."""
    found = re.findall(r"(?:step|version)=(\d+)", path)
    return int(found[-1]) if found else None


def metrics_of(root: Path) -> Counter[tuple[str, str, int]]:
    """How often MLflow shows each (stage, key, step)."""
    if not (root / "mlflow.db").exists():
        return Counter()
    with contextlib.closing(sqlite3.connect(root / "mlflow.db")) as session:
        return Counter(session.execute("SELECT name, key, step FROM metrics JOIN runs USING (run_uuid)"))


def differences(case: Case, found: Chain, expected: Chain) -> list[str]:
    """What differs between a run that was killed and an undisturbed one."""
    words = []
    for mine, other in zip(case.directories(found.plan), case.directories(expected.plan), strict=True):
        if not files.is_complete(mine):
            words.append(f"{mine.name} is not complete")
            continue
        results = made(mine, *EVALUATED), made(other, *EVALUATED)
        if "depends_on_time" in files.read_json(other / files.MANIFEST):
            results = with_close(*results), results[1]
        words += [f"{mine.name}: {name}{_first(*(one[name] for one in results))}" for name in results[0]
                  if results[0][name] != results[1][name]]
    shown, wanted = metrics_of(found.root), metrics_of(expected.root)
    if twice := sorted(key for key, count in shown.items() if count > 1):
        words.append(f"MLflow: {len(twice)} metrics more than once, such as {twice[0]}")
    if missing := sorted(wanted.keys() - shown.keys()):
        words.append(f"MLflow: {len(missing)} metrics missing, such as {missing[0]}")
    if more := sorted(shown.keys() - wanted.keys()):
        words.append(f"MLflow: {len(more)} metrics too many, such as {more[0]}")
    return words


def with_close(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    """Takes the engine's log-probs from the rows of the other run, where they are close."""
    return found | {name: [row | {column: other[column] for column in columns if _close(row[column], other[column])}
                           for row, other in zip(found[name], expected[name], strict=False)]
                    + found[name][len(expected[name]):] for name, columns in ENGINE.items() if name in found}


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_close, one, other))
    return one == other or (None not in (one, other) and abs(one - other) <= CLOSE)


def _first(found: Any, expected: Any) -> str:
    """Where two lists of rows begin to differ."""
    if not isinstance(found, list) or (found[:1] and not isinstance(found[0], dict)):
        return f" {found} instead of {expected}"
    if len(found) != len(expected):
        return f" {len(found)} rows instead of {len(expected)}"
    row, other = next((a, b) for a, b in zip(found, expected, strict=True) if a != b)
    column = next(name for name in row if row[name] != other[name])
    return f", row of step {row.get('step')}, {column}: {str(row[column])[:80]} instead of {str(other[column])[:80]}"


def near(point: Operation, known: Counter[Operation], dice: random.Random) -> Kill:
    """A kill after which a run may come to a point that an undisturbed one does not come to: before an operation on the
    same file, or on the nearest one, or a little later.

    known: how often an undisturbed run comes to each, in that order.
    """
    order = list(known)
    lengths = [_equal_letters(one.kind, point.kind) if one.operation != "unlink" else 0 for one in order]
    first = dice.choice([i for i, length in enumerate(lengths) if length == max(lengths)])
    chosen = order[min(first + dice.choice((0, 0, 1, 3, 6)), len(order) - 1)]
    return Kill("self", chosen, dice.randint(1, known[chosen]))


def _equal_letters(one: str, other: str) -> int:
    """How many letters two paths begin with alike."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def any_kill(known: Counter[Operation], case: Case, seconds: float, dice: random.Random) -> Kill:
    """A kill at a random time, or of a random process at any write point."""
    victims = ["stage", "trainer"] + (["explorer"] if case.stage != "sft" else []) + (
        ["snakemake", "ouro", "evaluator"] if not case.stage else [])
    if dice.random() < 0.5:
        return Kill(dice.choice(victims), after=dice.uniform(0.2, 1.0) * seconds)
    point = dice.choice(list(known))
    victim = dice.choice(["self", "self", *victims])
    return Kill(victim, point, dice.randint(1, known[point]),
                torn=victim == "self" and point.operation == "write" and dice.random() < 0.5)
