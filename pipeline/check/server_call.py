"""Asks MCP servers for their tools, and those of judges and policies for their models, before a run, so that one that
cannot be used is found before the warmup.

A program is started once, with the processes, limits and variables that it has in an attempt. A judge judges nothing.
"""

import json
import os
from collections.abc import Callable

from ouroboros.pipeline.check.named_functions import tools_with_servers
from ouroboros.pipeline.check.user_code import Functions
from ouroboros.pipeline.job.context import environment
from ouroboros.pipeline.settings import secrets
from ouroboros.pipeline.settings.arguments.answers import ToolArguments
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.data import reward_functions, tasksets
from ouroboros.pipeline.store.errors import Problem

EXTERNAL = "explorer.rollout_model.external"
SECONDS = 10.0  # for a list of models
Add = Callable[[str, list[Problem], str], None]


def ask(stages: list[Config], functions: Functions, add: Add) -> list[tuple[str, list[tuple[str, str]]]]:
    """Returns facts by their title. add: receives problems, without a stage's name in front."""
    return [("MCP servers", ask_servers(stages, functions, add)), ("judges", ask_judges(stages, add)),
            ("servers", ask_policies(stages, add))]


def ask_judges(stages: list[Config], add: Add) -> list[tuple[str, str]]:
    """Returns facts (address of a judge, what it answered). A server need not list its models, or under other names."""
    asked: dict[tuple, str] = {}
    for settings in stages:
        for place, one in tasksets(settings):
            given = secrets.reveal(one.reward_fn_args)
            if given.get("judge_url") and "judge_reward" in reward_functions(one, settings.buffer.explorer_input):
                variables = {**os.environ, **environment(secrets.reveal(settings.explorer.env_vars))}
                key = variables.get(given.get("judge_key_env") or "", "none")
                asked.setdefault((given["judge_url"], given.get("judge_model"), key),
                                 f"buffer.explorer_input.{place}.reward_fn_args.judge_url")
    return _asked(asked, "judge_model", add)


def ask_policies(stages: list[Config], add: Add) -> list[tuple[str, str]]:
    """Does the same for the servers whose models answer tasks."""
    asked: dict[tuple, str] = {}
    for settings in stages:
        server = settings.explorer.rollout_model.external
        if settings.asks_server and server.base_url:
            key = os.environ.get(server.api_key_env or "", "none")
            asked[server.base_url, server.model_name, key] = f"{EXTERNAL}.base_url"
    return _asked(asked, "model_name", add)


def _asked(asked: dict[tuple, str], name: str, add: Add) -> list[tuple[str, str]]:
    """Asks each server. asked: (address, model, key) -> setting of the address. name: of the model's setting."""
    facts = []
    for (url, model, key), setting in asked.items():
        wrong, models = _models(url, key)
        if wrong:
            add("", [Problem(setting, wrong, "Start the server, correct the address or its key, or pass --no-call.",
                             found=url)], "problems")
        elif models and model not in models:
            add("", [Problem(setting, f"the server lists {', '.join(models[:5])}, and not the {name} {model}.",
                             "Name one of them, if it has no other names.")], "warnings")
        facts.append((url, wrong or f"answers; {len(models)} models"))
    return facts


def _models(url: str, key: str) -> tuple[str, list[str]]:
    """Returns why a server cannot be asked, or an empty text, and its models as far as it lists them."""
    import httpx

    try:
        answer = httpx.get(f"{url.rstrip('/')}/models", headers={"Authorization": f"Bearer {key}"}, timeout=SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return f"the server did not answer: {type(error).__name__}.", []
    if answer.status_code in (401, 403):
        return f"the server refused the key ({answer.status_code}).", []
    if answer.status_code >= 500:
        return f"the server failed ({answer.status_code}).", []
    try:
        return "", [str(one["id"]) for one in answer.json()["data"]]
    except (ValueError, KeyError, TypeError):
        return "", []


def ask_servers(stages: list[Config], functions: Functions, add: Add) -> list[tuple[str, str]]:
    """Returns facts (server, number of tools)."""
    from ouroboros.workflows.attempts.mcp_tools import listed_now  # jsonschema

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
