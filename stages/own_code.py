"""Imports the functions that a configuration names before anything runs, to catch errors early.

    python -m ouroboros.stages.own_code request.json answer.json
    python -m ouroboros.stages.own_code --call request.json answer.json

Started by `ouro run` and `ouro config check` (check/user_code.py). The answer lists, name by name, what each function
takes; if the process dies, the first name without an answer caused it. With --call it calls one reward function with
rows (pipeline/check/calls.py). Not a stage of the plan: no stage reads its output.
"""

import dis
import inspect
import os
import sys
import sysconfig
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import CellType, CodeType, SimpleNamespace
from typing import Any

from ouroboros.operators.columns import keeping, with_columns
from ouroboros.operators.experience import passed, scores_of
from ouroboros.operators.formats import read_records
from ouroboros.operators.generate import GENERATORS
from ouroboros.operators.reward import load_reward
from ouroboros.pipeline.check.reading import sample
from ouroboros.pipeline.check.samples import ROWS
from ouroboros.pipeline.check.user_code import REWARD, STEP, TOOL, WORKFLOW, WORLD, of_python
from ouroboros.pipeline.settings import secrets
from ouroboros.pipeline.settings.arguments.base import Advantage, Loss
from ouroboros.pipeline.settings.arguments.experience import SHAPING
from ouroboros.pipeline.settings.arguments.users import GROUPS, STEPS, TOKENS, Signature
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.data import TaskFormat
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import ConfigError, OuroError
from ouroboros.pipeline.store.records import RawTask
from ouroboros.pipeline.store.user_errors import STANDARD_LIBRARY, load_dotted, users_frames, users_traceback
from ouroboros.stages.curation import Curation
from ouroboros.stages.judged_rows import REPEATED, replies, unearned
from ouroboros.workflows.attempts.user_reward import Rule, taken_arguments
from ouroboros.workflows.protocol.prompts import asked_turns, columns_of
from ouroboros.workflows.protocol.tools import load_environment, load_tool, methods_of

MADE = (("2 + 3 is 5.", 1.0), ("It is 6, I think.", 0.0), ("5", 1.0), ("", 0.0))  # responses, and their rewards
CALLED = 8  # rows that a reward function is called with while it returns None
SECONDS = 3  # for calls with replies that answer nothing


def takes(name: str, role: str) -> dict[str, Any] | str | None:
    """What a function takes (null where Python cannot tell), or a line saying why it cannot be called."""
    try:
        function = load_dotted(name)
        if role in (TOOL, WORLD):
            return _undescribed(name, role, function)
    except ConfigError as error:
        return str(error)
    if role == STEP:
        from ouroboros.operators.algorithm import Algorithm  # torch

        derived = inspect.isclass(function) and issubclass(function, Algorithm)
        return None if derived else f"'{name}': needed a class derived from ouroboros.operators.algorithm.Algorithm."
    if inspect.isclass(function) and issubclass(function, Advantage | Loss) and not inspect.isabstract(function):
        return asdict(Signature.of_class(function))
    found = None if inspect.isclass(function) or not callable(function) else Signature.of(function)
    if why := _unfit(function, role, found):
        return f"'{name}' {why}"
    reads = partial(_names, inspect.unwrap(function), {})
    return found and asdict(replace(found, reads_groups=reads(set(), GROUPS), reads_steps=reads(set(), STEPS)))


def _undescribed(name: str, role: str, function: Any) -> dict[str, Any] | str | None:
    """What the description of a tool, or of an environment's tools, lacks for the model."""
    tools = [load_tool(name)] if role == TOOL else methods_of(load_environment(name))
    if role == WORLD:
        function.check()
    if not tools:
        return f"'{name}' has no public method but reset and reward, and so no tool; needed one."
    lacking = [words for tool in tools for words in tool.undescribed()]
    return asdict(Signature(undescribed=lacking)) if lacking else None


def _unfit(function: Any, role: str, found: Signature | None) -> str | None:
    """Why a function cannot have a role. found: its signature."""
    if inspect.isclass(function):
        return "is a class; needed a function, or for a loss or an advantage a class derived from it."
    if inspect.isroutine(function) and of_python(function.__module__ or "builtins"):
        return "is a function of Python itself; needed one of yours, which may call it."
    if not callable(function):
        return f"is of type {type(function).__name__}; needed a function."
    if role != WORKFLOW and inspect.isgeneratorfunction(inspect.unwrap(function)):
        return "yields, so a call of it runs nothing; needed a function that returns its result."
    is_workflow = found and not {"model", "endpoint"}.isdisjoint(found.names())
    is_async = inspect.iscoroutinefunction(function) and not is_workflow
    if role != REWARD and (is_async or inspect.isasyncgenfunction(function)):
        return ("is an `async def`, and nobody awaits it; needed a plain function, or a workflow with a parameter "
                "`model` or `endpoint`.")
    if role == WORKFLOW and (why := _never_answers(inspect.unwrap(function))):
        return why
    wrong = [fact for fact, value in (found.facts if found else {}).items() if not isinstance(value, bool)]
    return f"has the attribute {wrong[0]}, which is no bool; needed True or False." if wrong else None


