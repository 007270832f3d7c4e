"""Calls what a run calls, before it: faults of reward functions, operators and servers are found before a warmup.

Reward functions of the user and operators on experience run in separate processes (stages/own_code.py) without a GPU. A
call that exceeds the time limit is killed together with its child processes. The row is a real one of the set; its
truth (or demonstration) is the response, and then replies that answer nothing (stages/judged_rows.py).

MCP servers are asked for their tools, those of judges and policies for their models. A program is started once, with
the processes, limits and variables that it has in an attempt. A judge judges nothing.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from ouroboros.pipeline.check.named_functions import tools_with_servers
from ouroboros.pipeline.check.sources import POOL, sources
from ouroboros.pipeline.check.user_code import WAIT, Functions, own_code
from ouroboros.pipeline.job.context import environment
from ouroboros.pipeline.settings import secrets
from ouroboros.pipeline.settings.arguments.answers import ToolArguments
from ouroboros.pipeline.settings.arguments.experience import asks_models
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.data import reward_functions
from ouroboros.pipeline.settings.reward_rules import components_of
from ouroboros.pipeline.settings.row_columns import asked_columns
from ouroboros.pipeline.settings.setting import plain
from ouroboros.pipeline.store.digests import nothing_at
from ouroboros.pipeline.store.errors import Problem

OPERATORS = "data_processor.experience_pipeline.operators"
GENERATOR = "data_processor.task_pipeline.generator"  # and generator_args
LIMIT = 10  # seconds per call; imports before it have own_code.WAIT
EXTERNAL = "explorer.rollout_model.external"
SECONDS = 10.0  # for a list of models
Add = Callable[[str, list[Problem], str], None]


def call_rewards(stages: list[Config], known: str, add: Add) -> list[tuple[str, str]]:
    """Returns facts (function, sentence) on one call of each reward function.

    stages: their settings. known: the text of known problems; functions quoted there, and those whose rows come from a
    source named there, are not called. add: receives lines and their list (`problems`, `warnings`, `unjudged`), without
    a stage's name in front.
    """
    asked = {json.dumps(question, sort_keys=True): question for settings in stages for question in _questions(settings)
             if not any(one in known for one in (f"'{question['name']}'", question["source_key"],
                                                 GENERATOR if question.get("generator") else question["source_key"]))}
    facts, said = [], set()
    for text, question in asked.items():
        to, words, *warned = call_once(text)
        for place, line in ((to, words), *(("warnings", one) for one in warned)):
            same = (question["name"], line.partition(", for the row")[0])
            if place == "facts":
                facts.append((question["name"], line))
            elif same not in said:
                said.add(same)
                name = question["name"] if "operators" in question else f"'{question['name']}'"
                add("", [Problem(name, line)], place)
    return facts


def _questions(settings: Config) -> Iterator[dict[str, Any]]:
    """Builds the requests for stages/own_code.py: of a stage's reward functions, and of its operators on experience."""
    explorer, pool = settings.buffer.explorer_input, settings.data_processor.task_pipeline
    operators = settings.data_processor.experience_pipeline.operators
    if settings.kind.makes_experience and operators and not asks_models(operators):
        parts = [components_of(one, explorer, place) for place, one in explorer.train_places]
        yield {"name": OPERATORS, "source_key": OPERATORS, "operators": operators,
               "env_vars": settings.explorer.env_vars, "components": None if None in parts else sorted({
                   name for part in parts for name in part})}
    there = [source for source in sources(settings) if not nothing_at(source.path)]
    for place, one in settings.buffer.explorer_input.places:
        key = f"buffer.explorer_input.{place}.path" if one.path else f"data_processor.task_pipeline.{POOL}"
        source = next((s for s in there if s.key == key or s.key.startswith(f"{key}.")), None)
        of_pool = {} if one.path else {"generator": pool.generator, "generator_args": pool.generator_args}
        named = reward_functions(one, explorer)
        for name in named:
            if ":" in name and (place.startswith("eval_") or settings.kind.makes_experience):
                yield {"name": name, "alone": len(named) == 1, "source_key": source.label if source else key,
                       "arguments": one.reward_fn_args, "source": source and source.request(), "seed": settings.seed,
                       "columns": asked_columns(one, explorer, place),
                       "format": plain(one.format if one.path else pool.format), **of_pool,
                       "system_prompt": explorer.system_prompt, "env_vars": settings.explorer.env_vars}


@cache
def call_once(text: str) -> tuple[str, ...]:
    """Makes one call, asked as JSON; returns `problems`, `warnings`, `unjudged` or `facts`, the text for it, and
    further warnings."""
    question = json.loads(text)
    variables = environment(secrets.reveal(question["env_vars"]))
    found, how, limit = own_code(question, variables | {"CUDA_VISIBLE_DEVICES": ""}, _wait, "--call")
    if limit:
        return "warnings", (f"had not answered after {limit} s, when it was called with one row; it was ended. A run "
                            "waits for it without end: correct it, or set explorer.max_timeout.")
    if found is None:  # no row could be read
        return "unjudged", f"was not called: the checking process {how}"
    if not found:
        return "problems", f"was called with a row; the process {how}"
    if found[0] == "problems" and "cuda" in found[1].lower():  # none is visible to this call
        return "unjudged", found[1]
    return tuple(found)


def _wait(process: subprocess.Popen, answer: Path) -> int | None:
    """Waits for a process; returns the time limit if it was exceeded."""
    begin, limit = time.monotonic(), WAIT
    while process.poll() is None:
        if limit == WAIT and answer.exists():  # the import is done and the call begins
            begin, limit = time.monotonic(), LIMIT
        if time.monotonic() - begin > limit:
            return limit
        time.sleep(0.02)
    return None


def ask_judges(stages: list[Config], add: Add) -> list[tuple[str, str]]:
    """Returns facts (address of a judge, what it answered). A server need not list its models, or under other names."""
    asked: dict[tuple, str] = {}
    for settings in stages:
        for place, one in settings.buffer.explorer_input.places:
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
