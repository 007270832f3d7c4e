"""Tasks and attempts of verifiers 0.4, in the Python of a locked environment; imports nothing of ours.

    python verifiers_program.py tasks CONFIG SIZE
    python verifiers_program.py serve CONFIG SOCKET SECONDS

CONFIG: of verifiers' section `env`, as JSON. tasks: prints one JSON object a line, at most SIZE (empty: all). serve:
answers attempts that connect to the listening socket of the number SOCKET, each with one line of JSON, until its
standard input is closed, or its event loop stands still for SECONDS.

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

from verifiers.v1.clients import EvalClientConfig
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.configs.env import EnvConfig
from verifiers.v1.runtimes.base import Runtime
from verifiers.v1.serve.client import EnvClient
from verifiers.v1.serve.server import EnvServer
from verifiers.v1.types import SamplingConfig
from verifiers.v1.utils.loaders import default_harness_id, load_taskset, resolve_env_config

LONGEST = 64 << 20  # bytes of a request
BEAT = 0.5  # seconds between two signs of life of the event loop


def resolved(given: dict) -> EnvConfig:
    """The configuration of an environment whose agents run on this machine."""
    config, own = resolve_env_config(given), dict(given)
    for name, agent in agent_config_fields(config).items():
        chosen = dict(own.get(name) or {})
        if "runtime" not in agent.model_fields_set:
            chosen["runtime"] = {"type": "subprocess"}
        if agent.harness is None and default_harness_id(config.taskset.id) == "bash":
            chosen["harness"] = {"id": "null"}
        own[name] = chosen
    return resolve_env_config(own)


def tasks(config: EnvConfig, size: str, out) -> None:
    """Writes the prompt of each task, to be read, and its data."""
    taskset = load_taskset(config.taskset)
    if not (size or taskset.bounded):
        sys.exit(f"the taskset {config.taskset.id} has no end: needed how many tasks to take, in source_args.size")
    for task in itertools.islice(taskset, int(size) if size else None):
        data = task.data
        question = data.prompt_text or data.description or data.name or "(the environment begins)"
        print(json.dumps({"question": question, "task": data.model_dump(mode="json")}), file=out, flush=True)


async def serve(config: EnvConfig, listener: socket.socket, seconds: float) -> None:
    """Answers attempts until the server of the environment ends."""
    with tempfile.TemporaryDirectory() as place:
        server = EnvServer(config, f"ipc://{place}/server")
        client, running = EnvClient(server.address), asyncio.create_task(server.run())
        numbers = itertools.count()
        threading.Thread(target=_until_closed, args=[asyncio.get_running_loop(), running], daemon=True).start()
        threading.Thread(target=_watch, args=[asyncio.get_running_loop(), seconds], daemon=True).start()

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


def _until_closed(loop: asyncio.AbstractEventLoop, running: asyncio.Task) -> None:
    sys.stdin.buffer.read()
    loop.call_soon_threadsafe(running.cancel)


def _watch(loop: asyncio.AbstractEventLoop, seconds: float) -> None:
    """Ends this process when code of the environment keeps the event loop from going on."""
    last = time.monotonic()

    def beat() -> None:
        nonlocal last
        last = time.monotonic()

    while time.monotonic() - last < seconds:
        loop.call_soon_threadsafe(beat)
        time.sleep(BEAT)
    print(f"the environment did not return to its event loop for {seconds:g} s", file=sys.stderr, flush=True)
    os._exit(1)


async def _prepared(self: Runtime, script: str | bytes, env=None, *, activate: bool = True) -> list[str]:
    """In place of Runtime.prepare_uv_script: the command of a script, with the packages of this environment."""
    data = script.encode() if isinstance(script, str) else script
    path = f"{self.scripts_dir}/{hashlib.sha256(data).hexdigest()}.py"
    await self.write(path, data)
    return [sys.executable, path]


def main(work: str, given: str, *arguments: str) -> None:
    out = os.fdopen(os.dup(1), "w")  # what packages print goes elsewhere
    os.dup2(2, 1)
    if work == "tasks":
        try:
            return tasks(resolved(json.loads(given)), *arguments, out)
        except Exception as error:  # of the package: one line, for the check
            sys.exit(f"{type(error).__name__}: {' '.join(str(error).replace('*', '').split())[:500]}")
    config = resolved(json.loads(given))
    Runtime.prepare_uv_script = _prepared
    number, seconds = arguments
    return asyncio.run(serve(config, socket.socket(fileno=int(number)), float(seconds)))


if __name__ == "__main__":
    main(*sys.argv[1:])
