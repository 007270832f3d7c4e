"""The single-turn workflow, and the table of all workflows.

A workflow is a generator (workflows/trajectory.py), or a function with a parameter `model`, whose attempts run in
processes of their own (workflows/attempts/isolated.py).
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from pipeline.settings.arguments import WORKFLOWS as DECLARED
from pipeline.settings.arguments.base import problems
from pipeline.settings.arguments.users import Signature
from pipeline.store.errors import ConfigError, pick
from pipeline.store.user_errors import load_dotted
from workflows.attempts.isolated import MODEL, Isolated
from workflows.retry import retry_workflow
from workflows.task_at_hand import PARAMETER
from workflows.time_limit import limited_workflow
from workflows.trajectory import Attempt, Trajectory


def simple_workflow(prompt: list[int]) -> Attempt:
    """One prompt, one response; every response token is an action of the policy."""
    reply = yield prompt
    return Trajectory(prompt, reply.tokens, reply.logprobs, [1] * len(reply.tokens), reply.finish_reason)


def load_workflow(
    name: str, arguments: dict[str, Any] | None = None, limit: float | None = None
) -> Callable[..., Attempt] | Isolated:
    """A workflow from the table, or the user's own `module:function`, with `workflow_args` bound.

    limit: seconds of its own code in an attempt (explorer.max_timeout). The task itself is bound later, for each
    attempt (workflows/task_at_hand.py). Raises ConfigError for an unknown workflow, or for an argument that it does not
    take.
    """
    workflow = _bound(name, arguments)
    function = inspect.unwrap(getattr(workflow, "func", workflow))
    if MODEL in inspect.signature(workflow).parameters:
        if inspect.isgeneratorfunction(function):
            raise ConfigError(f"the workflow '{name}' is a generator with a parameter `model`, which is kept for the "
                              "policy of workflows that are none (docs/agents.md); rename it.")
        return Isolated(workflow, limit)
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"the workflow '{name}' is an `async def` without a parameter `model`, by which it asks the "
                          "model (docs/agents.md); add one.")
    return limited_workflow(workflow, limit)


def _bound(name: str, arguments: dict[str, Any] | None) -> Callable:
    function = load_dotted(name) if ":" in name else pick(WORKFLOWS, name, "workflow")
    if not arguments:
        return function
    own = Signature.of(function) if ":" in name else None
    taker = own.without(*own.names()[:1], PARAMETER, MODEL) if own else DECLARED.get(name)
    if found := problems("workflow_args", name, [taker], arguments):
        raise ConfigError(" ".join(found))
    return partial(function, **arguments)


WORKFLOWS = {"simple_workflow": simple_workflow, "retry_workflow": retry_workflow}
