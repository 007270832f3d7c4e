"""Attempts in processes of their own: same rows whatever the timing, and any user code ends at its limit alone."""

import os
import re
import resource
import subprocess
import sys
import time
from functools import partial

import psutil
import pytest

from ouroboros.operators.reward import countdown_reward
from ouroboros.pipeline.store.errors import ConfigError, StageError
from ouroboros.pipeline.store.files import HOME
from ouroboros.stages.debug import Traced
from ouroboros.workflows.attempts.isolated import Isolated, host
from ouroboros.workflows.attempts.schedule import roll_out
from ouroboros.workflows.protocol.engine import BatchEngine, Failed, Reply
from ouroboros.workflows.protocol.outcomes import Sampling
from ouroboros.workflows.protocol.seeds import request_seed
from ouroboros.workflows.single_turn import load_workflow, simple_workflow
from ouroboros.workflows.task_at_hand import TaskAtHand, bound
from tests import agents, slow_import
from tests.golden.messages import refuses, wording
from tests.workflows.test_retry import TASK, Characters, rated

SAMPLING = Sampling(1.0, 1.0, -1, 100, 4, 200)


class Seeded(BatchEngine):
    """Answers two at a time with two tokens of each seed. A prompt that begins with 99 stays unanswered."""

    batch = 2

    def __init__(self):
        super().__init__()
        self.sizes = []

    def answer(self, requests):
        self.sizes.append(len(requests))
        return [Reply([r.seed % 89, r.seed % 83], [-0.5, -r.seed % 7], "stop") for r in requests]

    def advance(self, seconds=0.2):
        held = {n: self._waiting.pop(n) for n in list(self._waiting) if self._waiting[n].prompt_tokens[0] == 99}
        try:
            return super().advance(seconds)
        finally:
            self._waiting |= held


def roll(workflows, prompts, engine=None, concurrency=None, **more):
    return roll_out(engine or Seeded(), workflows, prompts, range(100, 100 + len(prompts)), [SAMPLING] * len(prompts),
                    concurrency, **more)


def rows(outcomes):
    return [(o.status, o.reason, [(t.prompt_tokens, t.response_tokens, t.logprobs, t.action_mask)
                                  for _, t, _ in o.turns if t]) for o in outcomes]


PROMPTS = [[10 + i, 20] for i in range(8)]


def test_neither_timing_nor_the_kind_of_workflow_nor_concurrency_changes_a_row():
    expected = rows(roll([agents.as_generator] * 8, PROMPTS))
    assert [status for status, *_ in expected] == ["ok"] * 8
    assert expected[3][2][1][0] == [13, 20, 103 % 89, 103 % 83]  # the second prompt: what was answered with seed 103
    for kind in (agents.chat, agents.blocking):
        assert rows(roll([Isolated(kind)] * 8, PROMPTS)) == expected
    assert rows(roll([Isolated(agents.chat)] * 8, PROMPTS, concurrency=3)) == expected
    assert rows(roll([Isolated(agents.chat), agents.as_generator] * 4, PROMPTS)) == expected


def test_attempts_do_not_wait_for_the_slowest_tool():
    """Tools of 0 to 0.45 s: in rounds, three times the slowest of eight; alone, as long as the slowest attempt. The
    fastest of three, because other tests share the machine."""
    def seconds() -> float:
        begin = time.monotonic()
        roll([Isolated(agents.blocking)] * 8, PROMPTS)
        return time.monotonic() - begin

    alone = min(seconds() for _ in range(3))
    delays = [[agents.delay(prompt, turn) for turn in range(3)] for prompt in PROMPTS]
    assert max(map(sum, delays)) <= alone < sum(map(max, zip(*delays, strict=True)))


def test_single_turns_are_submitted_at_once_and_concurrency_limits_what_is_in_progress():
    class Counting(Seeded):
        def submit(self, requests):
            submitted.append(len(requests))
            return super().submit(requests)

    submitted = []
    roll([simple_workflow] * 8, PROMPTS, Counting())
    assert submitted == [8]
    submitted.clear()
    engine = Counting()
    roll([simple_workflow] * 8, PROMPTS, engine, concurrency=3)
    assert submitted[0] == 3
    assert sum(submitted) == 8
    assert max(submitted) == 3


