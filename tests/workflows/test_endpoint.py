"""The recorded endpoint: real clients ask by HTTP, and what is trained on is what the engine sampled."""

import hashlib
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import psutil
import pytest

from ouroboros.pipeline.store import records
from ouroboros.pipeline.store.files import HOME
from ouroboros.stages.model import character_tokenizer
from ouroboros.workflows.attempts.isolated import Isolated, host
from ouroboros.workflows.attempts.schedule import roll_out
from ouroboros.workflows.protocol.engine import STOP_TEXT, BatchEngine, Reply, Stop
from ouroboros.workflows.protocol.outcomes import Sampling, add_rewards, decode
from ouroboros.workflows.protocol.seeds import request_seed
from ouroboros.workflows.single_turn import load_workflow
from ouroboros.workflows.task_at_hand import TaskAtHand, bound
from tests import clients
from tests.factories import row
from tests.workflows.test_retry import rated

SAMPLING = Sampling(1.0, 1.0, -1, 100, 8, 200)
TASK = row(records.Task, task_id="t", question="1+1", answer="2")
TOKENIZER = character_tokenizer(200)
EOS = TOKENIZER.eos_token_id


def tokens(text):
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


class Scripted(BatchEngine):
    """Replies with the texts of a script in order, each ended by EOS; keeps the prompts as text."""

    def __init__(self, *texts):
        super().__init__()
        self.texts, self.prompts = list(texts), []

    def answer(self, requests):
        return [self.reply(request) for request in requests]

    def reply(self, request):
        self.prompts.append(TOKENIZER.decode(request.prompt_tokens))
        said = [*tokens(self.texts.pop(0)), EOS][: request.max_tokens]
        return Reply(said, [-float(i) for i in range(len(said))], "stop" if said[-1] == EOS else "length")


@pytest.fixture
def roll(settings):
    def run(workflow, *texts, engine=None, limit=120.0, tokenizer=TOKENIZER, overrides=(), **arguments):
        config = settings("model.max_prompt_tokens=100", "model.max_response_tokens=8", "model.max_model_len=200",
                          *overrides)
        task = TaskAtHand(TASK, rated(), tokenizer, config)
        one = bound(Isolated(workflow, limit, speaks=True), lambda: task)
        return roll_out(engine or Scripted(*texts), [one], [[5]], [7], [SAMPLING])[0]

    return run


@pytest.mark.parametrize("by", ["key", "header", "both"])
def test_the_rows_of_players_have_their_roles_and_rewards(roll, by):
    """White, black, then white again, which goes on from its first call; black asks the same words as white did."""
    outcome = roll(partial(clients.plays, by=by), "a", "b", "c")
    assert (outcome.status, outcome.reason) == ("ok", None)
    assert [(turn.role, sum(turn.action_mask)) for _, turn, _ in outcome.turns] == [("white", 4), ("black", 2)]
    assert outcome.components == {"white": 1.0, "black": -1.0}
    assert [call.origin.role for call in outcome.calls] == ["white", "black", "white"]
    white, black, _ = (call.request for call in outcome.calls)
    assert white.prompt_tokens == black.prompt_tokens
    for role, asked in (("white", white), ("black", black)):  # whoever asks first
        name = hashlib.sha256(repr((role, asked.prompt_tokens)).encode()).hexdigest()
        assert asked.seed == request_seed(f"7/{name}", 1, 0)


def test_two_roles_with_one_key_are_refused(roll):
    outcome = roll(partial(clients.plays, by="two"), "a")
    assert outcome.status == "workflow_failed"
    assert all(word in outcome.reason for word in ("400", "black", "white"))


def test_a_conversation_is_one_row_of_the_sampled_tokens(roll):
    engine = Scripted("two", "2", "ok")
    outcome = roll(clients.talks, engine=engine)
    assert (outcome.status, outcome.reason) == ("ok", None)
    assert engine.prompts == ["1+1:", "1+1:two<eos>again 0:", "1+1:two<eos>again 0:2<eos>again 1:"]
    ((turn, trained, _),) = outcome.turns
    assert turn == 0
    assert trained.prompt_tokens == tokens("1+1:")
    assert trained.response_tokens == [*tokens("two"), EOS, *tokens("again 0:2"), EOS, *tokens("again 1:ok"), EOS]
    assert trained.action_mask == [1] * 4 + [0] * 8 + [1] * 2 + [0] * 8 + [1] * 3
    assert trained.logprobs[:4] == [0.0, -1.0, -2.0, -3.0]
    assert outcome.own_text == "ok"
    assert [call.origin.retokenized for call in outcome.calls] == [False] * 3


