"""Tools, an environment and agents that use them, for tests: their processes import them from here."""

import asyncio
import contextlib
import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ouroboros.pipeline.job.processes import state
from ouroboros.workflows.protocol.tools import Environment, tool
from ouroboros.workflows.protocol.trajectory import Trajectory


def add(left: int, right: Annotated[int, Field(description="the other one")] = 1) -> int:
    """The sum of two numbers."""
    return left + right


def bare(number):
    return number


@tool(idempotent=True)
def append(path: str, line: str, idempotency_key: str) -> str:
    """Adds a line to a ledger, once for each key."""
    with open(path, "a+") as file:
        file.seek(0)
        if idempotency_key not in file.read():
            file.write(f"{idempotency_key} {line}\n")
    return line


def append_always(path: str, line: str) -> str:
    """Adds a line to a ledger."""
    with open(path, "a") as file:
        file.write(f"{line}\n")
    return line


def misbehaves(way: str) -> object:
    """A tool in every way that is wrong."""
    if way == "raises":
        raise KeyError("nothing there")
    if way == "bytes":
        return b"\x00"
    if way == "prints":
        for _ in range(200):
            print("x" * (1 << 20))
    if way == "long":
        return "y" * (1 << 24)
    if way == "memory":
        return len(bytearray(8 << 30))
    if way == "reserves":  # addresses, as V8 for WebAssembly and a JVM for its heap
        return len(mmap.mmap(-1, 64 << 30, mmap.MAP_PRIVATE, prot=0))
    if way == "exits":
        os._exit(3)
    if way == "surrogate":
        return "x\ud800"
    if way == "raises surrogate":
        raise ValueError("\udfff")
    if way == "leaves":
        sys.exit("enough")
    if way == "forks":
        for _ in range(3):
            os.fork()
        return "forked"
    return way


@tool(seconds=3)
def hangs(path: str) -> str:
    """Starts a program that would outlive it, and waits."""
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Path(path).write_text(str(program.pid))
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(60)


def variables(names: list[str]) -> dict:
    """Environment variables, as the tool sees them."""
    return {name: os.environ.get(name) for name in names}


def shown(text: str) -> list[str]:
    """The processes whose environment in /proc has a text: `self`, and every other that this one may read."""
    found = []
    for place in ["self", *(name for name in os.listdir("/proc") if name.isdigit())]:
        with contextlib.suppress(OSError):
            if text.encode() in Path(f"/proc/{place}/environ").read_bytes():
                found.append(f"{place}: {Path(f'/proc/{place}/cmdline').read_text()}")
    return found


DAEMONS = {  # how a program leaves the session, the group and the parent that started it
    "session": "setsid sleep 60 & echo $!", "nohup": "nohup sleep 60 > /dev/null & echo $!",
    "twice": "(setsid sh -c 'setsid sleep 60 & echo $!')",
    "clean": "env -i setsid sh -c 'cd /; exec sleep 60' & echo $!"}


def leaves_behind(path: str, way: str = "returns") -> str:
    """Starts programs that would outlive it, and writes their process ids."""
    with open(path, "a") as file:
        for line in DAEMONS.values():
            subprocess.run(["sh", "-c", line], stdout=file, stdin=subprocess.DEVNULL, check=True)
    if way == "crashes":
        os._exit(3)
    if way == "hangs":
        time.sleep(60)
    return way


def alive(path: str) -> list[str]:
    """Those of the processes in a file that have not ended."""
    return [one for one in Path(path).read_text().split() if state(int(one)) not in ("Z", "X")]


def slept(seconds: float) -> str:
    """How a program ended that is in a session of its own."""
    return f"slept {subprocess.run(['setsid', '--wait', 'sleep', str(seconds)], check=False).returncode}"


def keeps(text: str) -> str:
    """Writes a temporary file, and leaves it there."""
    with tempfile.NamedTemporaryFile("w", delete=False) as file:
        file.write(text)
    return file.name


async def waits(seconds: float) -> str:
    """An asynchronous tool."""
    await asyncio.sleep(seconds)
    return "waited"


class Counter(Environment):
    """Counts up to a target."""

    idempotent = True

    def reset(self, task):
        self.count, self.target = 0, int(task.answer or -1)
        return f"from {self.count}"

    def up(self, by: int = 1) -> str:
        """Adds to the count."""
        if by < 0:
            raise ValueError("only up")
        if by == 666:
            os._exit(1)
        self.count += by
        return f"now {self.count}"

    def reward(self):
        return {"accuracy": float(self.count == self.target)}


class Messy(Environment):
    """Leaves programs behind with every call."""

    def litter(self, path: str) -> str:
        return leaves_behind(path)


class Fragile(Counter):
    """The same, with effects that must not be repeated."""

    idempotent = False


def one(prompt, reply):
    return Trajectory(prompt, reply.tokens, reply.logprobs, [1] * len(reply.tokens), reply.finish_reason)


def calls(prompt, model, toolbox, asked, turns=1):
    """Between replies it calls tools, `asked` as JSON; the results are written where its prompt says."""
    rows, found = [], []
    for _ in range(turns):
        rows.append(one(prompt, model(prompt)))
        found += [toolbox.call(name, arguments) for name, arguments in json.loads(asked)]
        prompt = [*prompt, *rows[-1].response_tokens]
    Path("".join(map(chr, rows[0].prompt_tokens))).write_text(json.dumps(found))
    return rows


def forgives(prompt, model, toolbox, asked):
    """`calls`, by an agent whose library makes a text of every exception."""
    reply, found = model(prompt), []
    for name, arguments in json.loads(asked):
        try:
            found.append(toolbox.call(name, arguments))
        except Exception as error:
            found.append(f"caught {error}")
    Path("".join(map(chr, prompt))).write_text(json.dumps(found))
    return one(prompt, reply)


async def awaits(prompt, model, toolbox, asked, turns=1):
    """`calls` in an `async def`, all tools of a turn at once."""
    rows, found = [], []
    for _ in range(turns):
        rows.append(one(prompt, await model(prompt)))
        found += await asyncio.gather(*(toolbox.call(*each) for each in json.loads(asked)))
        prompt = [*prompt, *rows[-1].response_tokens]
    Path("".join(map(chr, rows[0].prompt_tokens))).write_text(json.dumps(found))
    return rows


def generates(prompt, toolbox, asked, turns=1):
    """`calls` as a generator."""
    rows, found = [], []
    for _ in range(turns):
        rows.append(one(prompt, (yield prompt)))
        found += [toolbox.call(name, arguments) for name, arguments in json.loads(asked)]
        prompt = [*prompt, *rows[-1].response_tokens]
    Path("".join(map(chr, rows[0].prompt_tokens))).write_text(json.dumps(found))
    return rows


def litters(prompt, model):
    """An agent that leaves programs behind."""
    reply = model(prompt)
    leaves_behind("".join(map(chr, prompt)))
    return one(prompt, reply)


def plays(prompt, model, toolbox):
    """Counts in the environment: to 3, with a mistake."""
    reply = model(prompt)
    found = [toolbox.reset(), toolbox.call("up"), toolbox.call("up", {"by": 2})]
    found += [toolbox.call("up", {"by": -1}).partition(":")[0], toolbox.reward()["accuracy"]]
    Path("".join(map(chr, prompt))).write_text(json.dumps(found))
    return one(prompt, reply)
