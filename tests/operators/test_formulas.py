"""The processes in which formulas are compared: limits, replacement, threads, and how they end."""

import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from ouroboros.operators.formula_worker import DIFFERENT, EQUAL, LIMIT
from ouroboros.operators.formulas import Workers, _Worker
from ouroboros.operators.reward import accuracy_reward
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import StageError
from ouroboros.workflows.attempts.user_reward import Rule
from tests.golden.messages import refuses

SLOW = "\\binom{10^9}{5*10^8}"  # a loop in C
PAIR = '["x+1", "1+x", 5]'


@pytest.fixture(scope="module")
def workers():
    return Workers()


def test_verdicts(workers):
    asked = [("x+1", "1+x"), ("x+2", "1+x"), ("\\sqrt{8}", "2\\sqrt{2}")]
    assert [workers.compare(*one, 20).result() for one in asked] == [EQUAL, DIFFERENT, EQUAL]


@pytest.mark.parametrize(("found", "truth", "verdict"), [
    ("\\sqrt{8}", "2\\sqrt{2}", DIFFERENT), ("2\\sqrt{2}", "\\sqrt{8}", EQUAL), ("\\sqrt{8}+0", "\\sqrt{8}", EQUAL),
    ("\\pi+\\pi", "2\\pi", DIFFERENT), ("(1+1,2)", "(2,2)", DIFFERENT), ("(2,2)", "(2,2)", EQUAL),
    ("\\sin(\\frac{\\pi}{3})", "\\frac{\\sqrt{3}}{2}", DIFFERENT), ("\\sqrt{2}\\sqrt{3}", "\\sqrt{6}", DIFFERENT),
    ("3\\cdot 2\\pi", "6\\pi", DIFFERENT), ("\\frac{1}{\\sqrt{2}}", "\\frac{\\sqrt{2}}{2}", EQUAL),
    ("\\frac{3\\sqrt{2}}{2}", "\\frac{3}{\\sqrt{2}}", EQUAL), ("\\frac{10\\sqrt{3}}{2}", "5\\sqrt{3}", DIFFERENT),
    ("\\frac{1}{2}+\\frac{\\sqrt{5}}{2}", "\\frac{1+\\sqrt{5}}{2}", EQUAL), ("\\ln 2", "\\ln 2", EQUAL),
    ("\\log_2 16+\\pi", "4+\\pi", DIFFERENT), ("x+1+1", "x+2", EQUAL)])
def test_an_operation_that_is_left_to_carry_out(workers, found, truth, verdict):
    assert workers.compare(found, truth, 20, False).result() == verdict


def test_each_pair_has_its_own_limit_and_others_go_on(workers):
    asked = [workers.compare(SLOW, "x+1", 0.3), *(workers.compare(f"x+{one}", f"{one}+x", 20) for one in range(5)),
             workers.compare(SLOW, "y+1", 0.3), workers.compare("x-1", "-1+x", 20)]
    assert [one.result() for one in asked] == [LIMIT, *[EQUAL] * 5, LIMIT, EQUAL]


def test_any_thread_may_ask(workers):
    found = []
    threads = [threading.Thread(target=lambda: found.append(workers.compare("2x", "x+x", 20).result()))
               for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [EQUAL] * 4


def test_a_process_that_something_else_ends_is_replaced_and_the_pair_asked_again():
    worker = _Worker()
    assert worker.ask(PAIR) == EQUAL
    first = worker.process
    threading.Timer(0.3, first.kill).start()
    assert worker.ask('["\\\\binom{10^9}{5*10^8}", "x+1", 1]') == LIMIT
    assert first.returncode == -signal.SIGKILL
    assert worker.ask(PAIR) == EQUAL


@pytest.mark.parametrize("compare", [
    "def compare(*pair):\n    return bytearray(2**34) and 'equal'\n",
    "def compare(*pair):\n    held = []\n    try:\n        while True:\n            held.append(bytearray(2**24))\n"
    "    except MemoryError:\n        return 'different'\n"])
def test_a_lack_of_memory_is_the_limit_even_where_math_verify_hides_it(compare):
    source = (f"import ouroboros.operators.formula_worker as worker\n{compare}worker.compare = compare\n"
              "print(worker.within_limits('x', 'y', 5))\n")
    assert subprocess.run([sys.executable, "-c", source], cwd=files.HOME, capture_output=True, text=True,
                          check=True).stdout == f"{LIMIT}\n"


def test_a_process_that_cannot_start_is_an_error_not_a_verdict(monkeypatch):
    workers = Workers()
    with monkeypatch.context() as without:
        without.setattr("ouroboros.operators.formulas.MODULE", "operators.no_such_module")
        with refuses(StageError, "no_such_module"):
            workers.compare("x+1", "1+x", 5).result()
    assert workers.compare("x+1", "1+x", 5).result() == EQUAL  # the error is not remembered as the pair's


def test_no_secret_reaches_a_process(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "very-secret")
    worker = _Worker()
    worker.ask(PAIR)
    assert "OPENAI_API_KEY" not in psutil.Process(worker.process.pid).environ()


def test_processes_end_with_the_one_that_asked_even_by_kill():
    source = ("from ouroboros.operators.formulas import WORKERS\n"
              "WORKERS.compare('x+1', '1+x', 5).result()\n"
              f"WORKERS.compare({SLOW!r}, 'x+1', 600)\n"
              "print('asked', flush=True)\n"
              "import time; time.sleep(600)\n")
    with subprocess.Popen([sys.executable, "-c", source], cwd=files.HOME, stdout=subprocess.PIPE, text=True) as parent:
        parent.stdout.readline()
        time.sleep(0.2)
        children = psutil.Process(parent.pid).children(recursive=True)
        parent.kill()
    gone, alive = psutil.wait_procs(children, timeout=10)
    assert gone
    assert not alive


def test_a_forked_process_asks_processes_of_its_own():
    truth = "1+\\sqrt{7}"
    assert accuracy_reward("\\boxed{\\sqrt{7}+1}", truth) == {"accuracy": 1.0}
    if (child := os.fork()) == 0:
        os._exit(int(accuracy_reward("\\boxed{\\sqrt{7}+1}", truth)["accuracy"]) + 10)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 11


def test_responses_of_a_step_are_compared_at_the_same_time_and_equal_ones_once(monkeypatch):
    from ouroboros.operators import answers

    asked = []

    class Counted(Workers):
        def _compare(self, found, truth, *more):
            asked.append((found, truth))
            return super()._compare(found, truth, *more)

    monkeypatch.setattr(answers, "WORKERS", Counted())
    responses = [f"\\boxed{{\\sqrt{{11}}+{one % 3}}}" for one in range(12)]
    found = Rule(accuracy_reward, {}, 0)([[]] * 12, responses, ["1+\\sqrt{11}"] * 12, [1] * 12)
    assert found == [{"accuracy": float(one % 3 == 1)} for one in range(12)]
    assert len(asked) == 3


@pytest.mark.parametrize("answer", ["9^{9^9}", "(9!)!", "1" * 600, SLOW])
def test_an_answer_beyond_a_limit_is_wrong_with_a_note(answer):
    rule = Rule(accuracy_reward, {"timeout_seconds": 1, "allow_unevaluated": True}, 0)
    [found] = rule([[]], [f"\\boxed{{{answer}}}"], ["42"], [1])
    assert found == {"accuracy": 0.0}
    assert found.notes == {"accuracy": LIMIT}


def test_a_wrong_answer_has_no_note():
    for answer in ("41", "Paris", "\\sqrt{5}", "{"):
        assert accuracy_reward(f"\\boxed{{{answer}}}", "42").notes == {}
