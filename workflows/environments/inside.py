"""What runs in a sandbox: the program of a reply, or the tests that judge it, each in a process of its own.

Lines of JSON go in and come out (workflows/environments/programs.py). The program answers calls with plain values, and
inputs with what it prints; it is never sent what is expected of it. The tests call it through `Remote`; only what they
pass that is no plain value makes them run with the program. Imports the standard library and confinement.py alone.
"""

import ast
import builtins
import contextlib
import json
import os
import random
import re
import resource
import site
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import IO, Any

from ouroboros.workflows.environments.confinement import confine

LARGEST = 1 << 22  # bytes of an answer
READY, ENDED = b"ready\n", b"ended\n"
FENCE = re.compile(r"^ *(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^\n]*\n(.*?)(?:^ *\1|\Z)", re.MULTILINE | re.DOTALL)
BEGINS = re.compile(r"(?:def|class|import|from|async def|if __name__)\b|@|\w+ *=")
SEVERAL = {kind.__name__: kind for kind in (list, tuple, set, frozenset)}


class Weak(BaseException):
    """The tests hand the program something that is no plain value."""


class Gone(BaseException):
    """The other process ended."""


def encoded(value: Any) -> Any:
    """Returns a plain value as JSON that keeps its type; those derived from plain types count as these. Raises
    TypeError."""
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if value is None:
        return None
    for name, kind in SEVERAL.items():
        if isinstance(value, kind):
            return {name: [encoded(one) for one in kind.__iter__(value)]}
    if isinstance(value, dict):
        return {"dict": [[encoded(key), encoded(one)] for key, one in dict.items(value)]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": bytes(value).decode("latin1")}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, Iterator):
        return {"iterator": [encoded(one) for one in value]}
    raise TypeError(f"{type(value).__name__} is no plain value")


def decoded(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    [(kind, content)] = value.items()
    if kind == "dict":
        return {decoded(key): decoded(one) for key, one in content}
    if kind in ("bytes", "complex"):
        return content.encode("latin1") if kind == "bytes" else complex(*content)
    several = map(decoded, content)
    return iter(list(several)) if kind == "iterator" else SEVERAL[kind](several)


# ---------------------------------------------------------------------------------------------------- the program


def chosen(reply: str, prompt: str, names: list[str]) -> str:
    """Returns the program in a reply: its last fenced block that defines one of the names, with those before it, else
    its last block; without blocks its code between prose. An indented text goes on from the prompt."""
    raw = [code for _, language, code in FENCE.findall(reply) if language.lower() in ("", "python", "python3", "py")]
    blocks = [textwrap.dedent(code) for code in raw]
    defines = re.compile(rf"\b(?:def|class) +(?:{'|'.join(names)})\b")
    if names and (has := [at for at, block in enumerate(blocks) if defines.search(block)]):
        return "\n".join([*filter(_parses, blocks[:has[-1]]), blocks[has[-1]]])
    text = (raw or [reply])[-1]
    if prompt and re.match(r"\s*\n[ \t]+\S|[ \t]+\S", text):
        return _longest(prompt + text)
    if blocks or _parses(reply):
        return (blocks or [reply])[-1]
    lines = reply.splitlines()
    found = (_longest("\n".join(lines[at:])) for at, line in enumerate(lines) if BEGINS.match(line))
    return max(found, key=len, default="")


def _parses(text: str) -> bool:
    try:
        return bool(ast.parse(text).body)
    except (SyntaxError, ValueError):
        return False


def _longest(text: str) -> str:
    """Returns the most lines from the first on that are Python; empty where none are."""
    lines = text.splitlines()
    for _ in range(200):
        try:
            ast.parse("\n".join(lines))
            return "\n".join(lines)
        except SyntaxError as error:
            lines = lines[:max(min((error.lineno or 1), len(lines)) - 1, 0)]
        except ValueError:
            break
    return ""


class Program:
    """The module of a reply; the first call loads it."""

    def __init__(self, about: dict):
        self._about, self._module = about, None

    def load(self, name: str) -> None:
        """Runs the module. Raises what it raises; what it defined until then is there."""
        about, self._module = self._about, ModuleType(name)
        sys.modules[name] = self._module
        prompt, space = about["prompt"], self._module.__dict__
        if _parses(prompt):  # imports, helpers, and the function without its body
            exec(compile(prompt, "prompt", "exec"), space)
            space.pop(*about["names"], None)
        exec(compile(chosen(about["reply"], prompt, about["names"]), "program", "exec"), space)

    def named(self, name: str) -> Any:
        if self._module is None:
            with contextlib.suppress(BaseException):  # it may have read an input, or have ended, behind its functions
                self.load("program")
        solution = getattr(self._module, "Solution", None)  # as LeetCode asks for it
        return getattr(solution() if hasattr(solution, name) else self._module, name)

    def answer(self, asked: dict) -> dict:
        """Returns what a call gives, with the arguments where it changed them; or the exception."""
        try:
            if "tests" in asked:
                return verdict(asked, self.named, is_inside=True)
            given, named = decoded(asked["call"][1]), decoded(asked["call"][2])
            found = {"value": encoded(self.named(asked["call"][0])(*given, **named))}
            after = encoded(given)
            return found if after == asked["call"][1] else {**found, "after": after}
        except BaseException as error:  # of the reply's code
            return {"raised": type(error).__name__, "text": str(error)[:1000]}


def calls(requests: IO[str], replies: IO[str], about: dict, limits: dict) -> None:
    """Answers calls of a program in this process."""
    nothing, program = os.open(os.devnull, os.O_RDWR), Program(about)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    confine(**limits)
    print("ready", file=replies, flush=True)
    for line in requests:
        print(json.dumps(program.answer(json.loads(line))), file=replies, flush=True)


def inputs(requests: IO[str], replies: IO[str], about: dict, limits: dict) -> None:
    """Runs a program once for each input, in a child."""
    print("ready", file=replies, flush=True)
    for line in requests:
        given, printed = (os.memfd_create(name, 0) for name in ("in", "out"))
        with open(given, "w", closefd=False) as file:
            file.write(json.loads(line)["input"])
        os.lseek(given, 0, os.SEEK_SET)
        if not (child := os.fork()):
            os.dup2(given, 0)
            os.dup2(printed, 1)
            os.dup2(os.open(os.devnull, os.O_RDWR), 2)
            os.closerange(3, 64)
            resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST, LARGEST))
            _run(about, limits)
        _, status, used = os.wait4(child, 0)
        text = os.pread(printed, LARGEST, 0).decode(errors="replace")
        is_late = used.ru_utime + used.ru_stime > limits["cpu"]  # of all processes of a command
        print(json.dumps({"printed": text, "code": -1 if is_late else os.waitstatus_to_exitcode(status)}),
              file=replies, flush=True)
        os.close(given)
        os.close(printed)


