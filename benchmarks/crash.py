"""What a killed explorer loses: agent seconds that are computed again, of those that attempts had taken.

    python -m benchmarks.crash --root /tmp/crash                       # 32 agents, ten calls of 3 s each
    python -m benchmarks.crash --root /tmp/crash --seconds 30          # the 300-second agents of verl#7579

Agents ask the model and call a tool that takes `--seconds`, ten times in turn; after a part of the time that a step
takes the explorer is killed with SIGKILL, and started again. A reply and a call that are in the step's journal are not
made again (docs/agents.md), so what is lost are calls in progress. Each call writes when it began; one that
began twice lost the time from its first beginning to the kill. The engine is scripted: replies take no time.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path

from benchmarks.measurement import Measurement, table
from ouroboros.workflows.attempts.recording import Journal
from ouroboros.workflows.attempts.schedule import roll_out
from ouroboros.workflows.engines.scripted_engine import ScriptedEngine
from ouroboros.workflows.protocol.engine import BatchEngine
from ouroboros.workflows.protocol.outcomes import Sampling
from ouroboros.workflows.protocol.tools import tool
from ouroboros.workflows.protocol.trajectory import Trajectory
from ouroboros.workflows.single_turn import load_workflow

AGENTS, CALLS = 32, 10
SAMPLING = Sampling(1.0, 1.0, -1, 200, 4, 400)
PARTS = (0.25, 0.5, 0.9)  # of the time of a step, after which it is killed
COLUMNS = ("killed after, s", "agents", "calls that had ended", "made again", "agent seconds until the kill",
           "lost", "share")


@tool(idempotent=True)
def work(root: str, name: str, seconds: float, idempotency_key: str) -> str:
    """Takes a while."""
    with open(Path(root) / "begun", "a") as file:
        file.write(json.dumps([idempotency_key, time.time()]) + "\n")
    time.sleep(seconds)
    return name


def agent(prompt, model, toolbox, root, seconds):
    """An attempt: CALLS times a reply, then the tool."""
    reply = None
    for turn in range(CALLS):
        reply = model(prompt)
        toolbox.call("work", {"root": root, "name": f"{prompt[0]} {turn}", "seconds": seconds})
        prompt = [*prompt, *reply.tokens]
    return Trajectory(prompt, reply.tokens, reply.logprobs, [1] * len(reply.tokens), reply.finish_reason)


class Quick(ScriptedEngine):
    def __init__(self):
        BatchEngine.__init__(self)
        self.script, self.default, self.ends = {}, [9, 1], [1]


def explore(root: Path, seconds: float) -> None:
    """The explorer: one step of the agents, with its journal."""
    given = {"tools": ["benchmarks.crash:work"], "root": str(root), "seconds": seconds}
    workflows = [load_workflow("benchmarks.crash:agent", given, None) for _ in range(AGENTS)]
    outcomes = roll_out(Quick(), workflows, [[10 + one, 20] for one in range(AGENTS)], range(AGENTS),
                        [SAMPLING] * AGENTS, journal=Journal(root / "journal", {"step": 1}))
    (root / "ended").write_text(json.dumps([one.reason for one in outcomes if one.status != "ok"]))


def killed(root: Path, seconds: float, part: float) -> list:
    """A step that is killed once and started again: the cells of COLUMNS."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    first = launched(root, seconds)
    while not (root / "begun").exists():  # imports and forks are no agent seconds
        time.sleep(0.01)
    time.sleep(part * CALLS * seconds)
    os.kill(first.pid, signal.SIGKILL)
    kill = time.time()
    first.join()
    time.sleep(1.0)  # the process that forks attempts ends them
    begun = calls(root)
    again = launched(root, seconds)
    again.join()
    if not (root / "ended").exists() or json.loads((root / "ended").read_text()):
        sys.exit(f"the step did not end well: {root}")
    twice = [times for times in calls(root).values() if len(times) > 1]
    lost = sum(kill - times[0] for times in twice)
    until = sum(min(seconds, kill - times[0]) for times in begun.values())
    return [round(part * CALLS * seconds, 1), AGENTS, len(begun) - len(twice), len(twice), round(until), round(lost, 1),
            f"{lost / until:.1%}"]


def launched(root: Path, seconds: float) -> multiprocessing.Process:
    process = multiprocessing.get_context("spawn").Process(target=explore, args=(root, seconds))
    process.start()
    return process


def calls(root: Path) -> dict[str, list[float]]:
    """When each call began, by its key."""
    found = defaultdict(list)
    for line in (root / "begun").read_text().splitlines():
        key, when = json.loads(line)
        found[key].append(when)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each call of the tool")
    given = parser.parse_args()
    said = Measurement("crash", "A killed explorer: agent seconds that are computed again")
    rows = [killed(given.root.resolve() / f"{part}", given.seconds, part) for part in PARTS]
    said.add(table(COLUMNS, rows))
    said.save({"rows": rows})


if __name__ == "__main__":
    main()
