"""Workflows: how one attempt at a task talks to the model.

A workflow is a generator. It yields the token ids it wants continued, receives the engine's Reply, and returns the
Trajectory that is rewarded and trained on. Many attempts run interleaved (workflows/runner.py) without threads.
"""

from collections.abc import Generator
from dataclasses import dataclass

from pipeline.errors import load_dotted, pick
from workflows.engine import Reply


@dataclass(slots=True)
class Trajectory:
    """One finished attempt: prompt [P], response [R] with log-probs [R] and action mask [R].

    Prompt and response end to end are what the policy saw: the trainer scores the response in that context.
    """

    prompt_tokens: list[int]
    response_tokens: list[int]
    logprobs: list[float]
    action_mask: list[int]
    finish_reason: str


Attempt = Generator[list[int], Reply, Trajectory]


def simple_workflow(prompt: list[int]) -> Attempt:
    """One prompt, one response; every response token is the policy's own act."""
    reply = yield prompt
    return Trajectory(prompt, reply.tokens, reply.logprobs, [1] * len(reply.tokens), reply.finish_reason)


WORKFLOWS = {"simple_workflow": simple_workflow}


def load_workflow(name: str):
    """A workflow of the table, or `module:function` of the user's own project."""
    return load_dotted(name) if ":" in name else pick(WORKFLOWS, name, "workflow")
