"""Guided decoding: which schemas are enforced, masks of a random model, and what clients get of them."""

import asyncio
import json
import sys

import httpx
import jsonschema
import pytest
from openai import AsyncOpenAI

from ouroboros.pipeline.store import records
from ouroboros.pipeline.store.errors import ConfigError, DataError
from ouroboros.pipeline.store.files import hash_json
from ouroboros.workflows.attempts.isolated import Isolated
from ouroboros.workflows.attempts.recording import Journal
from ouroboros.workflows.attempts.schedule import roll_out
from ouroboros.workflows.engines import guided
from ouroboros.workflows.engines.guided import check
from ouroboros.workflows.protocol.engine import Request
from ouroboros.workflows.protocol.forced_calls import as_text, calls_in, calls_schema
from ouroboros.workflows.protocol.outcomes import Sampling
from ouroboros.workflows.task_at_hand import TaskAtHand, bound
from tests import clients
from tests.factories import row
from tests.golden.messages import refuses, wording
from tests.stages.test_serving import CHAT, chat, opened, posted  # noqa: F401 (a fixture)
from tests.workflows.test_retry import rated

TOOLS = clients.TOOLS
SCHEMAS = [
    {"enum": ["yes", "no", 7, None]},
    {"type": "integer", "minimum": 10, "maximum": 99},
    {"type": "object", "additionalProperties": False, "required": ["colour", "ok"], "properties": {
        "colour": {"enum": ["red", "green"]}, "ok": {"type": "boolean"}, "number": {"type": "integer", "maximum": 9,
                                                                                     "minimum": 0}}},
    {"type": "array", "minItems": 2, "maxItems": 3, "items": {"type": "string", "maxLength": 2, "minLength": 1}},
    {"$defs": {"pair": {"type": "object", "required": ["a"], "properties": {"a": {"type": "boolean"}}}},
     "type": "array", "minItems": 1, "maxItems": 2, "items": {"$ref": "#/$defs/pair"}},
    calls_schema(TOOLS), calls_schema(TOOLS, "paint"),
]


def deep(levels):
    schema = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize("schema", [*SCHEMAS, {"type": "object"}, deep(20), {
    "type": "string", "pattern": "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{12}$"}])
def test_schemas_that_a_mask_enforces(schema):
    assert check(json.dumps(schema)) is None


