"""Whether the functions that a user names can be called at all: told from their source, and by importing them once.

The source is read where every check is made; the import runs the user's modules, in a process of its own, before `ouro
run` schedules anything (stages/own_code.py).
"""

import ast
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.check import signatures, syntax
from pipeline.check.reward_rules import reward_functions
from pipeline.check.sources import tasksets
from pipeline.job.context import ending, environment, namespace, our_environment
from pipeline.settings import secrets
from pipeline.store import files
from pipeline.store.digests import module_file, users_code
from pipeline.store.errors import ConfigError
from pipeline.store.project_imports import INSTALLED, base_of, taken_in
from pipeline.store.user_errors import STANDARD_LIBRARY

REWARD = "default_reward_fn_type"
WAIT = 300  # seconds that importing the named modules may take


def wrong_function(dotted: str, is_reward: bool = False) -> str | None:
    """The line for a name that its module gives to a literal, or, unless it is a reward, to an `async def`."""
    module, _, name = dotted.partition(":")
    source = syntax.source_of(module)
    if source is None:
        return None
    found = syntax.function(source, name)
    if found and isinstance(found[1], ast.AsyncFunctionDef) and not is_reward:
        return f"'{dotted}' is an `async def`, and nobody awaits it; needed a plain function."
    bound = [node.value for node in syntax.parse(source).body if isinstance(node, ast.Assign | ast.AnnAssign)
             and any(isinstance(target, ast.Name) and target.id == name for target in _targets(node))]
    if found or not bound or not isinstance(bound[-1], LITERALS):
        return None
    return f"'{dotted}' is {ast.unparse(bound[-1])[:40]}; needed a function."


def of_python(dotted: str) -> bool:
    """Whether a module, or that of `module:function`, is Python's own; one of the same name elsewhere is not."""
    module = dotted.partition(":")[0]
    source = module_file(module)
    own = source.is_relative_to(STANDARD_LIBRARY) if source else "." not in module  # built in: without a file
    return own and module.partition(".")[0] in sys.stdlib_module_names


def by_position(part: str, dotted: str) -> list[str]:
    """The line for parameters that take no name, in a function that is called by the names of columns."""
    module, _, name = dotted.partition(":")
    source = syntax.source_of(module)
    found = syntax.function(source, name) if source else None
    names = [one.arg for one in found[1].args.posonlyargs] if found else []
    if part == "advantage_fn" or not names:
        return []
    return [f"algorithm.{part}={dotted} takes {', '.join(names)} by position alone, and a column is handed over by its "
            "name. Take the '/' out."]


def positional(dotted: str) -> tuple[list[str], bool] | None:
    """The parameters of a function that are given by position, and whether it has *others; None where its source does
    not say: it cannot be read, or a decorator may have changed them."""
    module, _, name = dotted.partition(":")
    source = syntax.source_of(module)
    found = syntax.function(source, name) if source else None
    if found is None or found[1].decorator_list:
        return None
    arguments = found[1].args
    return [one.arg for one in (*arguments.posonlyargs, *arguments.args)], arguments.vararg is not None


def absent_packages(dotted: str) -> list[str]:
    """A line for each package that is not installed here and that a module imports as soon as it is imported itself.

    What modules of the same project import is followed. Of an installed module nothing is said.
    """
    first = dotted.partition(":")[0]
    source = module_file(first)
    if source is None or source.suffix != ".py" or set(source.parts) & {*INSTALLED}:
        return []
    try:
        project = taken_in(source, first)
    except ConfigError:  # a file that is no Python: told where the code is read
        return []
    waiting, seen = [".".join(first.split(".")[:size + 1]) for size in range(first.count(".") + 1)], set()
    problems = []
    while waiting:
        module = waiting.pop()
        path = project.get(module)
        imported = _imports(path, module) if path and module not in seen and path.suffix == ".py" else []
        seen.add(module)
        waiting += [name for _, name in imported]
        problems += [f"'{dotted}' cannot be imported: {path}, line {line}, imports {name}, and no "
                     f"{name.partition('.')[0]} is installed here." for line, name in imported
                     if name not in project and not _is_there(name.partition(".")[0])]
    return list(dict.fromkeys(problems))