def _run(about: dict, limits: dict) -> None:
    """The child: ends with the exit code of the program."""
    if about["command"]:
        with open("/tmp/program", "w") as file:
            file.write(([code for _, _, code in FENCE.findall(about["reply"])] or [about["reply"]])[-1])
        resource.setrlimit(resource.RLIMIT_CPU, (limits["cpu"],) * 2)
        os.execvp("sh", ["sh", "-c", about["command"], "sh", "/tmp/program"])
    code = 1
    try:
        confine(**limits)
        sys.stdin, sys.stdout, sys.stderr = map(os.fdopen, range(3), "rww")
        Program(about).load("__main__")
        threading._shutdown()  # a program may leave it to Python to wait for its threads
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    finally:
        sys.stdout.flush()
        os._exit(code & 255)


# ------------------------------------------------------------------------------------------------------- the tests


class Assertions(ast.NodeTransformer):
    """Every assertion goes on to the next, and is counted; those in a `try` are left to it."""

    WITH = ast.parse("with __assertion__:\n  pass").body[0]

    def visit_Try(self, node: ast.Try) -> ast.Try:
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.With:
        return ast.copy_location(ast.With(self.WITH.items, [node]), node)


class Count:
    """How many assertions there were, and how many of them held."""

    passed = total = called = 0

    def __enter__(self) -> None:
        self.total += 1

    def __exit__(self, kind: type | None, *error: Any) -> bool:
        self.passed += kind is None
        return kind is not None and issubclass(kind, Exception) and not issubclass(kind, ImportError)


