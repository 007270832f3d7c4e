"""What MCP servers list becomes definitions for the model, asked once for each stage.

They are part of the prompt, so all attempts of a stage have the same ones, also after a kill.
"""

import json
import re
import socket
from pathlib import Path
from typing import Any

from jsonschema import FormatChecker
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for
from jsonschema_specifications import REGISTRY
from referencing import Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from ouroboros.pipeline.job.context import our_environment
from ouroboros.pipeline.settings.arguments.answers import ToolArguments
from ouroboros.pipeline.settings.arguments.mcp import McpServer
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import ConfigError, StageError
from ouroboros.workflows.attempts.forker import IMPORT_SECONDS, Forker
from ouroboros.workflows.attempts.tool_process import Processes, environment
from ouroboros.workflows.attempts.wire import Lost
from ouroboros.workflows.protocol.tools import Toolset, title

LONGEST = 500  # characters of what is wrong with a schema

Listed = dict[str, list[dict[str, Any]]]  # server -> name, description and parameters of each of its tools


def listed(settings: ToolArguments, directory: Path | None) -> Listed:
    """The definitions that a file of the stage has, else those that the servers list now.

    directory: of the stage; None keeps no file. Raises ConfigError for servers that cannot be used.
    """
    path = directory and directory / f"mcp-{files.hash_json(settings.mcp)}.json"
    if path and path.exists():
        return files.read_json(path)
    found, wrong = listed_now(settings)
    if wrong:
        raise ConfigError(" ".join(f"workflow_args.mcp.{name}: {reason}." for name, reason in wrong.items()))
    if path:
        files.write_json(path, found)
    return found


def listed_now(settings: ToolArguments, variables: dict[str, str] | None = None) -> tuple[Listed, dict[str, str]]:
    """Starts each server, or asks its URL, once; returns its tools, or why it cannot be used.

    variables: of the environment, besides those of this process.
    """
    known, found, wrong = our_environment() | (variables or {}), {}, {}
    only = settings.model_copy(update={"tools": [], "environment_class": None, "environment": []})
    forker = Forker("ouroboros.workflows.attempts.tool_host", environment(only, known), Toolset(only))
    if failed := forker.ready(IMPORT_SECONDS):
        raise StageError(f"the process that asks MCP servers for their tools failed: {failed}")
    _, orders = forker.fork(kind=socket.SOCK_SEQPACKET)
    with orders:
        processes = Processes(orders, only, known)
        for name, server in settings.servers.items():
            try:
                session, text = processes.begin(name)
                session.close()
                found[name] = _offered(server, json.loads(text))
            except Lost as lost:
                wrong[name] = str(lost)
            except ValueError as error:
                wrong[name] = f"{title(name)} {error}"
    forker.close()
    return found, wrong


def _offered(server: McpServer, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tools that the model sees. Raises ValueError, with a reason that follows the server's name."""
    names = [one["name"] for one in tools]
    if not names:
        raise ValueError("offers no tools")
    asked = server.tools or names
    wanted = [*asked, *(server.idempotent if isinstance(server.idempotent, list) else [])]
    if absent := [one for one in wanted if one not in names]:
        raise ValueError(f"has no tool '{absent[0]}'; it has {', '.join(names[:50])}")
    found = [one for one in tools if one["name"] in asked]
    for one in found:
        try:
            _check(one["parameters"])
        except (SchemaError, Unresolvable, RecursionError) as error:
            why = error.message if isinstance(error, SchemaError) else f"a reference leads nowhere: {error}"
            raise ValueError(f"has a tool '{one['name']}' with a wrong schema: {why[:LONGEST]}") from error
    return found


def _check(schema: dict[str, Any]) -> None:
    """Raises SchemaError for a malformed schema, Unresolvable for one with a reference to what it does not contain."""
    validator_for(schema).check_schema(schema, format_checker=FormatChecker(formats=()))  # patterns are JavaScript's
    resource = Resource.from_contents(schema, default_specification=DRAFT202012)
    resolver = REGISTRY.with_resource("", resource).crawl().resolver()
    for reference in re.findall(r'"\$ref": "([^"\\]*)"', json.dumps(schema)):
        resolver.lookup(reference)
