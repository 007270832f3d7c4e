"""Attempts at tasks of verifiers 0.4: its server runs them, with the recorded endpoint as its model.

One server for each environment and configuration of a stage, in the Python of a lock (pipeline/store/locked.py); it
runs operators/verifiers_program.py and ends with the explorer.
"""

import json
import os
import socket
import subprocess
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

from ouroboros.operators.reward import Judgement
from ouroboros.pipeline.store.locked import PROGRAM, interpreter

SEEN = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR")  # environment variables
STILL_SECONDS = 600.0  # for which a server may compute without a pause, where explorer.max_timeout is null


class Server:
    """A server and its address, a socket of this machine; both are there at once, and connections wait."""

    def __init__(self, python: Path, config: dict, seconds: float):
        self._place = tempfile.TemporaryDirectory(prefix="ouro-env-", ignore_cleanup_errors=True)
        self.address = f"{self._place.name}/server"
        variables = {name: os.environ[name] for name in SEEN if name in os.environ}
        variables["PATH"] = f"{python.parent}:{variables.get('PATH', os.defpath)}"
        with socket.socket(socket.AF_UNIX) as listener, open(_log(self.address), "wb") as log:
            listener.bind(self.address)
            listener.listen(1024)
            self._process = subprocess.Popen(
                [python, PROGRAM, "serve", json.dumps(config), str(listener.fileno()), str(seconds)],
                stdin=subprocess.PIPE, stdout=log, stderr=log, pass_fds=[listener.fileno()], start_new_session=True,
                env=variables | {"HOME": self._place.name, "UV_OFFLINE": "1"})  # an empty home: no keys of a vendor

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None


_SERVERS: dict[str, Server] = {}


def served(answer: str, root: str, seconds: float | None) -> str:
    """The address of the server for a task, which is started if it is not there. answer: the truth of the task. root:
    of the store. seconds: explorer.max_timeout."""
    truth = json.loads(answer)
    key = json.dumps([truth["lock"], truth["config"]], sort_keys=True)
    if key not in _SERVERS or _SERVERS[key].ended:
        _SERVERS[key] = Server(interpreter(truth["lock"], root), truth["config"], seconds or STILL_SECONDS)
    return _SERVERS[key].address


def verifiers_workflow(task, endpoint) -> Judgement:
    """The rewards of an attempt, by name, that verifiers' server makes; its metrics are notes."""
    address = task.served()
    asked = {"task": json.loads(task.answer)["task"], "base_url": endpoint.base_url, "api_key": endpoint.api_key,
             "model": endpoint.model}
    found = ""
    with socket.socket(socket.AF_UNIX) as channel, suppress(ConnectionError):  # a server that ends before it accepts
        channel.connect(address)
        channel.sendall(json.dumps(asked).encode() + b"\n")
        with channel.makefile() as file:
            found = file.read()
    if not found:
        lines = _log(address).read_text(errors="replace").split("\n")
        raise RuntimeError(f"the server of the environment ended: {next(filter(None, reversed(lines)), '')[-500:]}")
    episode = json.loads(found)
    if episode["errors"]:
        raise RuntimeError(f"verifiers: {episode['errors'][-1][:500]}")
    agents = episode["agents"]
    if aside := [one["name"] for one in agents if not one["trained"]]:
        raise RuntimeError(f"the environment does not train its agent '{aside[0]}', whose replies would be rows as all "
                           f"others; needed env.{aside[0]}.client with the server of another model in source_args")
    return Judgement(_named(agents, "rewards"), {name: str(one) for name, one in _named(agents, "metrics").items()})


def _named(agents: list[dict], kind: str) -> dict[str, float]:
    """The scores of an episode by name, AGENT/NAME where there are several agents, AGENT.2/NAME for its second run."""
    if len(agents) == 1:
        return agents[0][kind]
    runs, found = Counter(), {}
    for one in agents:
        runs[one["name"]] += 1
        agent = one["name"] if runs[one["name"]] == 1 else f"{one['name']}.{runs[one['name']]}"
        found |= {f"{agent}/{name}": value for name, value in one[kind].items()}
    return found


def _log(address: str) -> Path:
    return Path(address).with_name("log")
