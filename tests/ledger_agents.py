"""Agents that spend on a ledger, and their tools (tests/kills/ledger.py).

The file `point` of the step's directory names a place where the tool kills the explorer: before or after its effect.
"""

import fcntl
import json
import os
import signal
import time
from pathlib import Path

from ouroboros.workflows.protocol.tools import tool
from ouroboros.workflows.protocol.trajectory import Trajectory

TURNS = 3


@tool(idempotent=True)
def append(root: str, line: str, idempotency_key: str) -> str:
    """Adds a line, once for each key."""
    return spend(Path(root), f"{line} append {idempotency_key}")


@tool
def append_always(root: str, line: str) -> str:
    """Adds a line."""
    return spend(Path(root), f"{line} append_always", again=True)


def spend(root: Path, line: str, again: bool = False) -> str:
    with open(root / "ledger", "a+") as ledger:
        fcntl.flock(ledger, fcntl.LOCK_EX)
        ledger.seek(0)
        lines = ledger.read().splitlines()
        point = json.loads((root / "point").read_text())
        now = point["place"] if len(lines) + 1 == point["count"] else ""
        if now == "tool before":
            end_explorer(root)
        if again or line not in lines:
            ledger.write(f"{line}\n")
            ledger.flush()
        if now == "tool after":
            end_explorer(root)
    return line.split()[1]


def end_explorer(root: Path) -> None:
    os.kill(int((root / "explorer").read_text()), signal.SIGKILL)
    time.sleep(60)  # until this process is ended too


def calls(prompt, turn, root):
    line = {"root": root, "line": f"{prompt[0]} {turn}"}
    return [(name, line) for name in ("append", "append_always")]


def turn_of(prompt, reply):
    return Trajectory(prompt, reply.tokens, reply.logprobs, [1] * len(reply.tokens), reply.finish_reason)


def extended(prompt, reply, results):
    return [*prompt, *reply.tokens, *(int(one) + 30 for one in results)]


def plain(prompt, model, toolbox, root):
    rows = []
    for turn in range(TURNS):
        rows.append(turn_of(prompt, reply := model(prompt)))
        prompt = extended(prompt, reply, [toolbox.call(*one) for one in calls(prompt, turn, root)])
    return rows


async def awaits(prompt, model, toolbox, root):
    rows = []
    for turn in range(TURNS):
        rows.append(turn_of(prompt, reply := await model(prompt)))
        prompt = extended(prompt, reply, [await toolbox.call(*one) for one in calls(prompt, turn, root)])
    return rows


def generates(prompt, toolbox, root):
    rows = []
    for turn in range(TURNS):
        rows.append(turn_of(prompt, reply := (yield prompt)))
        prompt = extended(prompt, reply, [toolbox.call(*one) for one in calls(prompt, turn, root)])
    return rows
