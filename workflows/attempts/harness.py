"""Coding agents as they are: a program works in the sandbox of a Harbor task and asks the recorded endpoint.

The sandbox has no network. A process in it makes a listening socket, whose descriptor is passed out; connections to
that socket are accepted here and go to the endpoint, and to nothing else. The program and its Python are those of a
locked environment (pipeline/store/locked.py), mounted read-only at MOUNTED, to which no variable of its commands leads.
Verification is Harbor's.
"""

import contextlib
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit

from ouroboros.workflows.environments.harbor import OWN_LIMIT, Harbor
from ouroboros.workflows.environments.programs import PREFIX
from ouroboros.workflows.protocol.tools import Situation
from ouroboros.workflows.protocol.trajectory import Endpoint

MOUNTED = "/.harness"
CONNECTIONS = 64  # of the programs of an attempt, at once
# `harness MODULE ARGUMENT...` in a command: no variable of it reaches what the module starts
HARNESS = f"""harness() {{ LD_LIBRARY_PATH={MOUNTED}/python/lib {MOUNTED}/python/bin/python3 -IB -c '
import os, runpy, sys
os.environ["LD_LIBRARY_PATH"] = sys.argv[1]
del sys.argv[:2]
sys.path.insert(0, "{MOUNTED}/packages")
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)' "$LD_LIBRARY_PATH" "$@"; }}
"""
# runs in the sandbox: makes the socket, passes it out, and becomes the program
BEGIN = """
import os, socket, sys
listener = socket.create_server(("127.0.0.1", 0), backlog=64)
with socket.socket(fileno=int(sys.argv[1])) as outside:
    socket.send_fds(outside, [b"."], [listener.fileno()])
root = f"http://127.0.0.1:{listener.getsockname()[1]}"
listener.close()
os.environ |= {"OPENAI_BASE_URL": f"{root}/v1", "ANTHROPIC_BASE_URL": root}
os.execvp("bash", ["bash", "-c", sys.argv[2]])
"""


class Harnessed(Harbor):
    """A Harbor task in which a program works. python: of the environment that has the program; None: its image has."""

    def __init__(self, python: Path | None):
        packages = [*python.parents[1].glob("lib/python*/site-packages")] if python else []
        self._mounted = {f"{MOUNTED}/python": PREFIX} | {f"{MOUNTED}/packages": one for one in packages}

    def work(self, command: str, instruction: str, endpoint: Endpoint) -> None:
        """Runs a command of bash in the task's directory, for as long as its agent may take. instruction: its variable
        INSTRUCTION. Raises RuntimeError where it fails, which at a limit it does not."""
        given = {"INSTRUCTION": instruction, "MODEL": endpoint.model, "OPENAI_API_KEY": endpoint.api_key,
                 "ANTHROPIC_API_KEY": endpoint.api_key}
        ours, theirs = socket.socketpair()
        threading.Thread(target=_relay, args=(ours, urlsplit(endpoint.base_url)), daemon=True).start()
        begin = [f"{MOUNTED}/python/bin/python3", "-I", "-c", BEGIN, str(theirs.fileno()), HARNESS + command]
        seconds = self._task.settings.agent.timeout_sec or OWN_LIMIT
        with theirs:
            ended = self._run(begin, seconds, descriptors=[theirs.fileno()], **given)
        if ended.code:
            raise RuntimeError(f"the program ended with exit code {ended.code}: {ended.output.strip()[-500:]}")


def _relay(channel: socket.socket, address) -> None:
    """Takes a listening socket from a channel, and connects what connects to it with an address, until the sandbox
    ends."""
    with channel:
        _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    if not descriptors:  # the program did not start
        return
    free = threading.Semaphore(CONNECTIONS)
    with socket.socket(fileno=descriptors[0]) as listener, contextlib.suppress(OSError):
        while True:
            free.acquire()
            inner, _ = listener.accept()
            outer = socket.create_connection((address.hostname, address.port))
            threading.Thread(target=_pump, args=(outer, inner, None), daemon=True).start()
            threading.Thread(target=_pump, args=(inner, outer, free), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket, free: threading.Semaphore | None) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
    if free:
        free.release()


def harness_agent(task, endpoint: Endpoint, command: str = "", locked_environment: str | None = None
                  ) -> dict[str, float]:
    """The reward of a Harbor task in which a program works, which `command` starts. locked_environment: the
    hash of that of its packages."""
    if not command:
        raise ValueError("workflow_args.command is empty; needed what starts the program")
    world = Harnessed(task.python(locked_environment) if locked_environment else None)
    try:
        seen = world.reset(Situation(task.messages, task.answer))
        world.work(command, f"{task.messages[-1]['content']}\n{seen}", endpoint)
        return world.reward()
    finally:
        world._close()