def _never_answers(function: Any) -> str | None:
    """Why a workflow cannot make an attempt, by its code alone: it never asks the model, or returns what is none."""
    if not inspect.isfunction(function):
        return None
    if function.__name__ == "<lambda>":
        return "is a lambda, which no other process can import; needed a def."
    steps, code = [*dis.get_instructions(function)], function.__code__
    given = inspect.signature(function).parameters
    read = {one.argval for one in steps if one.opname.startswith("LOAD_")} | {*code.co_cellvars}
    calls = any(one.opname.startswith("CALL") for one in steps)  # of a client, say, which the environment tells
    asking = ("model",) if calls else ("endpoint", "model")
    if lacking := [name for name in asking if name in given and name not in read][:1]:
        return f"never reads its parameter '{lacking[0]}', by which it asks the model."
    ends = [before for before, one in pairwise(steps) if one.opname == "RETURN_VALUE"]
    only = [one.argval for one in ends if one.opname == "LOAD_CONST"]
    only += [one.argval for one in steps if one.opname == "RETURN_CONST"]
    always = len(only) == len(ends) + sum(one.opname == "RETURN_CONST" for one in steps)
    if "endpoint" in given or not always:  # the reply of an agent is what the model said last
        return None
    return f"returns {', '.join(map(repr, dict.fromkeys(only))) or 'nothing'} in any case; needed a Trajectory."


