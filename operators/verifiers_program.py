"""Tasks and attempts of verifiers 0.4, in the Python of a locked environment; imports nothing of ours.

    python verifiers_program.py tasks CONFIG SIZE
    python verifiers_program.py serve CONFIG SOCKET SECONDS

CONFIG: of verifiers' section `env`, as JSON. tasks: prints one JSON object a line, at most SIZE (empty: all). serve:
answers attempts that connect to the listening socket of the number SOCKET, each with one line of JSON, until its event
loop stands still for SECONDS. Both end when their standard input is closed, or code of the package before the first
task, between two of them or before the server runs takes longer than LONGEST_STEP.

It departs from verifiers' defaults where these reach beyond this machine: agents without a `runtime` run here
(subprocess, not the vendor's sandboxes), agents without a `harness` have no shell (null, not bash), and scripts of
harnesses run with what the lock has, where verifiers lets uv resolve them anew.
"""

import asyncio
import hashlib
import itertools
import json
import os
import socket
import sys
import tempfile
import threading
import time
import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # all imports of packages are behind Watch, as they take seconds
    from verifiers.v1.configs.env import EnvConfig
    from verifiers.v1.runtimes.base import Runtime

LONGEST = 64 << 20  # bytes of a request
BEAT = 0.5  # seconds between two signs of life of the event loop
LONGEST_STEP, ENDING = 600.0, 60.0  # seconds


def resolved(given: dict) -> "EnvConfig":
    """The configuration of an environment whose agents run on this machine."""
    from verifiers.v1.configs.agent import agent_config_fields
    from verifiers.v1.utils.loaders import default_harness_id, resolve_env_config

    config, own = resolve_env_config(given), dict(given)
    for name, agent in agent_config_fields(config).items():
        chosen = dict(own.get(name) or {})
        if "runtime" not in agent.model_fields_set:
            chosen["runtime"] = {"type": "subprocess"}
        if agent.harness is None and default_harness_id(config.taskset.id) == "bash":
            chosen["harness"] = {"id": "null"}
        own[name] = chosen
    return resolve_env_config(own)


def tasks(config: "EnvConfig", size: str, out, watch: "Watch") -> None:
    """Writes the prompt of each task, to be read, and its data."""
    from verifiers.v1.utils.loaders import load_taskset

    taskset = load_taskset(config.taskset)
    if not (size or taskset.bounded):
        sys.exit(f"the taskset {config.taskset.id} has no end: needed how many tasks to take, in source_args.size")
    for task in itertools.islice(taskset, int(size) if size else None):
        watch.allow(LONGEST_STEP)
        data = task.data
        question = data.prompt_text or data.description or data.name or "(the environment begins)"
        print(json.dumps({"question": question, "task": data.model_dump(mode="json")}), file=out, flush=True)


async def serve(config: "EnvConfig", listener: socket.socket, seconds: float, watch: "Watch") -> None:
    """Answers attempts until the server of the environment ends."""
    from verifiers.v1.clients import EvalClientConfig
    from verifiers.v1.serve.client import EnvClient
    from verifiers.v1.serve.server import EnvServer
    from verifiers.v1.types import SamplingConfig

    with tempfile.TemporaryDirectory() as place:
        server = EnvServer(config, f"ipc://{place}/server")
        client, running = EnvClient(server.address), asyncio.create_task(server.run())
        numbers = itertools.count()
        watch.serving(running, seconds)

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked = json.loads(await reader.readline())
            key = f"OURO_API_KEY_{next(numbers)}"  # programs of harnesses do not inherit names with API_KEY
            os.environ[key] = asked["api_key"]
            run = asyncio.ensure_future(client.run(EvalClientConfig(base_url=asked["base_url"], api_key_var=key),
                                                   asked["model"], SamplingConfig(), asked["task"]))
            gone = asyncio.ensure_future(reader.read())  # the attempt was ended: so is its run
            await asyncio.wait({run, gone}, return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            if not run.done():
                run.cancel()
            [found] = await asyncio.gather(run, return_exceptions=True)
            writer.write(json.dumps(said(found, key)).encode())
            del os.environ[key]
            writer.close()

        async with await asyncio.start_unix_server(answer, sock=listener, limit=LONGEST):
            await running


def said(episode, key: str) -> dict:
    """What an attempt learns of its episode, or of the exception in its place: errors, and the agents' scores. key: the
    variable by which agents ask the policy. Agents are in alphabetical order: which ends first depends on time."""
    if isinstance(episode, BaseException):
        return {"errors": [f"{type(episode).__name__}: {episode}"], "agents": []}
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors if not trace.ok)]
    return {"errors": [] if episode.ok else [f"{one.type}: {one.message}" for one in errors] or ["it is not ok"],
            "agents": [{"name": trace.agent.name,
                        "trained": trace.agent.trainable or trace.agent.config.client.api_key_var != key,
                        "rewards": {name: one.value for name, one in trace.rewards.items() if one is not None},
                        "metrics": {name: one for name, one in trace.metrics.items() if one is not None}}
                       for trace in sorted(episode.traces, key=lambda trace: trace.agent.name)]}


class Watch:
    """Ends this process when its standard input is closed, and when code of the package takes too long."""

    def __init__(self):
        self._running: asyncio.Task | None = None
        self.allow(LONGEST_STEP)
        for target in (self._until_closed, self._until_late):
            threading.Thread(target=target, daemon=True).start()

    def allow(self, seconds: float) -> None:
        """Begins the time anew."""
        self._seconds, self._begun = seconds, time.monotonic()

    def serving(self, running: asyncio.Task, seconds: float) -> None:
        """From now on the event loop begins it anew, and the end of the input cancels the server."""
        self._running = running
        self.allow(seconds)

    def _until_late(self) -> None:
        while time.monotonic() - self._begun < self._seconds:
            if self._running:
                self._running.get_loop().call_soon_threadsafe(self.allow, self._seconds)
            time.sleep(BEAT)
        print(f"the environment's code ran for {self._seconds:g} s without a pause", file=sys.stderr, flush=True)
        os._exit(1)

    def _until_closed(self) -> None:
        while os.read(0, 1 << 10):
            pass
        if self._running:
            self._running.get_loop().call_soon_threadsafe(self._running.cancel)
            time.sleep(ENDING)
        os._exit(1)


async def _prepared(self: "Runtime", script: str | bytes, env=None, *, activate: bool = True) -> list[str]:
    """In place of Runtime.prepare_uv_script: the command of a script, with the packages of this environment."""
    data = script.encode() if isinstance(script, str) else script
    path = f"{self.scripts_dir}/{hashlib.sha256(data).hexdigest()}.py"
    if not os.path.exists(path):  # attempts at once have the same scripts
        written = f"{path}.{uuid.uuid4().hex}"
        await self.write(written, data)
        os.replace(written, path)
    return [sys.executable, path]


def main(work: str, given: str, *arguments: str) -> None:
    out = os.fdopen(os.dup(1), "w")  # what packages print goes elsewhere
    os.dup2(2, 1)
    watch = Watch()
    if work == "tasks":
        try:
            return tasks(resolved(json.loads(given)), *arguments, out, watch)
        except Exception as error:  # of the package: one line, for the check
            sys.exit(f"{type(error).__name__}: {' '.join(str(error).replace('*', '').split())[:500]}")
    from verifiers.v1.runtimes.base import Runtime

    config = resolved(json.loads(given))
    Runtime.prepare_uv_script = _prepared
    number, seconds = arguments
    return asyncio.run(serve(config, socket.socket(fileno=int(number)), float(seconds), watch))


if __name__ == "__main__":
    main(*sys.argv[1:])