def _imports(path: Path, module: str) -> list[tuple[int, str]]:
    """(line, dotted name) of what a file imports at its head, up to a statement that may change what is found."""
    found: list[tuple[int, str]] = []
    for node in syntax.parse(path).body:
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = base_of(node, path, module)
            found += [(node.lineno, name) for name in (base, *(f"{base}.{alias.name}" for alias in node.names)) if base]
        elif not isinstance(node, HARMLESS) and not (isinstance(node, ast.Expr) and isinstance(node.value, LITERALS)):
            break
    return found


def _is_there(name: str) -> bool:
    here = Path.cwd()
    return any(here.glob(name)) or any(here.glob(f"{name}.*")) or importlib.util.find_spec(name) is not None


def _targets(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


LITERALS = (ast.Constant, ast.JoinedStr, ast.List, ast.Dict, ast.Tuple, ast.Set)
HARMLESS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)  # behind them an import finds what it found before


# ---------------------------------------------------------------------------------------------------------- by import


def import_problems(stages: list[dict[str, Any]], parts: list[str], told: str = "") -> list[str]:
    """What is wrong with the functions that stages name when they are imported, one line each.

    stages: their settings. parts: settings of the section `algorithm` that name a function. told: what is known to
    be wrong; functions in quotes there are not imported.
    """
    asked: dict[str, list[dict]] = {}
    for settings in stages:
        variables = secrets.reveal({"explorer": {"env_vars": settings["explorer"]["env_vars"]}})
        asked.setdefault(json.dumps(environment(namespace(variables))), []).extend(
            question for question in _questions(settings, parts) if f"'{question['name']}'" not in told)
    return list(dict.fromkeys(line for variables, questions in asked.items()
                              for line in _answers(variables, json.dumps(questions))))


def _questions(settings: dict[str, Any], parts: list[str]) -> Iterator[dict]:
    """{name, part, algorithm} of each function; part null where its parameters are not to be judged."""
    algorithm = {key: value for key, value in settings["algorithm"].items() if key in (
        *parts, "algorithm_type", "sample_strategy")}
    explorer = settings["buffer"]["explorer_input"]
    rewards = [name for _, one in tasksets(settings) for name in reward_functions(one, explorer)]
    named = dict.fromkeys(rewards, REWARD) | {algorithm[part]: part for part in parts if ":" in (algorithm[part] or "")}
    for name in dict.fromkeys(users_code(settings)):
        read = positional if named.get(name) == REWARD else signatures.dotted
        unread = name in named and not _says(read, name)
        yield {"name": name, "part": named[name] if unread else None, "algorithm": algorithm}


def _says(read: Callable[[str], Any], name: str) -> bool:
    """Whether the source of a function can be read for what it takes."""
    try:
        return read(name) is not None
    except SyntaxError:  # told where the code is read
        return False


@cache
def _answers(variables: str, questions: str) -> list[str]:
    """The lines for one environment. A module that ends the process is told, and those behind it are asked again."""
    waiting, found = json.loads(questions), []
    while waiting:
        answers, how = _ask(waiting, json.loads(variables))
        found += [line for answer in answers for line in answer]
        waiting = waiting[len(answers):]
        if waiting:
            found.append(f"'{waiting[0]['name']}' cannot be imported: the process that tried {how}.")
            waiting = waiting[1:]
    return found


def _ask(questions: list[dict], variables: dict[str, str]) -> tuple[list[list[str]], str]:
    """The answers that stages/own_code.py gave, a list of lines for each question, and how it ended."""
    with tempfile.TemporaryDirectory() as directory:
        asked, answer = Path(directory) / "request.json", Path(directory) / "answer.json"
        files.write_json(asked, questions)
        try:
            done = subprocess.run([sys.executable, "-m", "stages.own_code", str(asked), str(answer)], text=True,
                                  capture_output=True, env=our_environment() | variables, check=False, timeout=WAIT)
            last = done.stderr.strip().splitlines()[-1:]
            how = ": ".join([ending(done.returncode), *last])
        except subprocess.TimeoutExpired:
            how = f"had not ended after {WAIT} s"
        return (files.read_json(answer) if answer.exists() else []), how
