"""The single-turn workflow, and the table of all workflows.

A workflow is a generator (workflows/protocol/trajectory.py), or a function with a parameter `model`, whose attempts run
in their own processes (workflows/attempts/isolated.py).
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ouroboros.pipeline.job import own_process
from ouroboros.pipeline.settings.arguments.answers import ToolArguments, tool_arguments
from ouroboros.pipeline.settings.arguments.base import problems
from ouroboros.pipeline.settings.arguments.binding import Binding, bind_workflow
from ouroboros.pipeline.settings.arguments.users import Signature, constants, provided
from ouroboros.pipeline.settings.declared import WORKFLOWS as DECLARED
from ouroboros.pipeline.store.errors import ConfigError, pick
from ouroboros.pipeline.store.locked import ARGUMENT, digest
from ouroboros.pipeline.store.user_errors import load_dotted
from ouroboros.workflows.attempts.child import AUXILIARY, ENDPOINT, MODEL
from ouroboros.workflows.attempts.harness import harness_agent
from ouroboros.workflows.attempts.isolated import Isolated
from ouroboros.workflows.attempts.time_limit import limited_workflow, watched_workflow
from ouroboros.workflows.attempts.verifiers import verifiers_workflow
from ouroboros.workflows.protocol.prompts import choices_of, columns_of
from ouroboros.workflows.protocol.tools import TOOLBOX, Toolset, load_environment, load_tools
from ouroboros.workflows.protocol.trajectory import Attempt, Trajectory
from ouroboros.workflows.retry import retry_workflow
from ouroboros.workflows.tool_workflows import react_workflow, terminal_agent, tool_call_workflow

LOCKED = ARGUMENT.rpartition(".")[2]


def simple_workflow(prompt: list[int]) -> Attempt:
    """One prompt, one response; every response token is an action of the policy."""
    reply = yield prompt
    return Trajectory(prompt, reply.tokens, reply.logprobs, [1] * len(reply.tokens), reply.finish_reason)


def load_workflow(
    name: str, arguments: dict[str, Any] | None = None, limit: float | None = None, directory: Path | None = None,
    calling: Callable[[str], AbstractContextManager] | None = None,
) -> Callable[..., Attempt] | Isolated:
    """A workflow from the table, or the user's own `module:function`, with `workflow_args` bound.

    limit: seconds of its own code in an attempt (explorer.max_timeout). directory: of the stage, which keeps what MCP
    servers list. calling: entered with the name of a user's generator whenever its code runs. The task itself is bound
    later, for each attempt (workflows/task_at_hand.py). Raises ConfigError for an unknown workflow, or for an argument
    that it does not take, and DataError for a locked environment that has no lock.
    """
    workflow, tools = _bound(name, arguments, directory)
    function, taken = inspect.unwrap(getattr(workflow, "func", workflow)), inspect.signature(workflow).parameters
    consults = AUXILIARY in taken
    if ENDPOINT in taken:
        return Isolated(workflow, limit, speaks=True, consults=consults, tools=tools)
    if MODEL in taken:
        if inspect.isgeneratorfunction(function):
            raise ConfigError(f"the workflow '{name}' is a generator with a parameter `model`, which is kept for the "
                              "policy of workflows that are none (docs/agents.md); rename it.")
        return Isolated(workflow, limit, consults=consults, tools=tools)
    if ((tools or consults) and inspect.isgeneratorfunction(function)) or name in own_process.functions(directory):
        return Isolated(workflow, limit, consults=consults, tools=tools)
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"the workflow '{name}' is an `async def` without a parameter `model`, by which it asks the "
                          "model (docs/agents.md); add one.")
    if calling and ":" in name:
        workflow = watched_workflow(workflow, partial(calling, f"{own_process.WORKFLOW} {name}"))
    return limited_workflow(workflow, limit)


def load_workflows(name: str, tasks: Sequence, arguments: dict[str, Any] | None = None, limit: float | None = None,
                   directory: Path | None = None, calling: Callable[[str], AbstractContextManager] | None = None,
                   ) -> list[Callable[..., Attempt] | Isolated]:
    """The workflow of each task: the one that its row names (`choices` of pipeline/store/task_records.py), else `name`.

    As load_workflow; where rows name some, each is bound to those of the arguments that it takes. A user's gets the
    columns of the task's record that its parameters take.
    """
    names = [choices_of(task).get("workflow", name) for task in tasks]
    some = set(names) != {name}
    loaded = {one: load_workflow(one, _taken(one, arguments or {}) if some else arguments, limit, directory, calling)
              for one in dict.fromkeys(names)}
    bindings = {one: bind_workflow(own, arguments or {}, provided(own)) for one in loaded
                if ":" in one and (own := Signature.of(load_dotted(one)))}
    return [_with_columns(loaded[one], one, bindings.get(one), task) for one, task in zip(names, tasks, strict=True)]


def _with_columns(workflow: Callable[..., Attempt] | Isolated, name: str, binding: Binding | None, task
                  ) -> Callable[..., Attempt] | Isolated:
    if binding is None or not binding.asked():
        return workflow
    given = binding.taken(columns_of(task), f"the workflow {name}")
    if isinstance(workflow, Isolated):
        return replace(workflow, function=partial(workflow.function, **given))
    return partial(workflow, **given)


def _taken(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    taker = Signature.of(load_dotted(name)) if ":" in name else DECLARED[name]
    return {key: value for key, value in arguments.items() if taker.takes_anything or key in taker.names()}


def _bound(name: str, arguments: dict[str, Any] | None, directory: Path | None) -> tuple[Callable, Toolset | None]:
    """A workflow with its arguments bound, and those of its tools, if it has a parameter `toolbox`."""
    function = load_dotted(name) if ":" in name else pick(WORKFLOWS, name, "workflow")
    given, takes_tools = arguments or {}, TOOLBOX in inspect.signature(function).parameters
    if given or takes_tools:
        own = Signature.of(function) if ":" in name else None
        takers = [own.without(*provided(own)).relaxed() if own else DECLARED.get(name), *[ToolArguments] * takes_tools]
        if found := problems("workflow_args", name, takers, given):
            raise ConfigError(" ".join(found))
    tools, given = None, constants(given) if ":" in name else given
    if takes_tools:
        named = tool_arguments(name, given)
        given = {key: value for key, value in given.items() if key not in named}
        tools = _toolset(ToolArguments(**named), directory)
        load_tools(tools)
        if tools.settings.environment_class:
            load_environment(tools.settings.environment_class).check()
    if environment := given.get(LOCKED):  # a lock that is edited later is not that of this stage
        given = given | {LOCKED: digest(environment)}
    return (partial(function, **given) if given else function), tools


def _toolset(settings: ToolArguments, directory: Path | None) -> Toolset:
    if not settings.mcp:
        return Toolset(settings)
    from ouroboros.workflows.attempts.mcp_tools import listed  # jsonschema

    return Toolset(settings, listed(settings, directory))


WORKFLOWS = {
    "simple_workflow": simple_workflow,
    "retry_workflow": retry_workflow,
    "tool_call_workflow": tool_call_workflow,
    "terminal_agent": terminal_agent,
    "react_workflow": react_workflow,
    "verifiers_workflow": verifiers_workflow,
    "harness_agent": harness_agent,
}