@pytest.mark.parametrize(("found", "text", "components"), [
    ("2", "2", {}), ("none", "ab", {}), ("number", "ab", {"reward": 0.25}),
    ("components", "ab", {"accuracy": 1.0, "style": 0.5})])
def test_the_answer_or_the_reward_of_an_agent(roll, found, text, components):
    outcome = roll(partial(clients.returns, found=found), "ab")
    assert (outcome.status, outcome.own_text, outcome.components) == ("ok", text, components)
    decode([outcome], TOKENIZER)
    add_rewards([outcome], [[]], ["2"], rated(lambda response, answer: float(response == answer)))
    assert outcome.reward == (sum(components.values()) if components else float(text == "2"))


def test_what_cannot_be_a_reward_fails_the_attempt(roll):
    for found in ("list", {"a": [1, 2], "b": [1]}):
        assert roll(partial(clients.returns, found=found), "ab").status == "workflow_failed"


def test_an_agent_that_ends_without_a_call_is_a_row_with_a_reason(roll):
    outcome = roll(clients.says_nothing)
    assert outcome.status == "workflow_failed"
    assert "without a reply" in outcome.reason


def test_parallel_calls_by_environment_variables_have_seeds_of_their_prompts(roll):
    class Seeds(Scripted):
        def reply(self, request):
            self.prompts.append((TOKENIZER.decode(request.prompt_tokens), request.seed))
            return Reply([*tokens("x"), EOS], [-1.0, -1.0], "stop")

    engines = [Seeds(), Seeds()]
    for engine in engines:
        outcome = roll(clients.in_an_async_def, engine=engine)
        assert (outcome.own_text, len(outcome.turns)) == ("x x", 2)
    first, second = (sorted(engine.prompts) for engine in engines)
    assert first == second
    assert first[0][1] != first[1][1]


def test_rewritten_history_begins_a_row_and_is_counted(roll):
    outcome = roll(clients.rewrites_history, "x", "y", "z")
    texts = [(TOKENIZER.decode(t.prompt_tokens), TOKENIZER.decode(t.response_tokens)) for _, t, _ in outcome.turns]
    assert texts == [("a:", "x<eos>b:y<eos>"), ("a:summary<eos>b:", "z<eos>")]
    assert [call.origin.retokenized for call in outcome.calls] == [False, False, True]


def test_choices_stops_streams_and_completions(roll):
    outcome = roll(clients.many_ways, "abcd", "de", "fghi", "jkl", "mn", overrides=())
    assert outcome.reason is None
    rows = [TOKENIZER.decode(t.response_tokens) for _, t, _ in outcome.turns]
    assert rows == ["abc", "de<eos>", "fgh", "jkl<eos>", "mn<eos>"]  # up to the token that completes the stop
    assert [call.request.temperature for call in outcome.calls] == [1.0] * 5
    assert [call.origin.wishes for call in outcome.calls[:3]] == [*['{"temperature": 0.5, "seed": 3}'] * 2, None]
    assert outcome.calls[-1].origin.api == "completions"


class Stops(Scripted):
    """Ends a reply where it has a stop text of its request, as engines do that make text."""

    def reply(self, request):
        reply = super().reply(request)
        for end in range(1, len(reply.tokens)) if request.stop else ():
            if any(stop in TOKENIZER.decode(reply.tokens[:end]) for stop in request.stop.texts):
                return Reply(reply.tokens[:end], reply.logprobs[:end], STOP_TEXT)
        return reply


