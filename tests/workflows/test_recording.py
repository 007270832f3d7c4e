"""The flight recorder: whatever a kill leaves of a journal, the attempts end as if undisturbed."""

import json
import time
from dataclasses import replace
from functools import partial

import pytest

from ouroboros.pipeline.store.errors import StageError
from ouroboros.workflows.attempts.isolated import Isolated
from ouroboros.workflows.attempts.pace import Pace
from ouroboros.workflows.attempts.recording import Journal
from ouroboros.workflows.attempts.schedule import roll_out
from ouroboros.workflows.single_turn import load_workflow
from ouroboros.workflows.task_at_hand import TaskAtHand, bound
from tests import agents, clients
from tests.golden.messages import refuses, wording
from tests.workflows.test_endpoint import SAMPLING, TASK, TOKENIZER, Scripted, rated
from tests.workflows.test_isolated import PROMPTS, Seeded, rows
from tests.workflows.test_isolated import SAMPLING as OF_TOKENS

HEAD = {"stage": "rft-1", "step": 3}


class Silent(Seeded):
    """Must not be asked."""

    def submit(self, requests):
        raise AssertionError(requests)


class Seen(Seeded):
    """Keeps the seeds that it was asked with; fails at the request that follows `most`."""

    def __init__(self, most=10**9):
        super().__init__()
        self.seeds, self.most = [], most

    def answer(self, requests):
        if len(self.seeds) >= self.most:
            raise MemoryError("killed")
        self.seeds += [request.seed for request in requests]
        return super().answer(requests)


class Together(Scripted):
    """Answers when as many requests as the script has texts are waiting: none of them was alone."""

    def advance(self, seconds=0.01):
        if len(self._waiting) < len(self.texts):
            time.sleep(seconds)
            return {}
        return super().advance(seconds)


def roll(workflow, path, engine=None, prompts=PROMPTS, head=HEAD, **more):
    journal = Journal(path, head, **more)
    try:
        return roll_out(engine or Seeded(), [workflow] * len(prompts), prompts, range(100, 100 + len(prompts)),
                        [OF_TOKENS] * len(prompts), journal=journal)
    finally:
        journal.close()


def calls(outcomes):
    """Without the numbers of requests at the engine."""
    return [replace(call, request=replace(call.request, follows=None)) for one in outcomes for call in one.calls]


@pytest.mark.parametrize("workflow", [partial(agents.chat, seconds=0.0), agents.in_parallel])
def test_no_recorded_reply_is_asked_again(tmp_path, workflow):
    path = tmp_path / "journal"
    expected = roll(Isolated(workflow), path)
    found = roll(Isolated(workflow), path, Silent())
    assert rows(found) == rows(expected)
    assert calls(found) == calls(expected)


def test_attempts_that_are_replayed_say_nothing_of_the_time_that_attempts_take(tmp_path):
    workflow, path, times = Isolated(partial(agents.chat, turns=3, seconds=0.0)), tmp_path / "journal", []
    for _ in range(2):
        journal, pace = Journal(path, HEAD), Pace(3.0, 1)
        roll_out(Seeded(), [workflow] * len(PROMPTS), PROMPTS, range(100, 100 + len(PROMPTS)),
                 [OF_TOKENS] * len(PROMPTS), journal=journal, pace=pace)
        journal.close()
        pace.begin_step()
        pace.begin_step()
        times.append(pace.limit)
    assert times[0] > 0.0
    assert times[1] is None


def test_an_interrupted_step_asks_only_for_what_is_missing(tmp_path):
    whole, first, second = Seen(), Seen(9), Seen()
    workflow, path = Isolated(partial(agents.chat, seconds=0.0)), tmp_path / "journal"
    expected = roll(workflow, tmp_path / "other", whole)
    with pytest.raises(MemoryError):
        roll(workflow, path, first)
    assert rows(roll(workflow, path, second)) == rows(expected)
    assert len(second.seeds) < len(whole.seeds)
    assert {*first.seeds, *second.seeds} == {*whole.seeds}


