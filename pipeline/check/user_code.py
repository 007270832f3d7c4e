"""Signatures of the user's functions, obtained by importing them in a separate process (stages/own_code.py).

`ouro run` does so before it schedules anything, and so does `ouro config check` without --no-data.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from ouroboros.pipeline.job.context import ending, environment, our_environment
from ouroboros.pipeline.job.ending import die_with_parent
from ouroboros.pipeline.job.process_group import ending_orphans
from ouroboros.pipeline.settings import secrets
from ouroboros.pipeline.settings.arguments.answers import tool_arguments
from ouroboros.pipeline.settings.arguments.users import Signature
from ouroboros.pipeline.settings.config import TOOLS, Config, users_code
from ouroboros.pipeline.settings.data import reward_functions, workflow_of
from ouroboros.pipeline.settings.setting import leaves
from ouroboros.pipeline.store import files, launch
from ouroboros.pipeline.store.digests import NEEDED, digest_code, module_file
from ouroboros.pipeline.store.errors import ConfigError, Problem, nearest
from ouroboros.pipeline.store.user_errors import STANDARD_LIBRARY

WAIT = 300  # seconds for importing the named modules
IDLE = 40  # seconds in which an import that goes on reads a file
# what a function is called as
REWARD, TOOL, WORLD, WORKFLOW, STEP, OTHER = "reward", "tool", "environment", "workflow", "algorithm", "other"
Functions = dict[str, Signature | None]  # function path -> its signature; None where Python cannot determine it


def imported(stages: list[Config], known: str = "") -> tuple[Functions, list[str]]:
    """Returns the functions that stages name, and the problems of those left out, one line each.

    stages: their settings. known: the text of known problems; functions quoted there are not imported.
    """
    asked: dict[str, dict[str, str]] = {}
    for settings in stages:
        variables = environment(secrets.reveal(settings.explorer.env_vars))
        explorer = settings.buffer.explorer_input
        rewards = {name for _, one in explorer.places for name in reward_functions(one, explorer)}
        worlds = (tool_arguments(workflow_of(one, explorer, place), one.workflow_args)["environment_class"]
                  for place, one in explorer.places)  # also that of terminal_agent, which no setting names
        code = [*users_code(leaves(settings)), *((TOOLS[1], name) for name in filter(None, worlds))]
        asked.setdefault(json.dumps(variables), {}).update(
            {name: REWARD if name in rewards else TOOL if key.endswith(TOOLS[0]) else WORLD if key.endswith(TOOLS[1])
             else WORKFLOW if key.endswith("workflow_type") else STEP if key.endswith("algorithm_type") else OTHER
             for key, name in code if f"'{name}'" not in known})
    functions, wrong = {}, []
    for variables, questions in asked.items():
        for name, answer in _answers(variables, json.dumps(questions)).items():
            if isinstance(answer, str):
                wrong.append(answer)
            else:
                functions[name] = answer
    return functions, list(dict.fromkeys(wrong))


def tool_notes(config: Config, functions: Functions) -> list[Problem]:
    """Returns warnings about tools of which the model is not told purpose or types."""
    lacking = {name: one.undescribed for name, one in functions.items() if one and one.undescribed}
    return [Problem(key, f"{', '.join(lacking[name][:4])}{', …' * (len(lacking[name]) > 4)}: the model is told nothing "
                    "of it.", "Write a docstring, and types such as `fruit: str`.", found=name)
            for key, name in (users_code(leaves(config)) if lacking else ()) if name in lacking]


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
    answers, how, late = own_code(questions, variables, lambda process, _: _end_of(process))
    return answers or [], late or how


def own_code(question: Any, variables: dict[str, str], wait: Callable[[subprocess.Popen, Path], Any], *options: str
             ) -> tuple[list | None, str, Any]:
    """Returns the answer of stages/own_code.py, None without one, how its process ended, and what `wait` returns, which
    is called with the process and the file of its answer."""
    with tempfile.TemporaryDirectory() as directory:
        asked, answer, log = (Path(directory) / name for name in ("request.json", "answer.json", "log"))
        files.write_json(asked, question)
        with _started([*options, str(asked), str(answer)], log, variables) as process:
            late = wait(process, answer)
        how = ": ".join([ending(process.returncode), *log.read_text(errors="replace").strip().splitlines()[-1:]])
        return files.read_json(answer, kind=list) if answer.exists() else None, how, late


@contextmanager
def _started(words: list[str], log: Path, variables: dict[str, str]) -> Iterator[subprocess.Popen]:
    """The process stages/own_code.py, and its end with all that it has started: those may keep its output open, which
    therefore goes into a file."""
    with open(log, "wb") as output, ending_orphans():
        process = subprocess.Popen(launch.command("ouroboros.stages.own_code", *words), stdin=subprocess.DEVNULL,
                                   stdout=output, stderr=output, start_new_session=True, preexec_fn=die_with_parent,
                                   env=our_environment() | variables)
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _end_of(process: subprocess.Popen) -> str | None:
    """Waits for a process that imports modules; returns None, or why it is not waited for any longer."""
    begin = moved = time.monotonic()
    read = ""
    while process.poll() is None:
        now = time.monotonic()
        if (found := _has_read(process.pid)) != read:
            read, moved = found, now
        if now - begin > WAIT:
            return f"had not ended after {WAIT} s"
        if now - moved > IDLE:
            return f"had not ended after {now - begin:.0f} s, and had read no file for {IDLE} s"
        time.sleep(0.02)
    return None


def _has_read(pid: int) -> str:
    """What the process has read so far, as Linux counts it; an import reads files until it is done."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/io").read_text().partition("\n")[0]
    return ""


def of_python(dotted: str) -> bool:
    """Returns whether a module, or that of `module:function`, is in the standard library; not one that shadows it."""
    module = dotted.partition(":")[0]
    source = module_file(module)
    own = source.is_relative_to(STANDARD_LIBRARY) if source else "." not in module  # built-in modules have no file
    return own and module.partition(".")[0] in sys.stdlib_module_names


def missing_code(config: Config) -> list[Problem]:
    """Lists the user's modules that are named and missing on this machine."""
    return [Problem(key, f"'{name}': no such module.{_nearest_module(name)}", NEEDED)
            for name, key in _code(config).items() if not module_file(name.partition(":")[0]) and not of_python(name)]


def wrong_code(config: Config) -> list[Problem]:
    """Lists the user's modules that cannot be read, or lack the named function."""
    found = []
    for name, key in _code(config).items():
        if of_python(name):
            found.append(Problem(key, f"'{name}' is a function of Python itself; needed one of yours, which may call "
                                 "it."))
        elif module_file(name.partition(":")[0]):
            try:
                digest_code(name)
            except ConfigError as error:
                found.append(Problem(key, str(error)))
    return found


def _code(config: Config) -> dict[str, str]:
    """Maps each user function to the first setting that names it."""
    found: dict[str, str] = {}
    for key, name in users_code(leaves(config)):
        found.setdefault(name, key)
    return found


def _nearest_module(dotted: str) -> str:
    """Says what is in the place of a missing module, or suggests the closest match among the files in and below the
    current directory."""
    name, here = dotted.partition(":")[0], Path.cwd()
    known = {".".join(path.relative_to(here).with_suffix("").parts): path for pattern in ("*.py", "*/*.py")
             for path in here.glob(pattern)}
    if name in known:
        return f" {known[name].relative_to(here)} is there, and is no file."
    return nearest(name, [module for module, path in known.items() if path.is_file()])