def test_a_reply_that_the_engine_ends_at_a_stop_text_is_the_row_of_one_that_was_cut(roll):
    cut, ended = (roll(clients.many_ways, engine=kind("abcd", "de", "fghi", "jkl", "mn")) for kind in (Scripted, Stops))
    assert ended.reason is None
    assert [turn for _, turn, _ in ended.turns] == [turn for _, turn, _ in cut.turns]
    assert [call.request.stop for call in ended.calls] == [None, None, Stop(("gh", "zz"), False), None, None]
    assert [len(outcome.calls[2].reply.tokens) for outcome in (cut, ended)] == [5, 3]


@pytest.mark.parametrize(("agent", "api"), [(clients.to_anthropic, "messages"), (clients.to_responses, "responses")])
def test_other_clients(roll, agent, api):
    engine = Scripted("yes", "no")
    outcome = roll(agent, engine=engine)
    assert (outcome.reason, outcome.own_text) == (None, "no")
    assert engine.prompts == ["Shi:", "Shi:yes<eos>on:"]
    assert [TOKENIZER.decode(t.response_tokens) for _, t, _ in outcome.turns] == ["yes<eos>on:no<eos>"]
    assert {call.origin.api for call in outcome.calls} == {api}


def test_what_is_refused_says_so_and_the_attempt_goes_on(roll):
    outcome = roll(clients.is_refused, "ab")
    assert (outcome.reason, outcome.own_text, len(outcome.calls)) == (None, "ab", 1)
    assert roll(partial(clients.asks, content="1" * 50), "ab").own_text == "ab"  # 51 tokens, of 200
    assert roll(partial(clients.continues_ids, ids=[30]), "ab").own_text == "ab"


class Slow(Scripted):
    """Never answers `long`."""

    cancelled = 0

    def advance(self, seconds=0.2):
        held = {n: r for n, r in self._waiting.items() if "long" in TOKENIZER.decode(r.prompt_tokens)}
        for number in held:
            del self._waiting[number]
        try:
            return super().advance(seconds)
        finally:
            self._waiting |= held

    def cancel(self, numbers):
        self.cancelled += len(numbers := list(numbers))
        super().cancel(numbers)


def test_a_client_that_disconnects_frees_its_place_in_the_engine(roll):
    engine = Slow("ab")
    outcome = roll(clients.disconnects, engine=engine)
    assert (outcome.reason, outcome.own_text) == (None, "2")
    assert (engine.cancelled, engine._waiting) == (1, {})
    assert [call.position for call in outcome.calls] == [1]


def test_an_agent_that_hangs_ends_at_its_limit_alone(roll):
    outcome = roll(clients.hangs, "ab", limit=3.0)
    assert outcome.status == "workflow_failed"
    assert "max_timeout" in outcome.reason
    assert len(outcome.calls) == 1


def test_the_token_of_an_ended_attempt_is_refused(roll, tmp_path):
    file = tmp_path / "endpoint"
    assert roll(partial(clients.passes_on, path=str(file)), "ab").reason is None
    with ThreadPoolExecutor() as threads:
        asked, deadline = threads.submit(clients.status, *json.loads(file.read_text())), time.monotonic() + 60
        while not asked.done() and time.monotonic() < deadline:
            host().listen(0.1)
        assert asked.result(0) == 410


def test_nothing_listens_beyond_loopback(roll):
    """Other tests of the same process may have servers of their own."""
    roll(partial(clients.returns), "ab")
    port = int(host().endpoint.address.rpartition(":")[2])
    servers = [one.laddr for one in psutil.Process().net_connections("tcp") if one.status == "LISTEN"]
    assert [server.ip for server in servers if server.port == port] == ["127.0.0.1"]


def test_the_example_of_the_documentation_runs(roll, tmp_path, monkeypatch):
    example = re.search(r"^```python\n(.*?)^```$", (HOME / "docs" / "agents.md").read_text(), re.M | re.S)
    (tmp_path / "documented_agent.py").write_text(example[1])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    host.cache_clear()  # the process that imports workflows has the environment of its start
    engine = Scripted("deux", "two")
    outcome = roll(load_workflow("documented_agent:translate").function, engine=engine)
    assert (outcome.reason, outcome.own_text) == (None, "two")
    assert engine.prompts[1] == "1+1:deux<eos>Check it, and write it again.:"