def _names(value: Any, places: dict[str, Any], visited: set[int], words: Sequence[str]) -> bool:
    """Whether a text, or code with what it calls in the user's modules and ours, names one of `words`.

    places: the globals of a piece of code that is no function.
    """
    if isinstance(value, str):
        return any(word in value for word in words)
    value = value.__call__ if inspect.isclass(value) else value  # of a loss or an advantage
    code = value if inspect.iscode(value) else getattr(value, "__code__", None)
    module = getattr(value, "__module__", None) or ""
    if code is None or id(code) in visited or (visited and _of_a_library(code, module)):
        return False
    visited.add(id(code))
    places, doc = getattr(value, "__globals__", places), getattr(value, "__doc__", None)
    globals_ = {one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL"}
    called = [places[name] for name in globals_ if name in places]
    called += [getattr(one, name) for one in called if inspect.ismodule(one) for name in code.co_names
               if hasattr(one, name)]
    called += [cell.cell_contents for cell in getattr(value, "__closure__", None) or () if cell != CellType()]
    called += [*(getattr(value, "__defaults__", None) or ()), *(getattr(value, "__kwdefaults__", None) or {}).values()]
    constants = [part for one in code.co_consts if one is None or one != doc
                 for part in (one if isinstance(one, tuple | frozenset) else (one,))]
    return any(_names(one, places, visited, words) for one in (*code.co_names, *constants, *called))


def _of_a_library(code: CodeType, module: str) -> bool:
    places = (STANDARD_LIBRARY, *(Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")))
    ours = module.startswith("ouroboros.operators")
    return not ours and any(Path(code.co_filename).is_relative_to(place) for place in places)


def call(request: str, answer: str) -> None:
    """Calls a reward function as a run does; the answer file is empty until the call ends. Where it returns None, it is
    called with further rows."""
    question = secrets.reveal(files.read_json(Path(request)))
    if "operators" in question:
        return curate(question, answer)
    (tasks, there), function = _tasks(question), load_reward(question["name"])
    if not tasks:
        return files.write_json(Path(answer), ["unjudged", "was not called: no row has a prompt and a truth."])
    rule = Rule(function, taken_arguments(function, question["arguments"]), retries=0,
                form=question["format"]["prompt_type"])
    if rule.names_tokens or (rule.takes_tokens and _names(inspect.unwrap(function), {}, set(), (TOKENS,))):
        return files.write_json(Path(answer), ["unjudged", f"was not called: it takes {TOKENS}, tokens of a policy."])
    if twice := sorted({*rule.binding.doubtful} & {*there}):
        return files.write_json(Path(answer), [
            "problems", f"is given {twice[0]} by reward_fn_args, and the records have a column '{twice[0]}' that it "
            "would take: needed one of both. Leave it out of reward_fn_args, or rename the parameter."])
    files.write_json(Path(answer), [])
    begin, system, first = time.monotonic(), question["system_prompt"], tasks[:CALLED]
    finding = next((found for task in first if (found := _finding(rule, task, system))), None)
    if finding and finding[0] == "facts":
        finding += _unearned(rule, tasks[:REPEATED], system, begin)
    return files.write_json(Path(answer), finding or [
        "problems" if question["alone"] else "warnings",
        f"returned None for {len(first)} of {len(first)} rows, each with its truth or demonstration as the response: "
        "it does not apply there, and a row to which no function applies fails. Needed a number where it applies."])


def curate(question: dict[str, Any], answer: str) -> None:
    """Passes made attempts through the operators on experience, as a step does. Where it is not known what rewards add
    up, the scores that no operator gives are among it."""
    pipeline, known = {"operators": question["operators"]}, question["components"]
    read = [one["stats_key"] for operator in question["operators"] if operator["name"] == SHAPING
            for one in operator["args"]["reward_shaping_configs"]]

    def scores(components: Iterable[str]) -> set[str]:
        made = [curation.given(SimpleNamespace(
            slot=at, role=None, prompt="What is 2 + 3?", response=text, taskset="made", task_id="made",
            group_id=f"{at // 2}", run_index=at % 2, reward=reward, accuracy=reward,
            reward_components=[(one, reward) for one in components], finish_reason="stop",
            response_tokens=[*text])) for at, (text, reward) in enumerate(MADE)]
        return {name for row in passed(made, curation.operators) for name in scores_of(row)}

    try:
        curation = Curation(Config.partial({"data_processor": {"experience_pipeline": pipeline}}), True, lambda _: "5")
        files.write_json(Path(answer), [])
        scores(known if known is not None else {*read} - scores(read))
        found = ["facts", f"{len(MADE)} made attempts pass them in their order"]
    except OuroError as error:
        found = ["problems", f"made attempts do not pass them: {error}"]
    files.write_json(Path(answer), found)


def _finding(rule: Rule, task: RawTask, system_prompt: str | None) -> list[str] | None:
    """The list and the sentence of one call; None where the function returns None."""
    prompt, response = asked_turns(task, system_prompt), task.solution or task.answer
    row = f"the row whose prompt ends with {task.question[-60:]!r} and whose truth is {task.answer[:60]!r}"
    copies = 2 if rule.binding.takes_batch else 1  # two copies reveal a batch function that returns a single answer
    columns = [columns_of(task)] * copies
    found, *_ = rule.ask([prompt] * copies, [response] * copies, [task.answer] * copies, columns=columns)
    read = rule.read(found)
    if isinstance(read, str):
        frames = f"\n{users_traceback(found)}" if isinstance(found, BaseException) and users_frames(found) else ""
        return ["problems", f"{read.removeprefix(rule.name).strip()}, for {row}.{frames}"]
    parts = ", ".join(f"{part}={value:g}" for part, value in read.items())
    kind = "demonstration" if task.solution else "truth"
    if not read:
        return None
    (nothing, *_) = rule.ask([prompt] * copies, [""] * copies, [task.answer] * copies, columns=columns)
    if isinstance(failed := rule.read(nothing), str):  # as a policy may answer
        return ["warnings", f"{failed.removeprefix(rule.name).strip()}, for an empty response to {row}. A policy "
                "writes anything; a response without a reward is a failed row."]
    bound = rule.binding.lines(columns[0])
    return ["facts", f"{parts}, where the response is the {kind} of {row}{bound and f'; {bound}'}"]


def _unearned(rule: Rule, tasks: Sequence[RawTask], system_prompt: str | None, begin: float) -> list[str]:
    """What `unearned` says of as many rows as there is time for. begin: of the first two calls."""
    tried, taken = [], time.monotonic() - begin
    for task in tasks:
        if tried and time.monotonic() - begin + 2 * taken > SECONDS:
            break
        responses = [task.solution or task.answer, *replies(task)]
        found = rule.ask([asked_turns(task, system_prompt)] * len(responses), responses, [task.answer] * len(responses),
                         columns=[columns_of(task)] * len(responses))
        parts = [{} if isinstance(one, str) else one for one in map(rule.read, found)]
        tried.append((task, [one.get("accuracy", sum(one.values())) if one else None for one in parts]))
    return unearned(tried)


def _tasks(question: dict[str, Any]) -> tuple[list[RawTask], list[str]]:
    """The rows with a prompt and a truth, from the files of a set or from the generator; and the columns of files."""
    source, rows, there, kept, asked = question["source"], [], [], deque(), question["columns"]
    if question.get("generator"):
        rows = GENERATORS[question["generator"]](question["seed"], **question["generator_args"])
    elif source:
        drawn = sample(Path(source["path"]), source["split"], ROWS, [*source["columns"].values(), *asked])
        columns, there = TaskFormat.partial(question["format"]), [name for part in drawn.parts for name in part.columns]
        found = read_records(keeping(drawn.rows, asked, columns, kept), columns, "task", source["path"], 0)
        rows = (with_columns(row, kept.popleft()) for row in found)
    return [row for row in rows if row.question and row.answer is not None and not row.problem], there


def main(request: str, answer: str) -> None:
    found: list[dict | str | None] = []
    for name, role in files.read_json(Path(request), kind=list):
        found.append(takes(name, role))
        files.write_json(Path(answer), found)


if __name__ == "__main__":
    (call if sys.argv[1] == "--call" else main)(*sys.argv[-2:])
    sys.stdout.flush()
    os._exit(0)  # a thread that the user's code began may never end
