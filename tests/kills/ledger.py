"""Kills explorers whose attempts append to a ledger: each returned call once, undeclared tools at most once.

    python -m tests.kills.ledger [--kills N] [--seed N] [--place DIR] [--results FILE] [--page FILE]

A step of attempts with tools is killed with SIGKILL several times and started again until it ends. Then its ledger and
its rows are compared with those of a step that was left alone. The engine is scripted; explorer and the process that
forks attempts are forked from this one, which has imported everything, so a kill takes a fraction of a second.
"""

import argparse
import json
import os
import pickle
import random
import shutil
import signal
import socket
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import IO

from tabulate import tabulate

from ouroboros.pipeline.job.context import commit
from ouroboros.pipeline.store import files
from ouroboros.workflows.attempts import child, forker, isolated, tool_host
from ouroboros.workflows.attempts.forking import serve
from ouroboros.workflows.attempts.recording import Journal
from ouroboros.workflows.attempts.schedule import roll_out
from ouroboros.workflows.protocol.engine import BatchEngine, Reply
from ouroboros.workflows.protocol.outcomes import Sampling
from ouroboros.workflows.single_turn import load_workflow
from tests import ledger_agents as agents

ATTEMPTS = 9
PER_CHAIN = 4  # most kills of a step
HEAD = {"stage": "ledger", "step": 1}
SAMPLING = Sampling(1.0, 1.0, -1, 100, 4, 200)
SOON = 12  # a kill precedes or interrupts one of the next 12 writes or effects
LIMIT = 60.0  # seconds of a launch, and of its processes after a kill
PLACES = {  # where an explorer is killed -> how that reads in the table
    "before": "before it writes to the journal", "torn": "in the middle of a write to the journal",
    "after": "between the flush of an intent (or result) and what follows it",
    "tool before": "the tool runs, before its effect", "tool after": "after the effect, before its result is written",
    "time": "at a random time"}


class Engine(BatchEngine):
    """Answers two requests at a time with tokens of their seeds."""

    batch = 2

    def answer(self, requests):
        time.sleep(0.001)
        return [Reply([r.seed % 89 + 1, r.seed % 83 + 1], [-0.5, -(r.seed % 7) / 3], "stop") for r in requests]


class Watched(Journal):
    """A journal that kills its process at its `count`-th write: before, in its middle, or after it."""

    def __init__(self, path: Path, place: str, count: int):
        super().__init__(path, HEAD)
        self._place, self._left = place, count

    def _write(self, lines: list[dict], flushes: bool) -> None:
        self._left -= 1 if flushes or self._place != "after" else 0
        now = self._left == 0 and self._place
        if now == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if now == "torn":
            begin = self._path.stat().st_size if self._path.exists() else 0
            super()._write(lines, flushes)
            size = self._path.stat().st_size
            os.truncate(self._path, begin + random.randrange(size - begin))
            os.kill(os.getpid(), signal.SIGKILL)
        super()._write(lines, flushes)
        if now == "after" and flushes:
            os.kill(os.getpid(), signal.SIGKILL)


class Forked:
    """subprocess.Popen of workflows/attempts/host.py or tool_host.py, without the seconds that their imports take."""

    def __init__(self, command: list[str], pass_fds: list[int], stdin: IO, **more):
        given = pickle.load(stdin)
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            for low, high in zip((2, *sorted((*pass_fds, ALIVE))), (*sorted((*pass_fds, ALIVE)), 1 << 16), strict=True):
                os.closerange(low + 1, high)
            control = socket.socket(fileno=pass_fds[0])
            if tool_host.__name__ in command:
                tool_host.main(control, given)
            else:
                serve(control, child.run)
            os._exit(0)

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


ALIVE = 200  # descriptor that every process of a launch holds: its other end shows when all have ended


