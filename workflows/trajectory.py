"""What an attempt at a task is made of: a generator that talks to the model, and the trajectories that it leaves.

A workflow yields the token ids it wants continued, receives the engine's Reply, and returns what is trained on:
one Trajectory, with whatever the environment said in between masked out, where each context goes on from the one
before; or a list of them, one for each turn, where a turn has a prompt of its own. Every turn is a row, and all turns
of an attempt share its reward.
"""

from collections.abc import Generator
from dataclasses import dataclass

from workflows.engines.engine import Reply


@dataclass(slots=True)
class Trajectory:
    """One finished attempt, or one turn of it: prompt [P], response [R] with log-probs [R] and action mask [R].

    Prompt and response end to end are what the policy saw: the trainer scores the response in that context.
    state: the state in which a turn began, as text; turns with the same text are compared by gigpo; None: the workflow
    does not tell states apart. reward: what this turn earned by itself; None: the attempt is rewarded as a whole.
    """

    prompt_tokens: list[int]
    response_tokens: list[int]
    logprobs: list[float]
    action_mask: list[int]
    finish_reason: str
    state: str | None = None
    reward: float | None = None


Attempt = Generator[list[int], Reply, Trajectory | list[Trajectory]]
