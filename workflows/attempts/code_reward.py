"""code_reward: 1 where the program of a reply passes the tests of its row.

The tests stay outside of the program's process (workflows/environments/inside.py): assertions call it through a pipe
with plain values, inputs and outputs are compared here. Forms of tests: texts of assertions, or of a function `check`
that is given the function `entry_point` (MBPP, HumanEval); pairs of input and output, of a program's standard streams
or of a function's arguments and result (APPS, LiveCodeBench, veRL).
"""

import json
import os
import re
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any

from ouroboros.operators.answers import spoken
from ouroboros.operators.formats import TESTS
from ouroboros.operators.reward import Judgement
from ouroboros.pipeline.settings.arguments.answers import CodeReward
from ouroboros.pipeline.store.errors import ConfigError, DataError
from ouroboros.pipeline.store.files import hash_json
from ouroboros.workflows.environments.inside import ENDED, decoded, encoded
from ouroboros.workflows.environments.programs import Unconfined, cell, peer

KNOWN = 4096  # verdicts that are kept: replies of a group are often equal
DEFAULT, LIMITS = CodeReward(), ("cpu_seconds", "memory_mb", "isolation")
ENTRY, SETUP = ("entry_point", "fn_name", "func_name"), ("test_setup_code", "test_imports")
NEEDED = ("needed assertions, a function check(candidate) with the column entry_point, or JSON such as "
          '{"inputs": ["1 2"], "outputs": ["3"]}')


def require_isolation(how: str) -> None:
    """Raises ConfigError where programs cannot be isolated in this way here."""
    cell(how, CodeReward().memory_mb)


def code_reward(response: str, answer: str, cpu_seconds=DEFAULT.cpu_seconds, memory_mb=DEFAULT.memory_mb,
                tests_score=DEFAULT.tests_score, isolation=DEFAULT.isolation, **columns: Any) -> Judgement:
    """accuracy 1 for a program that passes all tests, else 0; tests: tests_score x the share of those that it passes.

    columns: of the row; its tests are in one of TESTS, else the answer is. The program is the reply's last fenced block
    that defines the function, or its code without fences (`chosen` of inside.py). Notes: how many tests passed, `ended`
    where the program's process did before that, `weak` where the tests had to run in it. Raises DataError for tests
    that cannot be run, TimeoutError beyond ten seconds for each CPU second.
    """
    limits = dict(zip(LIMITS, (cpu_seconds, memory_mb, isolation), strict=True))
    found = _begun(response, answer, columns | limits).result()
    share = found["passed"] / found["total"]
    note = "; ".join([f"{found['passed']} of {found['total']} tests", *found.get("notes", ())])
    return Judgement({"accuracy": float(share == 1), "tests": tests_score * share}, {"accuracy": note})


def _begun(response: str, answer: str, given: dict) -> Future:
    cpu, memory_mb, isolation = (given.get(name, getattr(DEFAULT, name)) for name in LIMITS)
    cell(isolation, memory_mb)  # here, where a refusal is one of the settings
    return PROGRAMS.judged(_tests(answer, given) | {"reply": spoken(response)}, cpu, memory_mb, isolation)


def _begin(response: str, answer: str, **given: Any) -> None:
    """Begins a program, so that those of a step run at the same time."""
    with suppress(DataError):
        _begun(response, answer, given)


code_reward.begin_comparison = _begin  # workflows/attempts/user_reward.py calls it for all responses first
code_reward.counts_opened = True  # a thought that the prompt begins is a thought of the response


class Programs:
    """As many programs at once as there are cores; equal ones are judged once."""

    def __init__(self):
        self._begin()
        os.register_at_fork(after_in_child=self._begin)  # a forked process has none of the threads

    def _begin(self) -> None:
        self._pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)), "programs")
        self.known: dict[str, Future] = {}

    def judged(self, job: dict, *limits: Any) -> Future:
        key = hash_json([job, *limits])
        if (found := self.known.get(key)) is None:
            if len(self.known) >= KNOWN:
                del self.known[next(iter(self.known))]
            found = self.known[key] = self._pool.submit(judged, job, *limits)
            # without a verdict it may have one when it is asked again
            found.add_done_callback(lambda ended: ended.exception() and self.known.pop(key, None))
        return found


PROGRAMS = Programs()


# ----------------------------------------------------------------------------------------------------------- the tests