@dataclass
class Chain:
    """A step that is killed and started again. killed: where."""

    root: Path
    killed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def launch(self, place: str, count: int, after: float = 0.0) -> bool:
        """Runs the step until it ends or is killed; returns whether it ended."""
        files.write_json(self.root / "point", {"place": place, "count": count})
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            os.dup2(writing, ALIVE)
            os.close(writing)
            explore(self.root, place, count)
        os.close(writing)
        if place == "time":
            time.sleep(after)
            os.kill(pid, signal.SIGKILL)
        code = self._code(pid)
        self._wait_for_all(reading)
        if code == -signal.SIGKILL:
            self.killed.append(place)
        elif code:
            self.wrong.append(f"exit code {code}")
        return code != -signal.SIGKILL

    def _code(self, pid: int) -> int:
        deadline = time.monotonic() + LIMIT
        while not (found := os.waitpid(pid, os.WNOHANG))[0]:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                self.wrong.append("hung")
            time.sleep(0.001)
        return os.waitstatus_to_exitcode(found[1])

    def _wait_for_all(self, reading: int) -> None:
        """Waits until no process of the launch is left."""
        os.set_blocking(reading, False)
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            try:
                if not os.read(reading, 1):
                    break
            except BlockingIOError:
                time.sleep(0.001)
        else:
            self.wrong.append("processes were left")
        os.close(reading)

    def rows(self) -> list:
        return json.loads((self.root / "rows.json").read_text())

    def lines(self) -> Counter:
        """The calls in the ledger, without their keys: attempt, turn, tool."""
        ledger = self.root / "ledger"
        text = ledger.read_text() if ledger.exists() else ""
        return Counter(" ".join(line.split()[:3]) for line in text.splitlines())

    def kill(self, place: str, dice: random.Random, seconds: float) -> bool:
        """Launches and kills at a place; returns whether the step ended before. seconds: of an undisturbed step."""
        first = sum(self.lines().values()) if place.startswith("tool") else 0
        return self.launch(place, first + dice.randint(1, SOON), dice.uniform(0.0, seconds))


def explore(root: Path, place: str, count: int) -> None:
    """The explorer: attempts the tasks of the step with its journal, and writes the rows."""
    forker.subprocess.Popen = Forked
    isolated.host.cache_clear()
    (root / "explorer").write_text(str(os.getpid()))
    try:
        journal = Watched(root / "step=1.journal", place, count)
        names = [f"tests.ledger_agents:{name}" for name in ("plain", "awaits", "generates")]
        tools = {"tools": ["tests.ledger_agents:append", "tests.ledger_agents:append_always"], "root": str(root)}
        workflows = [load_workflow(names[i % len(names)], tools, 30.0) for i in range(ATTEMPTS)]
        outcomes = roll_out(Engine(), workflows, [[10 + i, 20] for i in range(ATTEMPTS)], range(100, 100 + ATTEMPTS),
                            [SAMPLING] * ATTEMPTS, journal=journal)
        files.write_json(root / "rows.json", [[one.status, one.reason, [
            (t.prompt_tokens, t.response_tokens, t.logprobs, t.action_mask) for _, t, _ in one.turns if t],
            [(call.position, call.reply.tokens) for call in one.calls]] for one in outcomes])
        journal.remove()
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        os._exit(1)
    os._exit(0)


def differences(found: Chain, expected: Chain) -> list[str]:
    """What is wrong with a step that was killed, and how many of its attempts have an unknown outcome."""
    wrong, wanted, lines = list(found.wrong), expected.lines(), found.lines()
    wrong += [f"{count} times in the ledger: {line}" for line, count in lines.items() if count > 1]
    wrong += [f"not to be in the ledger: {line}" for line in lines if line not in wanted]
    for i, (row, other) in enumerate(zip(found.rows(), expected.rows(), strict=True)):
        mine = [line for line in wanted if line.startswith(f"{10 + i} ")]  # in the order of the calls
        made = [line in lines for line in mine]
        if row == other:
            wrong += [f"not in the ledger: {line}" for line, is_there in zip(mine, made, strict=True) if not is_there]
        elif not (row[0] == "workflow_failed" and row[1].startswith("outcome unknown: the tool append_always")):
            wrong.append(f"attempt {i} differs: {str(row)[:300]}")
        elif made != sorted(made, reverse=True):
            wrong.append(f"attempt {i} went on after its unknown outcome")
    return wrong


