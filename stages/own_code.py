"""Imports the functions that a configuration names before anything runs, to catch errors early.

    python -m stages.own_code request.json answer.json
    python -m stages.own_code --call request.json answer.json

Started by `ouro run` and `ouro config check` (check/user_code.py). The answer lists, name by name, what each function
takes; if the process dies, the first name without an answer caused it. With --call it calls one reward function with
one row (pipeline/check/reward_call.py). Not a stage of the plan: no stage reads its output.
"""

import inspect
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from operators.formats import read_records
from operators.generate import GENERATORS
from operators.reward import load_reward
from pipeline.check.data_sample import sample
from pipeline.check.samples import ROWS
from pipeline.check.user_code import REWARD, TOOL, of_python
from pipeline.settings import secrets
from pipeline.settings.arguments.users import Signature
from pipeline.settings.data import Format
from pipeline.store import files
from pipeline.store.errors import ConfigError
from pipeline.store.records import RawTask
from pipeline.store.user_errors import load_dotted, users_frames, users_traceback
from workflows.prompts import asked_turns
from workflows.tools import load_environment, load_tool, methods_of
from workflows.user_reward import Rule, taken_arguments


def takes(name: str, role: str) -> dict[str, Any] | str | None:
    """What a function takes (null where Python cannot tell), or a line saying why it cannot be called."""
    try:
        function = load_dotted(name)
        if role == TOOL:
            if not isinstance(function, type):
                load_tool(name)
            else:
                methods_of(load_environment(name))
                function.check()
            return None
    except ConfigError as error:
        return str(error)
    if isinstance(function, type):
        return f"'{name}' is a class; needed a function."
    if inspect.isroutine(function) and of_python(function.__module__ or "builtins"):
        return f"'{name}' is a function of Python itself; needed one of yours, which may call it."
    if not callable(function):
        return f"'{name}' is a {type(function).__name__}; needed a function."
    found = Signature.of(function)
    is_workflow = found and not {"model", "endpoint"}.isdisjoint(found.names())
    is_async = inspect.iscoroutinefunction(function) and not is_workflow
    if role != REWARD and (is_async or inspect.isasyncgenfunction(function)):
        return (f"'{name}' is an `async def`, and nobody awaits it; needed a plain function, or a workflow with a "
                "parameter `model` or `endpoint`.")
    return found and asdict(found)


def call(request: str, answer: str) -> None:
    """Calls a reward function as a run does; the answer file is empty until the call ends."""
    question = secrets.reveal(files.read_json(Path(request)))
    task, function = _first_task(question), load_reward(question["name"])
    if task is None:
        return files.write_json(Path(answer), ["unjudged", "was not called: no row has a prompt and a truth."])
    rule = Rule(function, taken_arguments(function, question["arguments"]), retries=0)
    prompt, response = asked_turns(task, question["system_prompt"]), task.solution or task.answer
    row = f"the row whose prompt ends with {task.question[-60:]!r} and whose truth is {task.answer[:60]!r}"
    files.write_json(Path(answer), [])
    copies = 2 if rule.of_batch else 1  # two copies reveal a batch function that returns a single answer
    found, *_ = rule.ask([prompt] * copies, [response] * copies, [task.answer] * copies)
    read = rule.read(found)
    if isinstance(read, str):
        frames = f"\n{users_traceback(found)}" if isinstance(found, BaseException) and users_frames(found) else ""
        finding = ["problems", f"{read.removeprefix(rule.name).strip()}, for {row}.{frames}"]
    else:
        parts = ", ".join(f"{part}={value:g}" for part, value in read.items())
        kind = "demonstration" if task.solution else "truth"
        finding = ["facts", f"{parts}, where the response is the {kind} of {row}"] if read else ["warnings", (
            f"returned None for {row}: it does not apply there, and a row to which no function applies fails")]
    return files.write_json(Path(answer), finding)


def _first_task(question: dict[str, Any]) -> RawTask | None:
    """A row with a prompt and a truth, from the files of a set or from the generator."""
    source, rows = question["source"], []
    if question.get("generator"):
        rows = GENERATORS[question["generator"]](question["seed"], **question["generator_args"])
    elif source:
        drawn = sample(Path(source["path"]), source["split"], ROWS, source["columns"].values())
        rows = read_records(drawn.rows, Format.partial(question["format"]), "task", source["path"], 0)
    return next((row for row in rows if row.question and row.answer and not row.problem), None)


def main(request: str, answer: str) -> None:
    found: list[dict | str | None] = []
    for name, role in files.read_json(Path(request)):
        found.append(takes(name, role))
        files.write_json(Path(answer), found)


if __name__ == "__main__":
    (call if sys.argv[1] == "--call" else main)(*sys.argv[-2:])
