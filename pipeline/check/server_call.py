"""Asks MCP servers for their tools before a run, so that one that cannot be used is found before the warmup.

A program is started once, with the processes, limits and variables that it has in an attempt.
"""

import json
from collections.abc import Callable

from pipeline.check.named_functions import tools_with_servers
from pipeline.check.user_code import Functions
from pipeline.job.context import environment
from pipeline.settings import secrets
from pipeline.settings.arguments.answers import ToolArguments
from pipeline.settings.config import Config
from pipeline.store.errors import Problem


def ask_servers(stages: list[Config], functions: Functions, add: Callable[[str, list[Problem], str], None]
                ) -> list[tuple[str, str]]:
    """Returns facts (server, number of tools). add: receives problems, without a stage's name in front."""
    from workflows.attempts.mcp_tools import listed_now  # jsonschema

    facts, asked = {}, {}
    for settings in stages:
        for key, given in tools_with_servers(settings, functions):
            variables = environment(secrets.reveal(settings.explorer.env_vars))
            asked.setdefault(json.dumps([given, variables]), (f"{key}.mcp", given, variables))
    for key, given, variables in asked.values():
        arguments = ToolArguments(**secrets.reveal(given))
        found, wrong = listed_now(arguments, variables)
        facts |= {name: f"{len(tools)} tools" for name, tools in found.items()}
        owners = {name.rpartition(":")[2]: name for name in arguments.tools}
        for server, tools in found.items():
            names = {arguments.servers[server].prefix + one["name"] for one in tools}
            if taken := sorted(names & {*owners}):
                wrong[server] = f"has the tool '{taken[0]}', and so has {owners[taken[0]]}; needed a prefix"
            owners |= dict.fromkeys(names, f"the server '{server}'")
        add("", [Problem(f"{key}.{server}", f"{words}.") for server, words in wrong.items()], "problems")
    return list(facts.items())