def test_workflows_in_the_explorers_process_keep_no_journal(tmp_path):
    roll(agents.as_generator, tmp_path / "journal")
    assert not (tmp_path / "journal").exists()


@pytest.mark.parametrize(("again", "said"), [
    (agents.in_parallel, "another request of the model"), (partial(agents.chat, turns=1), "other calls: 2")])
def test_an_attempt_that_does_something_else_is_a_row_with_a_reason(tmp_path, again, said):
    path = tmp_path / "journal"
    roll(Isolated(partial(agents.chat, seconds=0.0)), path, prompts=[[10, 20]])
    (outcome,) = roll(Isolated(again), path, prompts=[[10, 20]])
    assert outcome.status == "workflow_failed"
    assert said in outcome.reason


def test_other_weights_begin_another_journal(tmp_path):
    path, said = tmp_path / "journal", []
    workflow = Isolated(partial(agents.chat, seconds=0.0))
    roll(workflow, path)
    again = Seen()
    roll(workflow, path, again, head={**HEAD, "step": 4}, warn=said.append)
    assert len(again.seeds) == 24
    assert len(said) == 1
    roll(workflow, path, Silent(), head={**HEAD, "step": 4})


def test_a_last_line_may_be_cut_anywhere_and_the_middle_may_not_be_damaged(tmp_path):
    path, workflow = tmp_path / "journal", Isolated(partial(agents.chat, seconds=0.0))
    expected = rows(roll(workflow, path, prompts=[[10, 20]]))
    content = path.read_bytes()
    begin = content.rstrip(b"\n").rindex(b"\n") + 1
    for end in (0, 5, begin, begin + 1, begin + 20, len(content) - 1):
        path.write_bytes(content[:end])
        assert rows(roll(workflow, path, prompts=[[10, 20]])) == expected
        assert rows(roll(workflow, path, Silent(), prompts=[[10, 20]])) == expected
    path.write_bytes(content[: begin - 5] + b"x" + content[begin - 4 :])
    with refuses(StageError, path):
        Journal(path, HEAD)


def with_tools(short, tool, workflow="calls", turns=2, **more):
    asked = json.dumps([[tool, {"path": str(short / "ledger"), "line": "x"}]])
    return load_workflow(f"tests.toolkit:{workflow}", {
        "tools": [f"tests.toolkit:{tool}"], "asked": asked, "turns": turns, **more}, 60.0)


@pytest.mark.parametrize("workflow", ["calls", "awaits", "generates"])
@pytest.mark.parametrize("tool", ["append", "append_always"])
def test_wherever_the_journal_ends_no_tool_takes_effect_twice(short, tool, workflow):
    """Lines: head, and twice reply, intent, result. Only where it ends with an intent is the outcome unknown."""
    path, ledger = short / "journal", short / "ledger"
    one, prompts = with_tools(short, tool, workflow), [list(map(ord, str(short / "f")))]
    expected = rows(whole := roll(one, path, prompts=prompts))
    assert [(use.name, use.result, use.failed) for use in whole[0].tool_calls] == [(tool, "x", False)] * 2
    assert len({use.idempotency_key for use in whole[0].tool_calls}) == 2
    lines, effects = path.read_bytes().splitlines(keepends=True), ledger.read_text().splitlines(keepends=True)
    assert [json.loads(line[9:])["kind"] for line in lines] == ["head", *["reply", "intent", "result"] * 2]
    for kept in range(len(lines) + 1):
        path.write_bytes(b"".join(lines[:kept]))
        done = len([line for line in lines[:kept] if b'"intent"' in line[:30]])  # as if killed after the effect
        ledger.write_text("".join(effects[:done]))
        (outcome,) = found = roll(one, path, prompts=prompts)
        if tool == "append_always" and kept in (3, 6):
            assert outcome.status == "workflow_failed"
            wording(outcome.reason, "append_always")
            assert ledger.read_text() == "".join(effects[:done])
        else:
            assert rows(found) == expected
            assert ledger.read_text() == "".join(effects)
            assert [replace(use, seconds=0.0) for use in outcome.tool_calls] == [
                replace(use, seconds=0.0) for use in whole[0].tool_calls]