def _tests(answer: str, columns: Mapping[str, Any]) -> dict:
    """What is judged, but for the reply: `tests`, a text, or `pairs`, with prompt, entry, names and command. Raises
    DataError."""
    given = next((columns[one] for one in TESTS if columns.get(one)), answer)
    if isinstance(given, str):
        with suppress(ValueError, RecursionError):
            given = json.loads(given)
    about = columns | _mapping(columns.get("metadata")) | (given if isinstance(given, dict) else {})
    entry = next((about[one] for one in ENTRY if about.get(one)), "")
    prompt = columns.get("prompt")
    begins = isinstance(prompt, str) and entry and re.search(rf"def +{re.escape(entry)}\b", prompt)
    tests = {"entry": entry, "command": columns.get("command"), "prompt": prompt if begins else ""}
    if isinstance(given, dict) and "inputs" in given and "outputs" in given:
        given = [{"input": one, "output": out} for one, out in zip(given["inputs"], given["outputs"], strict=False)]
    several = given if isinstance(given, list) else []
    if several and all(isinstance(one, dict) and {"input", "output"} <= {*one} for one in several):
        return tests | {"pairs": [[one["input"], one["output"]] for one in several], "names": [entry] * bool(entry)}
    if several and all(isinstance(one, str) for one in several):
        given = "\n".join(several)
    if not isinstance(given, str) or not given.strip():
        raise DataError(f"tests {str(given)[:80]!r} are of no known form; {NEEDED}")
    setup = [one for name in SETUP for one in ([columns[name]] if isinstance(columns.get(name), str)
                                               else columns.get(name) or ())]
    names = [entry] if entry else list(dict.fromkeys(re.findall(r"\b([A-Za-z_]\w*)\(", given)))
    return tests | {"tests": "\n".join([*setup, given]), "names": names}


def _mapping(value: Any) -> dict:
    """Returns a mapping, or that in a text of JSON; empty for anything else, which a program's process may say."""
    with suppress(ValueError, TypeError, RecursionError):
        found = value if isinstance(value, dict) else json.loads(value)
        return found if isinstance(found, dict) else {}
    return {}


# -------------------------------------------------------------------------------------------------------- the verdict


def judged(job: dict, cpu: int, memory_mb: int, isolation: str) -> dict:
    """Returns how many tests passed of how many, and notes. Raises DataError, TimeoutError, StageError."""
    if job["command"] and isolation != "none" and isinstance(cell(isolation, memory_mb), Unconfined):
        raise ConfigError("a row names a command, which needs bubblewrap and user namespaces.")
    limits = (cpu, memory_mb, isolation)
    return _by_pairs(job, limits) if "pairs" in job else _by_assertions(job, limits)


def _by_assertions(job: dict, limits: tuple) -> dict:
    cpu, *more = limits
    program, tests = peer("calls", job | {"tests": None}, *limits), peer("tests", job | {"reply": None}, 4 * cpu, *more)
    with program as program, tests as tests:
        notes, line = [], tests.ask(b"\n")
        while line.startswith(b'{"call"'):
            if not (answer := program.ask(line)):
                notes, answer = ["ended"], ENDED
            line = tests.ask(answer)
        found = json.loads(line or '{"problem": "their process ended"}')
        if "weak" in found:
            said = _mapping(program.ask(_line({name: job[name] for name in ("tests", "prompt", "entry")})))
            passed, total = (said[one] if type(said.get(one)) is int else 0 for one in ("passed", "total"))
            is_one = 0 <= passed <= total > 0
            found, notes = {"passed": passed if is_one else 0, "total": total if is_one else 1}, ["weak"]
    if "problem" in found:
        raise DataError(f"the tests of a row cannot be run: {found['problem']}; {NEEDED}")
    return found | {"notes": notes}


def _by_pairs(job: dict, limits: tuple) -> dict:
    passed, notes, name = 0, [], job["entry"]
    with peer("calls" if name else "inputs", job | {"pairs": None}, *limits) as program:
        for given, wanted in job["pairs"]:
            asked = {"call": [name, encoded(_arguments(given)), {"dict": []}]} if name else {"input": _text(given)}
            if not (answer := program.ask(_line(asked))):
                notes = ["ended"]
                break
            said = _mapping(answer)
            passed += _returned(said, wanted, isinstance(given, str)) if name else (
                said.get("code") == 0 and prints(str(said.get("printed")), _text(wanted)))
    return {"passed": passed, "total": len(job["pairs"]), "notes": notes}


def _line(message: dict) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _arguments(given: Any) -> list:
    """Of a list; of a text one in each line, as LiveCodeBench has them."""
    if isinstance(given, str):
        return [json.loads(line) for line in given.splitlines() if line.strip()]
    return given if isinstance(given, list) else [given]


def _returned(said: dict, wanted: Any, is_text: bool) -> bool:
    """Whether a function returned what is wanted; APPS has it as the only one of a list. Tuples count as lists."""
    with suppress(Exception):
        found, wanted = json.loads(json.dumps(decoded(said["value"]))), json.loads(wanted) if is_text else wanted
        return found == wanted or (isinstance(wanted, list) and len(wanted) == 1 and found == wanted[0])
    return False


def prints(found: str, wanted: str) -> bool:
    """Whether two outputs agree line by line: as texts without blanks at their ends, or as numbers."""
    left, right = ([line.strip() for line in text.strip().splitlines()] for text in (found, wanted))
    return len(left) == len(right) and all(map(_agree, left, right))


def _agree(line: str, wanted: str) -> bool:
    with suppress(InvalidOperation):  # no number, or one that signals
        return line == wanted or [*map(Decimal, line.split())] == [*map(Decimal, wanted.split())]
    return False