def test_parallel_calls_have_the_seeds_of_their_turns():
    (outcome,) = roll([Isolated(agents.in_parallel)], [[5]])
    late = request_seed(100, 1, 0)
    assert [turn.response_tokens for _, turn, _ in outcome.turns] == [[100 % 89, 100 % 83], [late % 89, late % 83]]


class Down(Seeded):
    """A server that refuses two requests at once, which are of one attempt."""

    def answer(self, requests):
        return [Failed(f"refused {request.prompt_tokens}") for request in requests]

    def advance(self, seconds=0.2):
        return super().advance(seconds) if len(self._waiting) == 2 else {}

    def cancel(self, numbers):
        assert set(numbers) <= set(self._waiting)  # what has ended cannot be cancelled
        super().cancel(numbers)


def test_an_attempt_whose_parallel_calls_are_refused_at_once_fails_by_the_first_of_them():
    (outcome,) = roll([Isolated(agents.in_parallel)], [[5]], Down())
    assert (outcome.status, outcome.reason) == ("workflow_failed", "refused [5, 3]")


def test_every_reply_is_a_call_of_its_attempt():
    outcomes = roll([Isolated(agents.chat), Isolated(agents.gives_up), Isolated(agents.raises), simple_workflow],
                    [[10, 20], [5], [6], [7]])
    assert [[call.position for call in outcome.calls] for outcome in outcomes] == [[0, 1, 2], [1], [0], []]
    first, second, _ = outcomes[0].calls
    assert second.request.prompt_tokens == [10, 20, *first.reply.tokens]
    assert second.request.seed == request_seed(100, 1, 0)
    assert outcomes[2].status == "workflow_failed"
    assert all(call.seconds >= 0 for outcome in outcomes for call in outcome.calls)


def test_the_task_is_the_explorers(settings):
    config = settings("model.max_prompt_tokens=90", "model.max_response_tokens=4", "model.max_model_len=200")
    task = TaskAtHand(TASK, rated(countdown_reward), Characters(), config)

    class Wrong(BatchEngine):
        def answer(self, requests):
            return [Reply([*map(ord, "1+1"), 1], [-0.5] * 4, "stop") for _ in requests]

    (outcome,) = roll([bound(Isolated(agents.judged), lambda: task)], [[5]], Wrong())
    assert "".join(map(chr, outcome.trajectory.prompt_tokens)) == '1+1: 0.1, truth {"numbers": [1, 2], "target": 3}'


def test_the_example_of_the_documentation_runs(settings, tmp_path, monkeypatch):
    examples = re.findall(r"^```python\n(.*?)^```$", (HOME / "docs" / "workflows.md").read_text(), re.M | re.S)
    (tmp_path / "documented.py").write_text(next(one for one in examples if "calculator_agent" in one))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    host.cache_clear()  # the process that imports workflows has the environment of its start
    config = settings("model.max_prompt_tokens=90", "model.max_response_tokens=9", "model.max_model_len=200")
    task = TaskAtHand(TASK, rated(), Characters(), config)

    class Prints(BatchEngine):
        def answer(self, requests):
            return [Reply([*map(ord, "print(2)"), 1], [-0.5] * 9, "stop") for _ in requests]

    (outcome,) = roll([bound(load_workflow("documented:calculator_agent"), lambda: task)], [[5]], Prints())
    assert outcome.reason is None
    assert "".join(map(chr, outcome.trajectory.prompt_tokens)).endswith("It printed 2\n. The answer?")


@pytest.mark.parametrize("workflow", [agents.gives_up, agents.raises_while_it_waits])
def test_a_request_that_is_given_up_leaves_the_engine(workflow):
    engine = Seeded()
    first, second = roll([Isolated(workflow), simple_workflow], [[5], [6]], engine)
    assert engine._waiting == {}
    assert second.status == "ok"
    if workflow is agents.gives_up:
        assert first.trajectory.prompt_tokens == [5]
    else:
        wording(first.reason, "ValueError", "tests/agents.py", "in tool)")


@pytest.mark.parametrize(("workflow", "reason"), [
    (agents.exits, r"the process of the workflow tests.agents:exits ended with exit code 3, without"),
    (agents.crashes, r"the process of the workflow tests.agents:crashes ended by signal SIGSEGV"),
    (agents.leaves, r"SystemExit: enough"),
    (agents.returns_a_function, r"AttributeError|PicklingError"), (agents.asks_words, r"TypeError: 'str' object"),
    (agents.asks_too_much, r"wants 1000 tokens continued; needed at least 1, and fewer than 200"),
    (agents.raises, r"KeyError: 'tool' \(tests/agents.py:\d+ in raises\)"),
    (lambda prompt, model: None, r"another process cannot import the workflow")])
