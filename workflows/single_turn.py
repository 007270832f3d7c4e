"""Workflows: how one attempt at a task talks to the model.

A workflow is a generator. It yields the token ids it wants continued, receives the engine's Reply, and returns the
Trajectory that is rewarded and trained on. Many attempts run interleaved (workflows/runner.py) without threads.
"""

import inspect
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipeline.errors import ConfigError, load_dotted, pick
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


def load_workflow(name: str, arguments: dict[str, Any] | None = None) -> Callable[[list[int]], Attempt]:
    """A workflow of the table, or `module:function` of the user's own project, with `workflow_args` bound.

    Raises ConfigError when there is none, or for an argument that it does not take.
    """
    function = load_dotted(name) if ":" in name else pick(WORKFLOWS, name, "workflow")
    if not arguments:
        return function
    try:
        inspect.signature(function).bind([], **arguments)
    except TypeError as error:
        raise ConfigError(f"workflow_args={arguments}: {error}. Workflow '{name}' takes "
                          f"{inspect.signature(function)}; the first is the prompt.") from error
    return partial(function, **arguments)
