"""The workflow protocol: a generator that talks to the model and returns trajectories.

A workflow yields the token ids to continue, receives the engine's Reply, and returns what to train on: one Trajectory,
with environment text masked out, where each context extends the one before; or a list with one per turn, where every
turn has its own prompt. Every turn is a row, and all turns of an attempt share its reward.
"""

import os
from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from ouroboros.pipeline.store.pictures import Picture
from ouroboros.workflows.protocol.engine import Reply
from ouroboros.workflows.protocol.kept import Kept


@dataclass(slots=True)
class Trajectory:
    """One finished attempt or turn: prompt [P], response [R] with log-probs [R] and action mask [R].

    Prompt and response concatenated are what the policy saw: the trainer scores the response in that context. state:
    the state in which a turn began, as text; gigpo compares turns with equal text; None: the workflow has no states.
    reward: what this turn earned by itself; None: only the whole attempt is rewarded. versions: of the weights that
    sampled each response token [R], which the schedule knows; None without explorer.partial_rollout. experts: of the
    action tokens [sum of mask, layers, choices], which the schedule knows too; None where they are not kept. kept: what
    each response token was sampled among [R], by the schedule; None: the whole vocabulary. role: of the player whose
    turn it is, in an attempt of several (workflows/protocol/roles.py). pictures: whose tokens are in prompt and
    response, in order; None: those of the task.
    """

    prompt_tokens: list[int]
    response_tokens: list[int]
    logprobs: list[float]
    action_mask: list[int]
    finish_reason: str
    state: str | None = None
    reward: float | None = None
    versions: list[int | None] | None = None
    experts: np.ndarray | None = None
    kept: Kept | None = None
    role: str | None = None
    pictures: tuple[Picture, ...] | None = None


@dataclass(frozen=True)
class Endpoint:
    """Where an agent asks the model: arguments of the clients of OpenAI, and of Anthropic without `/v1`."""

    base_url: str
    api_key: str
    model: str

    def of_role(self, role: str) -> "Endpoint":
        """The endpoint for a player: what is asked with its key makes rows of that role."""
        return replace(self, api_key=f"{self.api_key}/{role}")

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables by which the clients find it, past any proxy."""
        root, host = self.base_url.removesuffix("/v1"), self.base_url.split("/")[2].split(":")[0]
        direct = {name: ",".join(filter(None, (os.environ.get(name), host))) for name in ("NO_PROXY", "no_proxy")}
        return {"OPENAI_BASE_URL": self.base_url, "OPENAI_API_KEY": self.api_key, "ANTHROPIC_BASE_URL": root,
                "ANTHROPIC_API_KEY": self.api_key, **direct}


Attempt = Generator[list[int], Reply, Trajectory | list[Trajectory]]
