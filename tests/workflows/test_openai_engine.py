"""The engine that is a server of OpenAI's interface: what it sends, how it retries and keeps limits."""

import asyncio
import json
import math
import time

import pytest
from starlette.responses import JSONResponse

from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.remote import Remote as Settings
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.workflows.engines import remote
from ouroboros.workflows.engines.openai_engine import OpenAIEngine, text_tokenizer
from ouroboros.workflows.engines.remote import Remote, RequestFailed
from ouroboros.workflows.protocol.engine import Request
from ouroboros.workflows.protocol.forced_calls import calls_in, calls_schema
from ouroboros.workflows.protocol.prompts import conversation_text, end_tokens, prompt_tokens
from tests.clients import COLOUR, TOOLS
from tests.golden.messages import refuses
from tests.servers import chat_app, serving


@pytest.fixture
def ask(monkeypatch):
    """ask(answer, *conversations, **limits): the replies of an engine on a server with that answer."""
    monkeypatch.setattr(remote, "LONGEST_PAUSE", 0.01)

    def run(answer, *conversations, tools=(), schema=None, **limits):
        with serving(chat_app(answer)) as address:
            config = Config().merged({"explorer": {"rollout_model": {"external": {
                "base_url": f"{address}/v1", "model_name": "m", "max_retries": 2, **limits}}}})
            engine = OpenAIEngine(None, config, [], False)
            texts = [conversation_text(text_tokenizer(), c, tools=tools) for c in conversations]
            prompts = prompt_tokens(text_tokenizer(), texts)
            replies = engine.generate([Request(p, 9, 0.5, 1.0, -1, 3, schema=schema) for p in prompts])
            engine.close()
        return replies

    return run


def user(text):
    return [{"role": "user", "content": text}]


def test_conversations_go_out_as_messages_and_texts_come_back_as_bytes(ask):
    bodies = []

    def answer(body, headers):
        bodies.append(body)
        return body["messages"][-1]["content"].upper()

    first, second = ask(answer, user("grüß {% dich %} 數"), [{"role": "system", "content": "s"}, *user("b")])
    tokenizer = text_tokenizer()
    assert tokenizer.decode(first.tokens, skip_special_tokens=True) == "GRÜSS {% DICH %} 數"
    assert (second.tokens[-1], second.finish_reason, len(second.tokens)) == (tokenizer.eos_token_id, "stop", 2)
    assert all(math.isnan(one) for one in first.logprobs)
    sent = next(body for body in bodies if len(body["messages"]) == 2)
    assert sent["messages"] == [{"role": "system", "content": "s"}, *user("b")]
    assert (sent["model"], sent["max_tokens"], sent["temperature"], sent["seed"]) == ("m", 9, 0.5, 3)
    assert "tools" not in sent


@pytest.mark.parametrize(("schema", "sent"), [
    (calls_schema(TOOLS), {"tool_choice": "required"}),
    (calls_schema(TOOLS, None, False), {"tool_choice": "required", "parallel_tool_calls": False}),
    (calls_schema(TOOLS, "mix"), {"tool_choice": {"type": "function", "function": {"name": "mix"}}}),
    ({"type": "object"}, {"response_format": {"type": "json_object"}}),
    (COLOUR, {"response_format": {"type": "json_schema", "json_schema": {
        "name": "reply", "strict": True, "schema": COLOUR}}})])
def test_what_constrains_replies_goes_out_as_it_came(ask, schema, sent):
    """Two calls come back; their arguments stay as the server wrote them."""
    bodies, written = [], '{"colour" :"red"}'
    call = {"id": "1", "type": "function", "function": {"name": "mix", "arguments": written}}
    message = {"role": "assistant", "content": None, "tool_calls": [call, call]}

    def answer(body, headers):
        bodies.append(body)
        return JSONResponse({"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [
            {"index": 0, "finish_reason": "tool_calls", "message": message}]})

    (reply,) = ask(answer, user("x"), tools=TOOLS, schema=json.dumps(schema))
    assert {name: value for name, value in bodies[0].items() if name in (
        "tool_choice", "parallel_tool_calls", "response_format")} == sent
    if "tool_choice" in sent:
        assert calls_in(text_tokenizer().decode(reply.tokens, skip_special_tokens=True)) == [("mix", written)] * 2


def test_load_is_waited_for_and_a_refusal_fails_its_row_alone(ask):
    tries = []

    def answer(body, headers):
        text = body["messages"][0]["content"]
        tries.append(text)
        if text == "busy" and tries.count("busy") < 3:
            return JSONResponse({"error": {"message": "later"}}, 429, {"retry-after": "0.01"})
        if text == "bad":
            return JSONResponse({"error": {"message": "not such words"}}, 400)
        return JSONResponse({"error": {"message": "down"}}, 500) if text == "down" else "ok"

    busy, bad, down = ask(answer, user("busy"), user("bad"), user("down"))
    assert text_tokenizer().decode(busy.tokens, skip_special_tokens=True) == "ok"
    assert "not such words" in bad.reason
    assert "down" in down.reason
    assert [tries.count(one) for one in ("busy", "bad", "down")] == [3, 1, 3]


def test_limits_of_requests_at_once_and_in_a_minute(monkeypatch):
    monkeypatch.setattr(remote, "MINUTE", 0.6)
    times = []

    def answer(body, headers):
        times.append(time.monotonic())
        return "x"

    async def several(settings):
        asked = Remote(settings)
        await asyncio.gather(*(asked.chat(user("a")) for _ in range(5)))
        await asked.close()

    with serving(chat_app(answer)) as address:
        given = {"base_url": f"{address}/v1", "model_name": "m"}
        asyncio.run(several(Settings(**given, requests_per_minute=2)))
        assert times[2] - times[0] > 0.4
        assert times[4] - times[2] > 0.4
        times.clear()
        asyncio.run(several(Settings(**given, concurrency=1, tokens_per_minute=10)))  # a reply has 5
        assert times[2] - times[0] > 0.4


@pytest.mark.parametrize(("settings", "error"), [
    ({"base_url": "http://127.0.0.1:9/v1"}, "model_name"),
    ({"base_url": "http://127.0.0.1:9/v1", "model_name": "m", "api_key_env": "OURO_NO_SUCH_KEY"}, "OURO_NO_SUCH_KEY")])
def test_what_a_server_needs_is_named(settings, error):
    with refuses(ConfigError, error):
        Remote(Settings(**settings))


def test_a_server_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(remote, "LONGEST_PAUSE", 0.01)

    async def ask_nobody():
        await Remote(Settings(base_url="http://127.0.0.1:9/v1", model_name="m", max_retries=1)).chat(user("a"))

    with refuses(RequestFailed, "127.0.0.1:9"):
        asyncio.run(ask_nobody())


@pytest.mark.parametrize("address", ["ftp://a/v1", "http://me:key@a/v1", "http://a/v1?key=x"])
def test_addresses_with_secrets_are_refused(address):
    assert [problem.key for problem in Settings(base_url=address).broken_rules()] == ["base_url"]


def test_the_end_of_a_turn_is_the_end_token(tmp_path):
    assert end_tokens(text_tokenizer(), tmp_path) == [text_tokenizer().eos_token_id]
