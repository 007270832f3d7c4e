"""Signatures of the user's functions, obtained by importing them in a separate process (stages/own_code.py).

`ouro run` does so before it schedules anything, and so does `ouro config check` without --no-data.
"""

import json
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from pipeline.check.sources import tasksets
from pipeline.job.context import ending, environment, our_environment
from pipeline.settings import secrets
from pipeline.settings.arguments.users import Signature
from pipeline.settings.config import TOOLS, Config, users_code
from pipeline.settings.data import reward_functions
from pipeline.store import files, launch
from pipeline.store.digests import module_file
from pipeline.store.user_errors import STANDARD_LIBRARY

WAIT = 300  # seconds for importing the named modules
REWARD, TOOL, OTHER = "reward", "tool", "other"  # what a function is called as
Functions = dict[str, Signature | None]  # function path -> its signature; None where Python cannot determine it


def imported(stages: list[Config], known: str = "") -> tuple[Functions, list[str]]:
    """Returns the functions that stages name, and the problems of those left out, one line each.

    stages: their settings. known: the text of known problems; functions quoted there are not imported.
    """
    asked: dict[str, dict[str, str]] = {}
    for settings in stages:
        variables = environment(secrets.reveal(settings.explorer.env_vars))
        explorer = settings.buffer.explorer_input
        rewards = {name for _, one in tasksets(settings) for name in reward_functions(one, explorer)}
        asked.setdefault(json.dumps(variables), {}).update(
            {name: REWARD if name in rewards else TOOL if key.endswith(TOOLS) else OTHER
             for key, name in users_code(settings) if f"'{name}'" not in known})
    functions, wrong = {}, []
    for variables, questions in asked.items():
        for name, answer in _answers(variables, json.dumps(questions)).items():
            if isinstance(answer, str):
                wrong.append(answer)
            else:
                functions[name] = answer
    return functions, list(dict.fromkeys(wrong))


def named(*names: str) -> tuple[Functions, list[str]]:
    """Does the same for single functions, in the environment of this process."""
    answers = _answers("{}", json.dumps(dict.fromkeys(names, REWARD)))
    wrong = [answer for answer in answers.values() if isinstance(answer, str)]
    return {name: one for name, one in answers.items() if not isinstance(one, str)}, wrong


@cache
def _answers(variables: str, questions: str) -> dict[str, Signature | str | None]:
    """Returns each function's signature in one environment, or a line why it cannot be called. After a module that
    ends the process, the remaining ones are queried again."""
    waiting, found = list(json.loads(questions).items()), {}
    while waiting:
        answers, how = _ask(waiting, json.loads(variables))
        for (name, _), answer in zip(waiting, answers, strict=False):
            found[name] = Signature(**answer) if isinstance(answer, dict) else answer
        waiting = waiting[len(answers):]
        if waiting:
            found[waiting[0][0]] = f"'{waiting[0][0]}' cannot be imported: the process that tried {how}."
            waiting = waiting[1:]
    return found


def _ask(questions: list[tuple[str, bool]], variables: dict[str, str]) -> tuple[list, str]:
    """Returns the answers of stages/own_code.py, one for each question, and how the process ended."""
    with tempfile.TemporaryDirectory() as directory:
        asked, answer = Path(directory) / "request.json", Path(directory) / "answer.json"
        files.write_json(asked, questions)
        try:
            done = subprocess.run(launch.command("stages.own_code", str(asked), str(answer)), text=True,
                                  capture_output=True, env=our_environment() | variables, check=False, timeout=WAIT)
            last = done.stderr.strip().splitlines()[-1:]
            how = ": ".join([ending(done.returncode), *last])
        except subprocess.TimeoutExpired:
            how = f"had not ended after {WAIT} s"
        return (files.read_json(answer, kind=list) if answer.exists() else []), how


def of_python(dotted: str) -> bool:
    """Returns whether a module, or that of `module:function`, is in the standard library; not one that shadows it."""
    module = dotted.partition(":")[0]
    source = module_file(module)
    own = source.is_relative_to(STANDARD_LIBRARY) if source else "." not in module  # built-in modules have no file
    return own and module.partition(".")[0] in sys.stdlib_module_names