@pytest.mark.parametrize("schema", [
    {"type": "strin"}, {"enum": []}, {"properties": []}, {"type": "string", "pattern": "(("}, {"$ref": "#/$defs/x"},
    False, {"type": "integer", "minimum": 3, "maximum": 2}, {"not": {"type": "string"}},
    {"type": "array", "uniqueItems": True}, {"$ref": "#"}, {"minimum": 3},
    {"allOf": [{"type": "integer"}, {"enum": [1]}]}, {"anyOf": [{"type": "integer"}], "maximum": 3},
    {"type": "object", "required": ["b"], "properties": {"a": {}}}, {"type": "string", "format": "poem"},
    {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    {"type": "string", "format": "date", "maxLength": 3}, {"const": {"a": 1}}, {"type": "string", "enum": ["a", 1]}])
def test_schemas_that_are_wrong_or_that_a_mask_would_not_enforce_are_refused(schema):
    with pytest.raises(DataError):
        check(json.dumps(schema))


@pytest.mark.parametrize("schema", [
    {"type": "string", "pattern": "(.{0,200}x){200}"}, {"type": "string", "pattern": "((a{1,90}){1,90}b){9}"}, deep(60),
    {"type": "integer", "default": deep(60)},
    {"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(3000)}}, {"title": "x" * 70_000},
    {"type": "array", "prefixItems": [{"type": "string", "maxLength": 10}] * 100}])
def test_schemas_that_take_too_long_are_refused_before_they_are_compiled(schema, monkeypatch):
    monkeypatch.setattr(guided, "_compile", lambda text: pytest.fail("compiled"))
    with pytest.raises(DataError):
        check(json.dumps(schema))


def test_without_xgrammar_the_reason_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    with refuses(ConfigError, "pip install xgrammar"):
        check('{"type": "boolean", "title": "asked for the first time"}')


def test_the_arguments_of_calls_are_exactly_those_generated():
    first, second = '{"colour":"red", "n": 1.50}', '{ "x": [1,\n2] }'
    calls = [("paint", first), ("mix", second)]
    assert calls_in(as_text(calls)) == calls
    assert calls_in(f'[{{"name":"paint","parameters":{first}}},{{"name":"mix","parameters":{second}}}]') == calls
    for cut in (as_text(calls)[:-1], "", "red", "[]", "[1]", '[{"name": "x"}]', "[" * 100_000):
        assert calls_in(cut) == []


def test_definitions_of_tools_move_to_the_root():
    def tool(name, colours):
        return {"type": "function", "function": {"name": name, "parameters": {
            "$defs": {"colour": {"enum": colours}}, "type": "object", "properties": {"c": {"$ref": "#/$defs/colour"}}}}}

    schema = calls_schema([tool("a", ["red"]), tool("b", ["red"])])
    assert schema["$defs"] == {"colour": {"enum": ["red"]}}
    jsonschema.validate([{"name": "b", "parameters": {"c": "red"}}], schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate([{"name": "b", "parameters": {"c": "blue"}}], schema)
    with pytest.raises(DataError):
        calls_schema([tool("a", ["red"]), tool("b", ["blue"])])


def asked(schema, seed=0, temperature=1.0, tokens=200):
    return Request([10, 20, 30], tokens, temperature, 1.0, -1, seed, schema=json.dumps(schema) if schema else None)


def assert_all_satisfy(engine, tokenizer, seeds):
    requests = [asked(schema, seed, float(seed > 0)) for schema in SCHEMAS for seed in range(seeds)]
    for request, reply in zip(requests, engine.generate(requests), strict=True):
        text = tokenizer.decode(reply.tokens, skip_special_tokens=True)
        assert reply.finish_reason == "stop", text
        jsonschema.validate(json.loads(text), json.loads(request.schema))


def test_every_reply_of_a_random_model_satisfies_its_schema(engine, tokenizer):
    assert_all_satisfy(engine, tokenizer, 4)


def test_masks_leave_other_requests_of_the_batch_as_they_are(engine):
    alone = engine.generate([asked(None, 3, tokens=9)])[0]
    together = engine.generate([asked(SCHEMAS[1]), asked(None, 3, tokens=9)])[1]
    assert together.tokens == alone.tokens
    assert together.logprobs == pytest.approx(alone.logprobs, abs=1e-5)


def test_log_probs_are_those_of_the_masked_distribution(engine, tokenizer):
    """One text is possible, by one token for each character: each has probability 1."""
    (reply,) = engine.generate([asked({"enum": ["ab"]})])
    assert tokenizer.decode(reply.tokens[:-1]) == '"ab"'
    assert reply.logprobs == [0.0] * 5


def test_a_reply_that_no_token_continues_has_failed(engine):
    (reply,) = engine.generate([asked({"enum": ["é"]})])  # no token of the model is a part of it
    assert "JSON schema" in reply.reason


@pytest.fixture
def roll(tiny_settings, tokenizer, engine):
    def run(workflow, is_trained=False):
        config = tiny_settings("model.max_model_len=600", "model.max_prompt_tokens=100",
                               "model.max_response_tokens=400")
        task = TaskAtHand(row(records.Task, task_id="t", question="1+1", answer="2"), rated(), tokenizer, config,
                          is_trained)
        one = bound(Isolated(workflow, 120.0, speaks=True), lambda: task)
        return roll_out(engine, [one], [[5]], [7], [Sampling(1.0, 1.0, -1, 100, 400, 600)])[0]

    return run


@pytest.mark.parametrize("agent", [clients.forces_by_chat, clients.forces_by_anthropic, clients.forces_by_responses])
def test_clients_force_calls_and_formats_where_nothing_is_trained_and_are_refused_in_training(roll, agent):
    outcome = roll(agent)
    assert (outcome.reason, outcome.own_text) == (None, "ok")
    outcome = roll(agent, is_trained=True)
    assert outcome.status == "workflow_failed"
    assert "400" in outcome.reason
    wording(outcome.reason, "distribution")


def test_constraints_that_cannot_be_met_are_refused_and_the_attempt_goes_on(roll):
    outcome = roll(clients.is_refused_when_forced)
    assert (outcome.reason, len(outcome.calls)) == (None, 1)


def test_a_forced_call_is_rendered_by_the_template_in_the_next_request(roll, tokenizer):
    outcome = roll(clients.goes_on_after_a_forced_call)
    assert [call.origin.retokenized for call in outcome.calls] == [False, True]


def test_a_reply_that_is_cut_off_is_text(opened):  # noqa: F811
    made = opened('[{"name": "paint", "parameters": {"colour": "r', record=False)
    (found,) = posted(made, (CHAT, chat("x", tools=TOOLS, tool_choice="required", max_tokens=20)))
    (choice,) = found.json()["choices"]
    assert (choice["finish_reason"], choice["message"].get("tool_calls")) == ("length", None)


def test_ouro_serve_constrains_replies(opened, engine):  # noqa: F811
    made = opened(engine=engine, record=False)

    async def ask():
        running = asyncio.create_task(made.loop.run())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(made.app.app)) as http:
            client = AsyncOpenAI(base_url="http://127.0.0.1/v1", api_key="none", http_client=http)
            found = await client.chat.completions.create(
                model="policy", messages=[{"role": "user", "content": "x"}], tools=TOOLS, parallel_tool_calls=False,
                tool_choice="required")
        running.cancel()
        return found

    (choice,) = asyncio.run(ask()).choices
    (called,) = choice.message.tool_calls
    assert (choice.finish_reason, called.function.name in ("paint", "mix")) == ("tool_calls", True)
    assert clients.colour(called.function.arguments)


def test_ouro_serve_refuses_it_while_it_records(opened):  # noqa: F811
    forced, form = {"tools": TOOLS, "tool_choice": "required"}, {"response_format": {"type": "json_object"}}
    found = posted(opened("a"), (CHAT, chat("x", **forced)), (CHAT, chat("x", **form)), (CHAT, chat("x")))
    assert [one.status_code for one in found] == [400, 400, 200]


def test_the_schema_is_part_of_what_is_recorded_only_where_there_is_one():
    """A journal of before there were schemas is still replayed."""
    digests = [Journal().recording("a").reply(Request([1], 2, 0.5, 1.0, -1, 3, 9, schema))[0].content
               for schema in (None, "{}", "true")]
    assert digests[0] == hash_json([[1], 2, 0.5, 1.0, -1, 3])
    assert len({*digests}) == 3
