"""Environments of OpenEnv (0.10), by the WebSocket of their servers: a session of one for each attempt.

The server runs already, at the address of the environment variable OPENENV_URL, which `explorer.env_vars` sets and
`workflow_args.environment` lets this class see.
"""

import json
import math
import os
from typing import Any
from urllib.request import urlopen

from ouroboros.workflows.protocol.tools import Environment, Situation

ADDRESS = "OPENENV_URL"
OF_THE_MODEL = ("VALIDATION_ERROR", "INVALID_JSON")  # errors of an action, not of the environment
LARGEST = 16 << 20  # bytes of an observation


class OpenEnv(Environment):
    """The truth of a task is a JSON object, the arguments of the server's reset. The reward is the sum of those of all
    steps."""

    def reset(self, task: Situation) -> str:
        from websockets.sync.client import connect

        root = os.environ[ADDRESS].rstrip("/")
        with urlopen(f"{root}/schema") as answer:
            action = json.load(answer)["action"]
        self._socket = connect(root.replace("http", "ws", 1) + "/ws", max_size=LARGEST)
        self._total, self._done, self._failed = 0.0, False, ""
        return f"{self._asked('reset', json.loads(task.answer))}\nactions: {json.dumps(action)}"

    def step(self, action: dict[str, Any]) -> str:
        """Acts, by an object of the schema of actions; returns what is observed then."""
        return "the episode is over" if self._done else self._asked("step", action)

    def reward(self) -> dict[str, float]:
        if self._failed:
            raise RuntimeError(self._failed)
        self._socket.ping()  # raises where the server has left
        return {"reward": self._total}

    def _asked(self, kind: str, data: dict) -> str:
        """What a message makes observable. Raises ValueError for what the server refuses, and for errors of the
        environment, after which there is no reward."""
        self._socket.send(json.dumps({"type": kind, "data": data}))
        answer = json.loads(self._socket.recv())["data"]
        if "code" in answer:
            said = f"{answer['message']} {json.dumps(answer.get('errors', ''))}"
            if answer["code"] not in OF_THE_MODEL:
                self._failed = said
            raise ValueError(said)
        earned = answer["reward"] or 0.0
        if not (isinstance(earned, int | float) and math.isfinite(earned)):
            self._failed = f"the environment gave the reward {earned!r}; needed a finite number"
            raise ValueError(self._failed)
        self._total, self._done = self._total + earned, bool(answer["done"])
        return json.dumps(answer["observation"], ensure_ascii=False) + "\nthe episode is over" * self._done
