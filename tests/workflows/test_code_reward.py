"""code_reward: forms of tests and of replies, hostile programs, limits. Nothing here is skipped where nothing isolates:
`make test-code` (tests/code) has all of HumanEval."""

import json
import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from ouroboros.pipeline.store.errors import ConfigError, DataError
from ouroboros.workflows.attempts import code_reward as judge
from ouroboros.workflows.attempts.code_reward import code_reward
from ouroboros.workflows.attempts.user_reward import Rule
from ouroboros.workflows.environments import confinement, programs
from tests.golden.messages import refuses

WALLS = ("namespaces", "landlock")
ADD = "def add(a, b):\n    return a + b\n"
ASSERTS = ["assert add(1, 2) == 3", "assert add(-1, 1) == 0", "assert add('a', 'b') == 'ab'"]
PROMPT = ('from typing import List\n\ndef total(xs: List[int]) -> int:\n'
          '    """Adds up.\n    >>> total([1, 2])\n    3\n    """\n')
CHECK = {"prompt": PROMPT, "entry_point": "total",
         "test": "def check(candidate):\n    assert candidate([1, 2]) == 3\n    for n in range(3):\n"
                 "        assert candidate([n] * 2) == 2 * n\n    assert candidate([]) == 0\n"}
BODY = "    return sum(xs)\n"
SUMS = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3", "7\n"]}


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Other tests may run at the same time."""
    monkeypatch.setattr(programs, "WALL", 60)


def accuracy(reply, answer="", **given):
    return code_reward(reply, answer, **given)["accuracy"]


# --------------------------------------------------------------------------------------------------- forms of replies


FORMS = {
    "completion": lambda prompt, body: body,
    "fenced": lambda prompt, body: f"```python\n{prompt}{body}```",
    "with prose": lambda prompt, body: f"Sure! Here is a solution:\n\n```\n{prompt}{body}```\n\nIt loops once.",
    "prose without fences": lambda prompt, body: f"Here it is.\n\n{prompt}{body}\n\nI hope that helps you!",
    "body fenced": lambda prompt, body: f"```python\n{body}```",
    "main": lambda prompt, body: f"```python\n{prompt}{body}\nif __name__ == '__main__':\n    print(input())\n```",
    "helpers before": lambda prompt, body: f"```py\ndef one(): pass\n```\nand\n```py\none()\n{prompt}{body}```",
    "prints": lambda prompt, body: f"print('{{\"passed\": 0}}')\n{prompt}{body}\nprint('done')\n",
    "reads stdin": lambda prompt, body: f"{prompt}{body}\nn = int(input())\n",
    "recursion depth": lambda prompt, body: f"import sys\nsys.setrecursionlimit(10 ** 6)\n{prompt}{body}",
    "thoughts": lambda prompt, body: f"<think>```python\ndef f(): pass\n```</think>\n```python\n{prompt}{body}```",
}


@pytest.mark.parametrize("reply", [
    *(form(PROMPT, BODY) for form in FORMS.values()), PROMPT + BODY,
    f"Sure! This adds them.\n\ndef total(xs: List[int]) -> int:\n{BODY}\nI hope this helps.",
    "<think>def total(xs): return 0</think>```py\ndef helper(xs):\n    return sum(xs)\n```\nand\n```py\n"
    "def total(xs):\n    return helper(xs)\n```\nUse it:\n```py\nprint(total([1]))\n```",
    f"import sys\nsys.setrecursionlimit(10**6)\n{PROMPT}    return xs[0] + total(xs[1:]) if xs else 0\n",
    f"```python\n{PROMPT}{BODY}",  # cut off behind the code
    f"{BODY}\n\ndef total_of_all(xss):\n    return [total(xs) for xs in xss",  # goes on beyond the function
    "class Solution:\n    def total(self, xs):\n        return sum(xs)",
], ids=range(18))
def test_a_right_program_counts_in_whichever_form_it_comes(reply):
    assert accuracy(reply, **CHECK) == 1


@pytest.mark.parametrize("reply", ["", "I do not know.", "def total(xs):\n    return sum(xs) + 1", PROMPT,
                                   "```python\ndef other(xs):\n    return sum(xs)\n```", "def total(xs:\n  return"])
def test_what_is_no_right_program_is_0(reply):
    assert accuracy(reply, **CHECK) == 0


# ----------------------------------------------------------------------------------------------------- forms of tests


def test_components_and_notes_tell_the_share_of_tests():
    wrong = "def add(a, b):\n    return a + b if a != 1 else 0\n"
    found = code_reward(wrong, json.dumps(ASSERTS), tests_score=0.3)
    assert found == {"accuracy": 0.0, "tests": pytest.approx(0.2)}
    assert found.notes["accuracy"] == "2 of 3 tests"
    assert code_reward(ADD, json.dumps(ASSERTS)) == {"accuracy": 1.0, "tests": 0.0}
    assert code_reward("def total(xs):\n    return 3", "", **CHECK).notes["accuracy"] == "1 of 5 tests"


@pytest.mark.parametrize("given", [
    {"answer": "\n".join(ASSERTS)}, {"test_list": ASSERTS}, {"test_list": ["assert sqrt(add(2, 2)) == 2"],
                                                               "test_imports": ["from math import sqrt"]},
    {"answer": json.dumps({"fn_name": "add", "inputs": [[1, 2], [[1], [2]]], "outputs": [[3], [[1, 2]]]})},
    {"answer": json.dumps([{"input": "1\n2", "output": "3", "testtype": "functional"}]),
     "metadata": '{"func_name": "add"}'}])
def test_assertions_and_calls_with_results(given):
    assert accuracy(ADD, **given) == 1
    assert accuracy(ADD.replace("+", "-"), **given) == 0


@pytest.mark.parametrize(("program", "result"), [
    ("a, b = map(int, input().split())\nprint(a + b)", 1), ("print(3)", 0), ("raise SystemExit(1)", 0),
    ("import sys\nprint(sum(map(int, sys.stdin.read().split())))\nsys.exit(0)", 1),
    ("import sys\nprint(sum(map(int, open(0))))", 0), ("print(sum(map(float, input().split())), end='  \\n\\n')", 1),
    ("import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(2**26)\n"
     "def main():\n    print(sum(map(int, input().split())))\nthreading.Thread(target=main).start()", 1),
    ("if __name__ == '__main__':\n    print(sum(map(int, input().split())))", 1),
    ("print(sum(map(int, input().split())))\n1 / 0", 0)])
def test_inputs_and_outputs(program, result):
    assert accuracy(program, json.dumps(SUMS)) == result
    assert accuracy(f"```python\n{program}\n```", json.dumps([dict(zip(("input", "output"), one, strict=True))
                                                               for one in zip(*SUMS.values(), strict=True)])) == result


def test_any_command_of_the_row():
    assert accuracy("```sh\nread a b; echo $((a + b))\n```", json.dumps(SUMS), command='bash "$1"') == 1
    assert accuracy("```sh\nread a b; echo $((a - b))\n```", json.dumps(SUMS), command='bash "$1"') == 0
    with pytest.raises(ConfigError):
        accuracy("true", json.dumps(SUMS), command='bash "$1"', isolation="landlock")


def test_columns_of_the_record_reach_it():
    row = {name: CHECK[name] for name in ("prompt", "entry_point", "test")}
    rule, turn = Rule(code_reward, {"tests_score": 0.5}, retries=0), [{"role": "user", "content": PROMPT}]
    assert rule([turn] * 2, [BODY, "    return 3\n"], ["", ""], [None] * 2, columns=[row] * 2) == [
        {"accuracy": 1.0, "tests": 0.5}, {"accuracy": 0.0, "tests": pytest.approx(0.1)}]


@pytest.mark.parametrize(("value", "same", "other"), [
    ("(1, [2.5, None], {'a': {1, 2}})", "(1, [2.5, None], {'a': {1, 2}})", "[1, [2.5, None], {'a': {1, 2}}]"),
    ("b'\\xff'", "b'\\xff'", "'ÿ'"), ("1 + 2j", "1 + 2j", "1"), ("True", "True", "False"),
    ("10 ** 40", "10 ** 40", "1e40 + 1e30"),
    ("float('inf')", "float('inf')", "1e308"), ("frozenset('ab')", "frozenset('ab')", "'ab'"),
    ("__import__('collections').Counter('aab')", "{'a': 2, 'b': 1}", "{'a': 2}"), ("'\\ud800'", "'\\ud800'", "''")])
def test_values_cross_with_their_types(value, same, other):
    assert accuracy(f"def f():\n    return {value}", f"assert f() == {same} and type(f()) != range") == 1
    assert accuracy(f"def f():\n    return {value}", f"assert f() == {other}") == 0


def test_arguments_that_a_program_changes_change_for_the_tests_and_exceptions_are_theirs():
    tests = ("xs = [3, 1]\norder(xs)\nassert xs == [1, 3]\n"
             "try:\n    order(None)\n    assert False\nexcept AttributeError: pass")
    assert accuracy("def order(xs):\n    xs.sort()", tests) == 1
    assert accuracy("def order(xs):\n    xs = sorted(xs)", tests) == 0
    assert accuracy("def f(n):\n    yield from range(n)", "assert list(f(3)) == [0, 1, 2]") == 1


@pytest.mark.parametrize(("program", "tests"), [
    ("def f(g):\n    return g(2)", "assert f(lambda n: n + 1) == 3"),
    ("class Stack(list):\n    def top(self):\n        return self[-1]",
     "s = Stack()\ns.append(3)\nassert s.top() == 3"),
    ("LIMIT = 3", "assert LIMIT == 3")])
def test_what_cannot_cross_runs_with_the_program_and_says_so(program, tests):
    found = code_reward(program, tests)
    assert (found["accuracy"], found.notes["accuracy"].rpartition("; ")[2]) == (1, "weak")
    assert accuracy(program.replace("2", "5").replace("-1", "0").replace("= 3", "= 4"), tests.replace("append(3)",
                    "extend([1, 3])")) == 0


@pytest.mark.parametrize("tests", ["", "{}", "assert add(1", "import no_such_module\nassert add(1, 2) == 3", "x = 1",
                                   "def check(candidate):\n    assert candidate(1, 2) == 3"])
def test_tests_that_cannot_be_run_are_the_fault_of_the_row(tests):
    with pytest.raises(DataError):
        code_reward(ADD, tests)


# --------------------------------------------------------------------------------------------------- hostile programs

MARK = "ouro-hostile"
HERE = Path(__file__).parents[1] / "code"
HOSTILE = {name: text.replace("MARK", MARK).replace("HERE", os.getcwd()) for name, text in (
    part.split("\n", 1) for part in (HERE / "hostile.txt").read_text().split("### ")[1:])}
SOME = ("os._exit", "equal to everything", "patched builtins", "answers for the tests", "reads frames",
        "writes at home", "opens a socket", "forks", "a thread that outlives", "kills its parent", "memory", "loops")


def left() -> list[str]:
    """What hostile programs may have left: processes and files with their mark."""
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    files = [str(place / MARK) for place in map(Path, ("/tmp", "/var/tmp", "/root", "/", "/dev/shm", os.getcwd()))]
    return [line for line in found.splitlines() if MARK in line or line == "sleep 333"] + [
        name for name in files if os.access(name, os.F_OK)]


def of_hostile(names, wall):
    """The names of programs that are not 0; what all of them left is nothing."""
    given = {**CHECK, "cpu_seconds": 1, "memory_mb": 256, "isolation": wall}
    for name in names:
        judge._begin(HOSTILE[name], "", **given)
    found = [name for name in names if accuracy(HOSTILE[name], **given)]
    assert left() == []
    assert accuracy(BODY, **given) == 1
    return found


@pytest.mark.parametrize("wall", WALLS)
def test_hostile_programs_are_0_and_leave_nothing(wall):
    assert of_hostile(SOME, wall) == []


@pytest.mark.parametrize("wall", WALLS)
@pytest.mark.parametrize("program", [
    "print('3\\n7')", "import os\nos._exit(0)", "while True: print('3')", "print(open('/proc/1/environ').read())",
    "import sys\nprint(sys._getframe(3).f_locals)", "import time, os\nif os.fork(): print(3)",
    f"open('/tmp/{MARK}', 'a').write('3')\nprint(3)", "while True: pass"])
def test_hostile_programs_with_inputs(wall, program):
    assert accuracy(program, json.dumps(SUMS), cpu_seconds=1, memory_mb=256, isolation=wall) == 0
    assert left() == []


def test_a_command_that_forks_ends_with_everything_it_started():
    given = {"command": 'bash "$1"', "cpu_seconds": 1, "memory_mb": 256}
    assert accuracy(f"setsid sh -c 'exec -a {MARK} sleep 333' & echo 3", json.dumps(SUMS), **given) == 0
    with suppress(TimeoutError):  # none of its processes uses its time up
        assert accuracy(":(){ :|:& };:", json.dumps(SUMS), **given) == 0
    assert left() == []


# --------------------------------------------------------------------------------------------------------- the limits


@pytest.mark.parametrize("wall", WALLS)
def test_a_program_that_waits_is_a_failed_row(wall, monkeypatch):
    monkeypatch.setattr(programs, "WALL", 1)
    begin = time.monotonic()
    with pytest.raises(TimeoutError):
        code_reward("def total(xs):\n    import time; time.sleep(99)", "", cpu_seconds=1, isolation=wall, **CHECK)
    assert time.monotonic() - begin < 20


def test_cpu_seconds_end_a_program_and_the_note_says_that_it_ended():
    found = code_reward("def total(xs):\n    while True: pass", "", cpu_seconds=1, **CHECK)
    assert (found["accuracy"], found.notes["accuracy"].endswith("ended")) == (0, True)


@pytest.fixture
def without_bubblewrap(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    programs.cell.cache_clear()
    yield
    programs.cell.cache_clear()


def test_where_nothing_isolates_nothing_runs(monkeypatch, without_bubblewrap):
    monkeypatch.setattr(confinement, "landlock_version", lambda: -1)
    with refuses(ConfigError, "isolation"):
        code_reward(BODY, "", **CHECK)


def test_without_bubblewrap_landlock_is_taken(without_bubblewrap):
    assert isinstance(programs.cell("auto", 512), programs.Unconfined)
    assert accuracy(BODY, **CHECK, memory_mb=512) == 1
    assert accuracy("def total(xs):\n    return len(open('/etc/passwd').read())", **CHECK, memory_mb=512) == 0


def test_isolation_none_runs_without_walls(tmp_path):
    file = tmp_path / "seen"
    assert accuracy(f"def total(xs):\n    open({str(file)!r}, 'w').write('x')\n    return sum(xs)", isolation="none",
                    **CHECK) == 1
    assert file.read_text() == "x"
