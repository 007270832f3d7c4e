"""Tools of agents: typed Python functions, the public methods of an environment, and those of MCP servers.

A function's description for the model is its docstring, and the schema of its arguments follows from its signature. A
workflow with a parameter `toolbox` calls tools (workflows/attempts/toolbox.py); `workflow_args` name them.
"""

import inspect
import json
import keyword
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from ouroboros.pipeline.settings.arguments.answers import ToolArguments
from ouroboros.pipeline.settings.arguments.mcp import McpServer
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.pipeline.store.user_errors import brief, load_dotted

TOOLBOX = "toolbox"  # parameter of a workflow that calls tools
KEY = "idempotency_key"  # parameter of a tool that gets it
RESET, REWARD = "reset", "reward"  # methods of an environment that are no tools
ENVIRONMENT = ""  # the world of its methods
LONGEST = 500  # characters of what is wrong with arguments
TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict}  # of JSON


@dataclass(frozen=True)
class Declaration:
    """What a tool says of itself. seconds: of a call, in place of workflow_args.tool_seconds."""

    idempotent: bool = False
    seconds: float | None = None


def tool(function: Callable | None = None, *, idempotent: bool = False, seconds: float | None = None) -> Callable:
    """Declares a tool: `@tool`, or `@tool(idempotent=True)`.

    idempotent: a call that is repeated with the same `idempotency_key` (a parameter that the tool may have) has no
    further effect. Only such a tool is called again when a kill left its outcome unknown.
    """
    def declare(function: Callable) -> Callable:
        function.declaration = Declaration(idempotent, seconds)
        return function

    return declare(function) if function else declare


@dataclass(frozen=True)
class Situation:
    """A task as an environment sees it: messages of its prompt, and the truth."""

    messages: list[dict]
    answer: str


class Environment:
    """The world of one attempt, in its own process; its public methods are tools.

    idempotent: its effects are in its own memory, and the same calls after `reset` give the same results; then its
    state is made again after a kill, by repeating the recorded calls.
    """

    idempotent = False
    settings = ToolArguments()  # of the task set, once an attempt has begun

    @classmethod
    def check(cls) -> None:
        """Raises ConfigError where this machine lacks what the environment needs; called before the first attempt."""

    def reset(self, task: Situation) -> str | None:
        """Begins an attempt; returns what the model sees first, if anything."""

    def reward(self) -> float | dict[str, float] | None:
        """The reward of the attempt, its components, or None where the reward functions decide."""


@dataclass(frozen=True)
class Toolset:
    """What workflow_args say of tools. listed: definitions of the tools of each MCP server."""

    settings: ToolArguments
    listed: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


class Tool:
    """A function that the model may call. definition: in OpenAI's form.

    world: where its calls share a state: ENVIRONMENT, or the name of an MCP server; None: each has its own process.
    """

    def __init__(self, function: Callable, declaration: Declaration | None = None, world: str | None = None):
        """declaration: in place of the function's own."""
        own = getattr(function, "declaration", Declaration())
        self.function, self.name, self.declaration = function, function.__name__, declaration or own
        self.world = world
        try:
            self.signature, self._arguments = _adapter(function)
            parameters = self._arguments.json_schema()
        except (TypeError, ValueError, NameError, PydanticUserError) as error:
            raise ConfigError(f"the tool '{self.name}' has arguments that JSON cannot describe: {brief(error)}. Needed "
                              "parameters with names and types, such as `query: str`.") from error
        self.definition = {"type": "function", "function": {
            "name": self.name, "description": inspect.getdoc(function) or "", "parameters": parameters}}

    def undescribed(self) -> list[str]:
        """What the model is not told of it: its purpose, or the types of arguments."""
        said = self.definition["function"]
        named = said["parameters"].get("properties", {}).items()
        bare = [name for name, one in named if not {*one} - {"title", "default"}]
        return ([] if said["description"] else [f"{self.name} has no docstring"]) + [
            f"{name} of {self.name} has no type" for name in bare]

    def read(self, arguments: str) -> dict[str, Any]:
        """The arguments of a call. Raises ValueError for those that do not fit the signature."""
        try:
            return self._arguments.validate_json(arguments)
        except ValidationError as error:
            raise ValueError("; ".join(f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}"
                                       for one in error.errors())) from error


def _adapter(function: Callable) -> tuple[inspect.Signature, TypeAdapter]:
    """The signature of a tool as the model sees it, and what reads its arguments."""
    found = inspect.signature(function, eval_str=True)
    kept = [one for name, one in found.parameters.items() if name not in ("self", KEY)]
    if wrong := [one.name for one in kept if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY)]:
        raise TypeError(f"'{wrong[0]}' cannot be given by name")

    def collect(**given):
        return given

    collect.__signature__ = found.replace(parameters=[one.replace(kind=one.KEYWORD_ONLY) for one in kept])
    collect.__annotations__ = {one.name: one.annotation for one in kept if one.annotation is not one.empty}
    return found.replace(parameters=kept), TypeAdapter(collect)