def test_another_call_of_a_tool_is_a_row_with_a_reason(short):
    path, prompts = short / "journal", [list(map(ord, str(short / "f")))]
    roll(with_tools(short, "append"), path, prompts=prompts)
    other = with_tools(short, "append", asked=json.dumps([["append", {"path": str(short / "other"), "line": "x"}]]))
    (outcome,) = roll(other, path, prompts=prompts)
    wording(outcome.reason, "another")
    assert not (short / "other").exists()


@pytest.mark.parametrize(("world", "unknown"), [("Counter", False), ("Fragile", True)])
def test_the_state_of_an_environment_is_made_again_if_that_is_declared(short, world, unknown):
    path, prompts = short / "journal", [list(map(ord, str(short / "f")))]
    one = load_workflow("tests.toolkit:plays", {"environment_class": f"tests.toolkit:{world}"}, 60.0)
    expected = rows(roll(one, path, prompts=prompts))
    assert json.loads((short / "f").read_text()) == ["from 0", "now 1", "now 3", "error", 0.0]
    lines = path.read_bytes().splitlines(keepends=True)
    for kept in range(len(lines) + 1):
        path.write_bytes(b"".join(lines[:kept]))
        (outcome,) = found = roll(one, path, prompts=prompts)
        if unknown and 2 < kept < len(lines):
            assert outcome.reason.startswith("outcome unknown")
        else:
            assert rows(found) == expected


@pytest.fixture
def speak(settings, tmp_path):
    def run(agent, *texts, kind=Scripted):
        config = settings("model.max_prompt_tokens=100", "model.max_response_tokens=8", "model.max_model_len=200")
        task = TaskAtHand(TASK, rated(), TOKENIZER, config)
        one = bound(Isolated(agent, 60.0, speaks=True), lambda: task)
        journal, engine = Journal(tmp_path / "journal", HEAD), kind(*texts)
        try:
            return roll_out(engine, [one], [[5]], [7], [SAMPLING], journal=journal)[0], engine
        finally:
            journal.close()

    return run


@pytest.mark.parametrize("agent", [clients.talks, clients.to_anthropic, clients.to_responses])
def test_a_client_gets_the_recorded_replies(speak, agent):
    expected, _ = speak(agent, "two", "2", "ok")
    found, engine = speak(agent)
    assert engine.prompts == []
    assert rows([found]) == rows([expected])
    assert calls([found]) == calls([expected])
    assert found.own_text == expected.own_text


def test_parallel_requests_are_matched_by_content(speak, tmp_path):
    expected, engine = speak(clients.in_an_async_def, "x", "y", kind=Together)
    assert len(engine.prompts) == 2
    path = tmp_path / "journal"
    head, first, second = path.read_bytes().splitlines(keepends=True)
    assert not any(json.loads(line[9:])["alone"] for line in (first, second))
    for kept in ([first, second], [first], [second], []):
        path.write_bytes(b"".join([head, *kept]))
        found, engine = speak(clients.in_an_async_def, *["z"] * (2 - len(kept)), kind=Together)
        assert len(engine.prompts) == 2 - len(kept)
        assert found.status == expected.status == "ok"


def test_a_client_that_asks_something_else_is_a_row_with_a_reason(speak):
    speak(partial(clients.returns, prompt="1+1"), "ab")
    found, engine = speak(partial(clients.returns, prompt="2+2"), "ab")
    assert engine.prompts == []
    wording(found.reason, "another")
