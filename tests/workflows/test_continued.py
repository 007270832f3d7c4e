"""Answers that go on under newer weights: tokens, versions and seeds by hand, whatever kind of workflow asked."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from ouroboros.workflows.attempts.continued import ContinuedEngine, continuation, sampled_versions
from ouroboros.workflows.attempts.isolated import Isolated
from ouroboros.workflows.attempts.recording import Journal
from ouroboros.workflows.attempts.schedule import roll_out
from ouroboros.workflows.protocol.engine import INTERRUPTED, Engine, Reply, Request
from ouroboros.workflows.protocol.kept import Kept
from ouroboros.workflows.protocol.outcomes import Sampling
from ouroboros.workflows.protocol.seeds import request_seed
from ouroboros.workflows.protocol.trajectory import Trajectory
from ouroboros.workflows.single_turn import simple_workflow
from tests import agents
from tests.workflows.test_isolated import SAMPLING


class Stepwise(Engine):
    """Adds a token to every reply at each step: 100 x weights + tokens before it; log-prob -0.5 - weights."""

    def __init__(self):
        self.requests, self.replies, self.asked = {}, {}, []
        self.weights = self.steps = 0

    def submit(self, requests):
        numbers = range(len(self.asked), len(self.asked) + len(requests))
        self.asked += requests
        self.requests |= dict(zip(numbers, requests, strict=True))
        self.replies |= {number: Reply([], [], INTERRUPTED) for number in numbers}
        return list(numbers)

    def advance(self, seconds=0.2):
        self.steps += 1
        for number, request in self.requests.items():
            reply = self.replies[number]
            reply.tokens.append(100 * self.weights + len(request.prompt_tokens) + len(reply.tokens))
            reply.logprobs.append(-0.5 - self.weights)
        done = [number for number, one in self.requests.items() if len(self.replies[number].tokens) == one.max_tokens]
        return {number: replace(self._out(number), finish_reason="length") for number in done}

    def cancel(self, numbers):
        for number in numbers:
            self._out(number)

    def interrupt(self):
        return {number: self._out(number) for number in list(self.requests)}

    def _out(self, number):
        del self.requests[number]
        return self.replies.pop(number)


class After:
    """Newer weights: one version becomes available after each of these numbers of engine steps."""

    def __init__(self, engine, *steps):
        self.engine, self.steps = engine, list(steps)

    @property
    def version(self):
        return self.engine.weights

    def are_there(self):
        return bool(self.steps) and self.engine.steps >= self.steps[0]

    def load(self):
        assert not self.engine.requests, "requests are in progress"
        self.steps.pop(0)
        self.engine.weights += 1


def ask(tokens, seed=7, prompt=(1, 2)):
    return Request(list(prompt), tokens, 1.0, 1.0, -1, seed)


def answered(engine, requests):
    return [(reply.tokens, reply.logprobs, reply.versions, reply.finish_reason) for reply in engine.generate(requests)]


def test_a_long_answer_goes_on_under_newer_weights_and_a_short_one_was_complete():
    """Two prompt tokens: tokens 2, 3 | 104, 105, 106 of five, and 2, 3 of two."""
    inner = Stepwise()
    engine = ContinuedEngine(inner, After(inner, 2))
    assert answered(engine, [ask(5), ask(2, seed=8)]) == [
        ([2, 3, 104, 105, 106], [-0.5, -0.5, -1.5, -1.5, -1.5], [0, 0, 1, 1, 1], "length"),
        ([2, 3], [-0.5, -0.5], [0, 0], "length")]
    (rest,) = inner.asked[2:]
    assert (rest.prompt_tokens, rest.max_tokens) == ([1, 2, 2, 3], 3)
    assert rest.seed == request_seed("7/continued", 2, 0) != 7


def test_an_answer_goes_on_as_often_as_weights_come():
    """The seed of the last part is that of the request and all four tokens before, not that of the part before it."""
    inner = Stepwise()
    ((tokens, _, sampled, _),) = answered(ContinuedEngine(inner, After(inner, 1, 4)), [ask(5)])
    assert (tokens, sampled) == ([2, 103, 104, 105, 206], [0, 1, 1, 1, 2])
    assert [one.seed for one in inner.asked] == [
        7, request_seed("7/continued", 1, 0), request_seed("7/continued", 4, 0)]


def test_without_weights_an_answer_is_the_engines_own():
    own, inner = Stepwise(), Stepwise()
    requests = [ask(3), ask(4, seed=9, prompt=(5, 6, 7))]
    expected = [(reply.tokens, reply.logprobs) for reply in own.generate(requests)]
    found = answered(ContinuedEngine(inner, After(inner)), requests)
    assert [one[:2] for one in found] == expected
    assert [one[2] for one in found] == [[0] * 3, [0] * 4]
    assert inner.asked == own.asked == requests


def test_seeds_are_functions_of_the_requests_and_the_tokens_so_far():
    first = ask(9, seed=3)
    assert continuation(first, [4, 5]) == continuation(first, [4, 5])
    assert len({continuation(replace(first, seed=seed), tokens).seed
                for seed in (3, 4) for tokens in ([4], [4, 5], [4, 5, 6])}) == 6
    assert continuation(first, [9, 9]).seed == continuation(first, [4, 5]).seed
    assert continuation(first, []) == first  # nothing was drawn with its seed


def test_a_schema_is_refused_because_its_state_would_be_lost():
    with pytest.raises(AssertionError):
        continuation(replace(ask(5), schema="{}"), [4])


class Ahead(Stepwise):
    """Has completed replies of two tokens when it is interrupted, as a pool may have."""

    def interrupt(self):
        return {number: replace(reply, finish_reason="stop") if len(reply.tokens) == 2 else reply
                for number, reply in super().interrupt().items()}


def test_what_was_complete_at_the_interruption_is_an_answer():
    inner = Ahead()
    found = answered(ContinuedEngine(inner, After(inner, 2)), [ask(5)])
    assert found == [([2, 3], [-0.5, -0.5], [0, 0], "stop")]
    assert len(inner.asked) == 1


def test_a_request_is_known_by_its_first_number():
    """It is cancelled by it, and a later one follows its latest part to the engine of a pool."""
    inner = Stepwise()
    engine = ContinuedEngine(inner, After(inner, 1))
    first, second = engine.submit([ask(5), ask(5, seed=8)])
    for _ in range(2):
        engine.advance()
    assert sorted(inner.requests) == [2, 3]
    engine.submit([replace(ask(1), follows=second)])
    assert inner.asked[-1].follows == 3
    engine.cancel([first])
    assert sorted(inner.requests) == [3, 4]
    found = {}
    while inner.requests:
        found |= engine.advance()
    assert sorted(found) == [second, 4]


@pytest.mark.parametrize(("calls", "expected"), [
    ([([1], [2, 3], [0, 0])], [0, 0, None, None]),  # the environment said the rest
    ([([1], [2, 3], [0, 0]), ([1, 2, 3, 4], [5], [1])], [0, 0, None, 1]),
    ([([1], [2, 9], [0, 0])], [0, None, None, None]),  # a workflow that changed what was sampled
    ([([1], [2, 3, 4, 5, 6, 7], [0, 0, 0, 1, 1, 1])], [0, 0, 0, 1]),  # and one that cut it
    ([([1], [2, 3, 8], [3, 3, 3]), ([1], [2, 3, 4], [0, 0, 1]), ([1], [9], [2])], [0, 0, 1, None]),  # three samples
    ([([7], [2, 3], [0, 0]), ([1, 2, 3, 4, 5], [6], [1])], [None] * 4), ([], [None] * 4)])
def test_a_token_is_of_the_reply_that_the_row_agrees_with(calls, expected):
    replies = [(prompt, Reply(tokens, [-1.0] * len(tokens), "stop", sampled)) for prompt, tokens, sampled in calls]
    assert sampled_versions([1], [2, 3, 4, 5], replies) == expected


def test_the_end_of_a_reply_may_be_the_beginning_of_a_row():
    assert sampled_versions([1, 2], [3, 4], [([1], Reply([2, 3], [-1.0] * 2, "stop", [0, 1]))]) == [1, None]


def rolled(workflows, steps, journal=None, prompts=([1, 2], [5, 6, 7]), sampling=SAMPLING, engine=None):
    inner = engine or Stepwise()
    return roll_out(ContinuedEngine(inner, After(inner, *steps)), workflows, prompts, [7, 8], [sampling] * 2,
                    journal=journal)


def versions_of(outcomes):
    return [[turn.versions for _, turn, _ in one.turns] for one in outcomes]


def masked(prompt):
    """Two replies in one row, with text of an environment between."""
    first = yield prompt
    between = [50, 51]
    second = yield [*prompt, *first.tokens, *between]
    return Trajectory(prompt, [*first.tokens, *between, *second.tokens], [*first.logprobs, 0.0, 0.0, *second.logprobs],
                      [1] * 4 + [0] * 2 + [1] * 4, second.finish_reason)


def test_rows_have_a_version_for_every_token():
    assert versions_of(rolled([simple_workflow] * 2, [3])) == [[[0, 0, 0, 1]]] * 2
    assert versions_of(rolled([masked] * 2, [3])) == [[[0, 0, 0, 1, None, None, 1, 1, 1, 1]]] * 2
    assert versions_of(rolled([partial(agents.as_generator, turns=2)] * 2, [6])) == [[[0] * 4, [0, 0, 1, 1]]] * 2


def test_an_answer_may_end_at_the_models_length():
    """A prompt of 3 in 8 tokens: the rest of the answer has the room that is left."""
    sampling = Sampling(1.0, 1.0, -1, 4, 9, 8)
    found = rolled([simple_workflow] * 2, [2], sampling=sampling)
    assert versions_of(found) == [[[0, 0, 1, 1, 1, 1]], [[0, 0, 1, 1, 1]]]


def test_recorded_replies_keep_their_versions(tmp_path):
    path, head = tmp_path / "journal", {"step": 2}
    workflow = Isolated(partial(agents.chat, turns=2, seconds=0.0))
    journal = Journal(path, head)
    first = rolled([workflow] * 2, [2], journal)
    journal.loaded(1, "abc")
    journal.commit()
    journal.close()
    again = Journal(path, head)
    assert again.newer == (1, "abc")
    found = rolled([workflow] * 2, [], again)
    assert versions_of(found) == versions_of(first)
    assert {version for one in versions_of(first) for turn in one for version in turn} == {0, 1}
    assert [call.reply for one in found for call in one.calls] == [call.reply for one in first for call in one.calls]


class Keeping(Stepwise):
    """Says of each token that it was sampled among itself and the next one."""

    def _out(self, number):
        reply = super()._out(number)
        return replace(reply, kept=Kept.of([np.array([token, token + 1]) for token in reply.tokens]))


def test_rows_have_what_their_tokens_were_sampled_among_across_weights_and_a_kill(tmp_path):
    path, head, sampling = tmp_path / "journal", {"step": 2}, replace(SAMPLING, top_k=2, keeps=True)
    workflow, journal = Isolated(partial(agents.chat, turns=2, seconds=0.0)), Journal(path, head)
    first = rolled([workflow] * 2, [2], journal, sampling=sampling, engine=Keeping())
    turn = first[0].trajectory
    assert [one.tolist() for one in turn.kept.sets()] == [[token, token + 1] for token in turn.response_tokens]
    journal.loaded(1, "abc")
    journal.commit()
    journal.close()
    found = rolled([workflow] * 2, [], Journal(path, head), sampling=sampling)
    assert [one.trajectory.kept for one in found] == [one.trajectory.kept for one in first]
    made_up = rolled([acts_on_its_own, masked], [], sampling=sampling, engine=Keeping())
    assert [one.status for one in made_up] == ["workflow_failed", "ok"]
    assert made_up[1].trajectory.kept.counts.tolist() == [2] * 4 + [0] * 2 + [2] * 4


def acts_on_its_own(prompt):
    """Trains on a token that no reply has."""
    reply = yield prompt
    tokens = [*reply.tokens, 3]
    return Trajectory(prompt, tokens, [*reply.logprobs, -1.0], [1] * len(tokens), "stop")


def test_a_journal_of_other_weights_begins_again(tmp_path):
    path, said = tmp_path / "journal", []
    journal = Journal(path, {"step": 2})
    rolled([Isolated(partial(agents.chat, turns=1))] * 2, [2], journal)
    journal.close()
    again = Journal(path, {"step": 2}, said.append)
    again.forget()
    assert not path.exists()
    assert "other weights" in said[0]
    found = rolled([Isolated(partial(agents.chat, turns=1))] * 2, [], again)
    assert versions_of(found) == [[[0] * 4]] * 2