def test_an_attempt_that_fails_is_a_row_and_the_others_go_on(workflow, reason):
    bad, good, printed = roll([Isolated(workflow), simple_workflow, Isolated(agents.prints)], [[5], [6], [7]])
    assert bad.status == "workflow_failed"
    assert re.search(reason, bad.reason)
    assert (good.status, printed.status) == ("ok", "ok")


@pytest.mark.parametrize("workflow", [agents.sleeps, agents.matches, agents.swallows, Traced(partial(agents.sleeps))])
def test_code_of_any_kind_ends_at_its_limit(workflow):
    begin = time.monotonic()
    bad, good = roll([Isolated(workflow, 0.5), Isolated(agents.chat, 5.0)], [[5], [6]])
    wording(bad.reason, ":", "0.5", "(explorer.max_timeout)")
    assert good.status == "ok"
    assert time.monotonic() - begin < 10


def test_the_time_of_the_engine_does_not_count():
    class Slow(Seeded):
        def answer(self, requests):
            time.sleep(0.5)
            return super().answer(requests)

    (outcome,) = roll([Isolated(agents.chat, 1.2)], [[10, 20]], Slow())  # its tools: 0, 0.25 and 0 s
    assert outcome.reason is None


def test_the_start_of_the_process_does_not_count():
    """Its module takes 0.6 s to be imported, once, and the second attempt waits for the first."""
    first, second = roll([Isolated(slow_import.asks, 0.3)] * 2, [[10, 20], [11, 20]])
    assert (first.reason, second.reason) == (None, None)


def test_a_question_to_the_task_does_not_count_the_steps_that_it_waits_for(settings):
    class Slow(Seeded):
        batch = 1

        def answer(self, requests):
            time.sleep(0.3)
            return [Reply([ord("1"), 1], [-0.5] * 2, "stop") for _ in requests]

    config = settings("model.max_prompt_tokens=90", "model.max_response_tokens=4", "model.max_model_len=200")
    task = TaskAtHand(TASK, rated(), Characters(), config)
    asks = bound(Isolated(agents.judged, 0.7), lambda: task)  # three questions between its calls: 0.9 s
    first, *_ = roll([asks, agents.as_generator, agents.as_generator], [[5], [10, 20], [11, 20]], Slow())
    assert first.reason is None


def test_what_a_workflow_started_ends_with_it(tmp_path):
    file = tmp_path / "pid"
    short = os.path.relpath(file)
    (outcome,) = roll([Isolated(agents.starts_a_program, 1.5)], [list(map(ord, short))])
    assert "timed out" in outcome.reason
    program, deadline = int(file.read_text()), time.monotonic() + 5
    while _runs(program) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _runs(program)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_an_engine_that_fails_ends_all_attempts():
    class Broken(Seeded):
        def answer(self, requests):
            raise MemoryError("cache")

    begin = time.monotonic()
    with pytest.raises(MemoryError):
        roll([Isolated(agents.swallows)] * 2 + [simple_workflow], [[5], [6], [7]], Broken())
    assert time.monotonic() - begin < 10


def test_more_attempts_than_open_files_are_a_mistake_with_its_remedy():
    """In a process of its own: others of this one's threads would lack files as well."""
    code = "from tests.workflows import test_isolated; test_isolated.too_few_files()"
    assert subprocess.run([sys.executable, "-c", code], cwd=HOME, check=False, timeout=120).returncode == 0


def too_few_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    host()
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 6, hard))
    try:
        with pytest.raises(StageError) as error:
            roll([Isolated(agents.swallows)] * 20, [[5]] * 20)
        assert "explorer.runner_concurrency" in str(error.value)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert roll([Isolated(agents.chat)], [[5]])[0].status == "ok"


def test_a_workflow_that_asks_no_model_is_a_mistake():
    with refuses(ConfigError, "parameter `model`"):
        load_workflow("tests.agents:without_model")
    with refuses(ConfigError, "rename it"):
        load_workflow("tests.agents:generator_with_model")
    found = load_workflow("tests.agents:chat", {"turns": 2}, 3.0)
    assert (found.limit, found.function.keywords) == (3.0, {"turns": 2})
