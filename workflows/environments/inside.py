"""What runs in a sandbox: the program of a reply, or the tests that judge it, each in its own process.

Lines of JSON go in and come out (workflows/environments/programs.py). The program answers calls with plain values, and
inputs with what it prints; it is never sent what is expected of it, unless its tests are weak (assertions.py). Imports
the standard library, assertions.py and confinement.py alone.
"""

import ast
import atexit
import builtins
import contextlib
import json
import os
import re
import resource
import signal
import site
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import IO, Any

from ouroboros.workflows.environments.assertions import Gone, Weak, parses, verdict
from ouroboros.workflows.environments.confinement import LIBC, confine

LARGEST = 1 << 22  # bytes of an answer
READY, ENDED = b"ready\n", b"ended\n"
FENCE = re.compile(r"^ *(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^\n]*\n(.*?)(?:^ *\1|\Z)", re.MULTILINE | re.DOTALL)
BEGINS = re.compile(r"(?:def|class|import|from|async def|if __name__)\b|@|\w+ *=")
SEVERAL = {kind.__name__: kind for kind in (list, tuple, set, frozenset, bytes, bytearray, dict)}


def encoded(value: Any) -> Any:
    """Returns a plain value as JSON that keeps its type; those derived from plain types count as these, others of
    which there are several as iterators. Raises TypeError."""
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if value is None:
        return None
    for name, kind in SEVERAL.items():
        if isinstance(value, kind):
            return {name: [encoded(one) for one in (dict.items(value) if kind is dict else kind.__iter__(value))]}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, Iterable):
        return {"iterator": [encoded(one) for one in value]}
    raise TypeError(f"{type(value).__name__} is no plain value")


def decoded(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    [(kind, content)] = value.items()
    if kind == "complex":
        return complex(*content)
    several = [decoded(one) for one in content]
    return iter(several) if kind == "iterator" else SEVERAL[kind](several)


# ---------------------------------------------------------------------------------------------------- the program


def chosen(reply: str, prompt: str, names: list[str]) -> str:
    """Returns the program in a reply: its last fenced block that defines one of the names, with those before it, else
    its last block; without blocks its code between prose. An indented text goes on from the prompt."""
    raw = [code for _, language, code in FENCE.findall(reply) if language.lower() in ("", "python", "python3", "py")]
    blocks = [textwrap.dedent(code) for code in raw]
    defines = re.compile(rf"\b(?:def|class) +(?:{'|'.join(map(re.escape, names))})\b")
    if names and (has := [at for at, block in enumerate(blocks) if defines.search(block)]):
        return "\n".join([*filter(parses, blocks[:has[-1]]), blocks[has[-1]]])
    text = (raw or [reply])[-1]
    if prompt and re.match(r"\s*\n[ \t]+\S|[ \t]+\S", text):
        return _longest(prompt + text)
    if blocks or parses(reply):
        return (blocks or [reply])[-1]
    lines = reply.splitlines()
    found = (_longest("\n".join(lines[at:])) for at, line in enumerate(lines) if BEGINS.match(line))
    return max(found, key=len, default="")


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
        if parses(prompt):  # imports, helpers, and the function without its body
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
    program = Program(about)
    for line in requests:
        print(json.dumps(program.answer(json.loads(line))), file=replies, flush=True)


def inputs(requests: IO[str], replies: IO[str], about: dict, limits: dict) -> None:
    """Runs a program once for each input, in a child."""
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
        threading._shutdown()  # programs leave it to Python to wait for their threads, and to call these
        atexit._run_exitfuncs()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(code & 255)


# ------------------------------------------------------------------------------------------------------- the tests


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
    LIBC.prctl(1, signal.SIGKILL, 0, 0, 0)  # ends with its parent
    site.setquit()
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    about, rights = json.loads(requests.readline()), json.loads(limits)
    if role != "inputs":  # whose children are confined
        confine(**rights)
    print("ready", file=replies, flush=True)
    ROLES[role](requests, replies, about, rights)
    os._exit(0)