def unknown(chain: Chain) -> int:
    return sum(row[0] == "workflow_failed" for row in chain.rows())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=320)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--place", type=Path, default=Path(".kills/ledger"))
    parser.add_argument("--results", type=Path, help="JSON lines to append to; default: in --place")
    parser.add_argument("--page", type=Path, help="page to write the table to")
    words = parser.parse_args()
    root, dice = words.place.resolve(), random.Random(words.seed)
    shutil.rmtree(root, ignore_errors=True)
    expected, begin, begun = started(root / "whole"), time.monotonic(), commit()
    assert expected.launch("", 0), "the undisturbed step was killed"
    assert not expected.wrong, expected.wrong
    seconds = time.monotonic() - begin
    assert {row[0] for row in expected.rows()} == {"ok"}, expected.rows()
    assert sum(expected.lines().values()) == ATTEMPTS * agents.TURNS * 2, expected.lines()
    file, results = words.results or root / "results.jsonl", []
    while sum(len(one["killed"]) for one in results) < words.kills:
        chain = started(root / "killed")
        places = [dice.choice(list(PLACES)) for _ in range(dice.randint(1, PER_CHAIN))]
        if words.kills <= len(PLACES):  # the short form: each place once
            places = [list(PLACES)[len(results) % len(PLACES)]]
        if not any(chain.kill(place, dice, seconds) for place in places):
            chain.launch("", 0)
        wrong = differences(chain, expected)
        results.append({"killed": chain.killed, "wrong": wrong, "unknown": unknown(chain), "commit": begun,
                        "date": str(date.today())})
        with open(file, "a", encoding="utf-8") as lines:
            lines.write(json.dumps(results[-1]) + "\n")
        for line in wrong:
            print(f"DIFFERENT {line}", flush=True)
        if wrong:
            chain.root.rename(root / f"different-{len(results)}")
    every = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    print(report(every))
    if words.page:
        words.page.write_text(report(every), encoding="utf-8")
    sys.exit(any(one["wrong"] for one in results))


def started(root: Path) -> Chain:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    return Chain(root)


def report(results: list[dict]) -> str:
    """The table of kills by place."""
    rows = []
    for place, words in PLACES.items():
        mine = [one for one in results for where in one["killed"] if where == place]
        rows.append((words, len(mine), sum(not one["wrong"] for one in mine), sum(bool(one["wrong"]) for one in mine)))
    rows.append(("all", *(sum(row[i] for row in rows) for i in (1, 2, 3))))
    commits, unknowns = sorted({one["commit"] for one in results}), sum(one["unknown"] for one in results)
    return HEADING + f"""
{rows[-1][1]} kills of {len(results)} steps, {results[-1]["date"]}, of commit {", ".join(commits)}.
Of {ATTEMPTS * len(results)} attempts, {unknowns} ended as "outcome unknown". Explorers are forked from one process, and
the engine is scripted: what starts engines and stages is killed by the other tests (tests/kills/kills.md).

{tabulate(rows, ["the explorer is killed", "kills", "right", "wrong"], "github")}
"""


HEADING = f"""# Tools, and a killed explorer

`python -m tests.kills.ledger --page tests/kills/ledger.md` (part of `make test-kill`) kills explorers with SIGKILL, up
to {PER_CHAIN} times in a step, and starts the step again until it ends. In the step, {ATTEMPTS} attempts (plain
functions, `async def` and generators) each call two tools in {agents.TURNS} turns: one that declares `idempotent` and
appends a line to a ledger unless its key is there, and one that declares nothing and appends always.

A step is right when every call that returned is in the ledger once, no line is there twice, no attempt goes on after an
unknown outcome, no process is left after a kill, and the rows are those of a step that was left alone, except attempts
that failed as "outcome unknown".
"""

if __name__ == "__main__":
    main()