class McpTool:
    """A tool of an MCP server, as Tool. own_name: at the server; function: of its name and description, for others."""

    def __init__(self, world: str, server: McpServer, listed: dict[str, Any]):
        """listed: name, description and parameters, as the server lists them."""
        self.own_name, self.name, self.world = listed["name"], server.prefix + listed["name"], world
        named = server.idempotent
        self.declaration = Declaration(named if isinstance(named, bool) else self.own_name in named)
        self.definition = {"type": "function", "function": {**listed, "name": self.name}}

        def function(): ...

        function.__name__, function.__doc__ = self.name, listed["description"]
        self.function, self._schema = function, _compiled(listed["parameters"])

    @property
    def signature(self) -> inspect.Signature:
        """The arguments by name, but for names that Python does not allow."""
        required, given = self._schema.get("required", ()), self._schema.get("properties", {})
        return inspect.Signature([
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=_annotation(one),
                              default=inspect.Parameter.empty if name in required else None)
            for name, one in given.items() if name.isidentifier() and not keyword.iskeyword(name)])

    def read(self, arguments: str) -> dict[str, Any]:
        """The arguments of a call. Raises ValueError for those that do not fit the server's schema."""
        from jsonschema.exceptions import best_match  # imported where servers are named
        from jsonschema.validators import validator_for
        from referencing import Registry

        # an explicit registry: without one, references to other documents would be downloaded
        validator = validator_for(self._schema)(self._schema, registry=Registry())
        try:
            found = json.loads(arguments)
            wrong = best_match(validator.iter_errors(found))
        except RecursionError as error:
            raise ValueError("arguments: too many levels") from error
        if wrong:
            raise ValueError(f"{'.'.join(map(str, wrong.path)) or 'arguments'}: {wrong.message[:LONGEST]}")
        return found


def _annotation(schema: Any) -> Any:
    """The Python type of an argument, where JSON schema names a single one."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    return TYPES.get(kind, Any) if isinstance(kind, str) else Any


def _compiled(schema: Any) -> Any:
    """A schema without the regular expressions of JavaScript that Python does not know: the server checks those."""
    if isinstance(schema, list):
        return [_compiled(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: {name: _compiled(one) for name, one in value.items() if _is_pattern(name)}
            if key == "patternProperties" and isinstance(value, dict) else _compiled(value)
            for key, value in schema.items() if not (key == "pattern" and isinstance(value, str)
                                                     and not _is_pattern(value))}


def _is_pattern(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True


def load_tools(named: Toolset) -> dict[str, Tool | McpTool]:
    """The tools that workflow_args name, with the methods of the environment and the tools of MCP servers, by name.

    Raises ConfigError for what cannot be imported or described, and for two tools with one name.
    """
    settings = named.settings
    if not (settings.tools or settings.environment_class or settings.mcp):
        raise ConfigError("workflow_args name no tools; needed tools=['my_tools:search'], "
                          "environment_class=my_world:World or mcp={shop: {command: my-server}}.")
    found = [load_tool(name) for name in settings.tools]
    if settings.environment_class:
        found += methods_of(load_environment(settings.environment_class))
    found += [McpTool(name, settings.servers[name], one) for name, each in named.listed.items() for one in each]
    names = [one.name for one in found]
    if twice := [one for one in found if names.count(one.name) > 1]:
        of_server = f" Set workflow_args.mcp.{twice[-1].world}.prefix." if twice[-1].world else ""
        raise ConfigError(f"two tools in workflow_args have the name '{twice[0].name}'; needed one each.{of_server}")
    return dict(zip(names, found, strict=True))


def load_tool(name: str) -> Tool:
    function = load_dotted(name)
    if isinstance(function, type) or not (callable(function) and hasattr(function, "__name__")):
        raise ConfigError(f"workflow_args.tools: '{name}' is no function; needed package.module:function.")
    return Tool(function)


def load_environment(name: str) -> type[Environment]:
    found = load_dotted(name)
    if not (isinstance(found, type) and issubclass(found, Environment)):
        raise ConfigError(f"workflow_args.environment_class: '{name}' is no class derived from "
                          "ouroboros.workflows.tools.Environment; needed one.")
    return found


def methods_of(environment: type[Environment]) -> list[Tool]:
    """The tools of an environment: its public methods."""
    declared = Declaration(environment.idempotent)
    return [Tool(one, Declaration(environment.idempotent, getattr(one, "declaration", declared).seconds), ENVIRONMENT)
            for name, one in inspect.getmembers(environment, inspect.isfunction)
            if not name.startswith("_") and name not in (RESET, REWARD)]


def modules_of(named: Toolset | None) -> list[str]:
    """The modules that tools need."""
    if named is None:
        return []
    names = [*named.settings.tools, named.settings.environment_class]
    of_servers = ["jsonschema", "ouroboros.workflows.attempts.mcp_client"] if named.listed else []
    return [*(name.partition(":")[0] for name in names if name), *of_servers]


def title(world: str) -> str:
    return f"the MCP server '{world}'" if world else "the environment"


def as_text(found: Any) -> str:
    """What a tool returned, as the model sees it. Raises TypeError for what is neither text nor JSON."""
    if found is None or isinstance(found, str):
        return found or ""
    try:
        return json.dumps(found, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"the tool returned {type(found).__name__}; needed a text, or a value that JSON can hold"
                        ) from error