def verdict(about: dict, lookup: Callable[[str], Any], is_inside: bool = False) -> dict:
    """Runs tests. about: `tests` and `prompt`, texts of Python, and `entry`, the name of the function that a `check` of
    the tests is given. lookup: the function of the program that has a name. is_inside: in the program's process.

    Returns how many assertions held of how many, or a `problem` of the tests. Raises Weak where they must be inside.
    """
    count, space, entry = Count(), {"__name__": "tests"}, about["entry"]
    try:
        tree = ast.parse(about["tests"])
        if _parses(about["prompt"]):  # helpers that tests use
            exec(compile(about["prompt"], "prompt", "exec"), space)
        names, weak = called(tree, set(space) - {entry})
    except Exception as error:
        return {"problem": f"{type(error).__name__}: {error}"}
    if weak and not is_inside:
        raise Weak(weak)

    def program(name: str) -> Callable:
        def call(*given, **named):
            count.called += 1
            return lookup(name)(*given, **named)
        return call

    random.seed(0)
    count.called = int(is_inside)
    try:
        with count:
            space |= {name: (lookup if is_inside else program)(name) for name in dict.fromkeys([*names, entry]) if name}
            space["__assertion__"] = count
            exec(compile(ast.fix_missing_locations(Assertions().visit(tree)), "tests", "exec"), space)
            if entry and callable(space.get("check")) and (is_inside or not count.called):
                space["check"](space[entry])
            count.total -= 1  # where it came so far, assertions alone count
            count.passed -= 1
    except ImportError as error:
        return {"problem": str(error)}
    except Gone:
        pass
    if not count.called:
        return {"problem": "they never call the program"}
    return {"passed": count.passed if count.total else 1, "total": count.total or 1}


def called(tree: ast.Module, known: set[str]) -> tuple[list[str], str]:
    """Returns the names in tests that only the program can have, and the one that is more to them than a function which
    they call: a class whose objects they use, or a value; empty for none."""
    nodes = list(ast.walk(tree))
    stored = {one.id for one in nodes if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load)} | known
    stored |= {one.name for one in nodes if isinstance(one, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef))}
    stored |= {one.arg for one in nodes if isinstance(one, ast.arg)} | set(dir(builtins))
    stored |= {(one.asname or one.name).partition(".")[0] for one in nodes if isinstance(one, ast.alias)}
    stored |= {one.name for one in nodes if isinstance(one, ast.ExceptHandler) and one.name}
    free = [one for one in nodes if isinstance(one, ast.Name) and one.id not in stored]
    plain = {id(each) for one in nodes if isinstance(one, ast.Call)
             for each in (one.func, *one.args, *(word.value for word in one.keywords))}
    made = {id(one.value.func) for one in nodes
            if isinstance(one, (ast.Attribute, ast.Assign)) and isinstance(one.value, ast.Call)}
    weak = [one.id for one in free if id(one) not in plain or (id(one) in made and one.id[0].isupper())]
    return list(dict.fromkeys(one.id for one in free)), (weak or [""])[0]


def tests(requests: IO[str], replies: IO[str], about: dict, limits: dict) -> None:
    """Runs tests here, whose calls go to the process of the program."""
    def remote(name: str) -> Callable:
        def call(*given, **named):
            try:
                sent = [name, encoded(list(given)), encoded(named)]
            except TypeError as error:
                raise Weak(str(error)) from error
            print(json.dumps({"call": sent}), file=replies, flush=True)
            if (line := requests.readline()).encode() == ENDED:
                raise Gone
            return _result(json.loads(line), given)
        return call

    confine(**limits)
    print("ready", file=replies, flush=True)
    requests.readline()  # begin
    try:
        found = verdict(about, remote)
    except Weak as error:
        found = {"weak": str(error)}
    print(json.dumps(found), file=replies, flush=True)


def _result(answer: dict, given: tuple) -> Any:
    """Returns what a call gave, with lists, dicts and sets of its arguments as the program left them; or raises."""
    if "raised" in answer:
        kind = getattr(builtins, answer["raised"], Exception)
        is_one = isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, ImportError)
        raise (kind if is_one and not issubclass(kind, UnicodeError) else Exception)(answer["text"])
    for before, after in zip(given, decoded(answer["after"]) if "after" in answer else (), strict=False):
        if type(before) is type(after) and isinstance(before, (list, dict, set)):
            before.clear()
            (before.extend if isinstance(before, list) else before.update)(after)
    return decoded(answer["value"])


ROLES = {"calls": calls, "inputs": inputs, "tests": tests}


def main(role: str, limits: str) -> None:
    site.setquit()
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    ROLES[role](requests, replies, json.loads(requests.readline()), json.loads(limits))
    os._exit(0)
