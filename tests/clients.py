"""Agents that speak to OpenAI or Anthropic by the real clients, for tests: their processes import them from here."""

import asyncio
import base64
import contextlib
import json
import time
from pathlib import Path

import httpx
import openai
import pytest
from anthropic import Anthropic
from openai import AsyncOpenAI, OpenAI

from tests.pictures import png


def client(endpoint):
    return OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0)


def talks(task, endpoint, turns=3):
    """A chat of several turns; its answer is the last reply."""
    messages = list(task.messages)
    for turn in range(turns):
        reply = client(endpoint).chat.completions.create(model=endpoint.model, messages=messages)
        messages += [reply.choices[0].message, {"role": "user", "content": f"again {turn}"}]
    return reply.choices[0].message.content


def plays(task, endpoint, by):
    """Two players, known by their keys, a header, both, or with the header of the other."""
    header = {"white": "black", "black": "white"} if by == "two" else {"white": "white", "black": "black"}
    said = [{"role": "user", "content": "1+1"}]
    for role in ("white", "black", "white"):
        reply = client(endpoint if by == "header" else endpoint.of_role(role)).chat.completions.create(
            model=endpoint.model, messages=said if role == "white" else said[:1],
            extra_headers={} if by == "key" else {"X-Ouroboros-Role": header[role]})
        if len(said) == 1:
            said += [reply.choices[0].message, {"role": "user", "content": "and"}]
    return {"white": 1, "black": -1}


def returns(task, endpoint, found="2", prompt="1+1"):
    """One call, then what an agent may return."""
    client(endpoint).chat.completions.create(model=endpoint.model, messages=[{"role": "user", "content": prompt}])
    named = {"number": 0.25, "components": {"accuracy": 1.0, "style": 0.5}, "list": [1], "none": None}
    return named.get(found, found) if isinstance(found, str) else found


def says_nothing(task, endpoint):
    return "2"


async def in_an_async_def(task, endpoint):
    """The asynchronous client, by environment variables, two calls at once."""
    ask = AsyncOpenAI(max_retries=0)
    replies = await asyncio.gather(*(ask.chat.completions.create(
        model=endpoint.model, messages=[{"role": "user", "content": text}]) for text in ("a", "b")))
    return " ".join(sorted(reply.choices[0].message.content for reply in replies))


def rewrites_history(task, endpoint):
    """Two turns, and a third whose first reply is another."""
    ask = client(endpoint).chat.completions
    messages = [{"role": "user", "content": "a"}]
    said = ask.create(model=endpoint.model, messages=messages).choices[0].message.content
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "b"}]
    ask.create(model=endpoint.model, messages=messages)
    messages[1] = {"role": "assistant", "content": "summary"}
    ask.create(model=endpoint.model, messages=messages)


def many_ways(task, endpoint):
    """n, stop, log-probs, usage, streams, completions and models; asserts what the client gets."""
    ask = client(endpoint)
    asked = {"model": endpoint.model, "messages": [{"role": "user", "content": "x"}]}
    found = ask.chat.completions.create(**asked, n=2, logprobs=True, max_tokens=3, temperature=0.5, seed=3)
    assert [one.message.content for one in found.choices] == ["abc", "de"]
    assert [one.finish_reason for one in found.choices] == ["length", "stop"]
    assert [one.token for one in found.choices[1].logprobs.content] == ["d", "e", "<eos>"]
    assert [one.logprob for one in found.choices[1].logprobs.content] == [0.0, -1.0, -2.0]
    assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens) == (2, 6, 8)
    cut = ask.chat.completions.create(**asked, stop=["gh", "zz"]).choices[0]
    assert (cut.message.content, cut.finish_reason) == ("f", "stop")
    chunks = list(ask.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(one.choices[0].delta.content or "" for one in chunks if one.choices) == "jkl"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.total_tokens == 6
    text = ask.completions.create(model=endpoint.model, prompt="y:", max_tokens=4, logprobs=1).choices[0]
    assert (text.text, text.finish_reason, text.logprobs.token_logprobs) == ("mn", "stop", [0.0, -1.0, -2.0])
    assert [one.id for one in ask.models.list()] == ["policy"]


REFUSED = [
    (400, {"response_format": {"type": "json_object"}}), (400, {"tool_choice": "required"}), (400, {"n": 0}),
    (400, {"logit_bias": {"5": 1}}), (400, {"messages": []}), (400, {"top_logprobs": 2, "logprobs": True}),
    (400, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
    (400, {"messages": [{"role": "user", "content": "x" * 300}]}), (404, {"model": "gpt-9"}),
]


def is_refused(task, endpoint):
    """Asks what is not answered; asserts the status of each, and then asks what is."""
    asked = {"model": endpoint.model, "messages": [{"role": "user", "content": "x"}]}
    for status, wrong in REFUSED:
        with pytest.raises(openai.APIStatusError) as found:
            client(endpoint).chat.completions.create(**{**asked, **wrong})
        assert found.value.status_code == status, wrong
    url, bearer = f"{endpoint.base_url}/chat/completions", {"Authorization": f"Bearer {endpoint.api_key}"}
    head = bearer | {"Content-Type": "application/json"}
    plain = bearer | {"Content-Type": "text/plain"}
    assert httpx.post(url, content=json.dumps(asked), headers=plain).status_code == 415
    for name, value, status in (("Origin", "http://evil.example", 403), ("Sec-Fetch-Site", "cross-site", 403),
                                ("Host", "evil.example", 400)):
        assert httpx.post(url, json=asked, headers=bearer | {name: value}).status_code == status
    nan = json.dumps({**asked, "temperature": float("nan")})
    half = json.dumps({**asked, "user": "\ud800"})
    for content in (nan, half):
        assert httpx.post(url, content=content, headers=head).status_code == 400
    number, _, signature = endpoint.api_key.partition("-")
    assert httpx.post(url, json=asked).status_code == 401
    for other in (f"{int(number) + 1}-{signature}", "x", "é", f"{number}-"):
        assert httpx.post(url, json=asked, headers={"x-api-key": other.encode()}).status_code == 401
    assert httpx.post(url, content=b"{", headers=head).status_code == 400
    assert httpx.post(url, content=b"[" * 100_000, headers=head).status_code == 400
    assert httpx.post(url, content=b"x" * (17 << 20), headers=head).status_code == 413
    assert httpx.post(f"{endpoint.base_url}/responses", headers=head, json={
        "model": endpoint.model, "input": "x", "previous_response_id": "y"}).status_code == 400
    return client(endpoint).chat.completions.create(**asked).choices[0].message.content


def disconnects(task, endpoint):
    """Gives up a long answer, then asks for a short one."""
    with contextlib.suppress(openai.APITimeoutError):
        client(endpoint).with_options(timeout=0.3).chat.completions.create(
            model=endpoint.model, messages=[{"role": "user", "content": "long"}])
    return returns(task, endpoint)


def hangs(task, endpoint):
    returns(task, endpoint)
    time.sleep(60)


def passes_on(task, endpoint, path=None):
    """An agent that writes its address and token to a file, for a program that is not below it."""
    Path(path).write_text(json.dumps([endpoint.base_url, endpoint.api_key]))
    return returns(task, endpoint)


def status(address: str, token: str) -> int:
    """What an empty request gets: 400 while the attempt lasts."""
    return httpx.post(f"{address}/chat/completions", json={}, timeout=60, headers={"x-api-key": token}).status_code


def to_anthropic(task, endpoint):
    """Two turns of Anthropic's client, the second one streamed."""
    ask = Anthropic(max_retries=0).messages
    messages = [{"role": "user", "content": "hi"}]
    first = ask.create(model=endpoint.model, max_tokens=9, system="S", messages=messages)
    assert (first.stop_reason, first.usage.input_tokens) == ("end_turn", 4)
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": "on"}]
    with ask.stream(model=endpoint.model, max_tokens=9, system="S", messages=messages) as stream:
        text = "".join(stream.text_stream)
        assert stream.get_final_message().content[0].text == text
    return text


def to_responses(task, endpoint):
    """Two turns of OpenAI's responses, the second one streamed."""
    ask = client(endpoint).responses
    first = ask.create(model=endpoint.model, input="hi", instructions="S")
    items = [{"role": "user", "content": "hi"}, *(one.model_dump() for one in first.output),
             {"role": "user", "content": "on"}]
    *_, last = ask.create(model=endpoint.model, input=items, instructions="S", stream=True)
    assert (last.type, last.response.usage.total_tokens) == ("response.completed", 14)
    return last.response.output_text


COLOUR = {"type": "object", "properties": {"colour": {"enum": ["red", "green"]}}, "required": ["colour"],
          "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": COLOUR}} for name in ("paint", "mix")]
FORMAT = {"type": "json_schema", "schema": COLOUR}


def colour(arguments):
    return (arguments if isinstance(arguments, dict) else json.loads(arguments))["colour"] in ("red", "green")


def forces_by_chat(task, endpoint):
    """Formats and forced calls of chat completions, streamed too; asserts that a random model obeys."""
    ask = client(endpoint).chat.completions
    asked = {"model": endpoint.model, "messages": [{"role": "user", "content": "x"}]}
    said = ask.create(**asked, response_format={"type": "json_schema", "json_schema": {
        "name": "c", "schema": COLOUR}}).choices[0]
    assert colour(said.message.content)
    one = {"type": "function", "function": {"name": "mix"}}
    called = ask.create(**asked, tools=TOOLS, tool_choice=one, n=2).choices
    assert [[call.function.name for call in choice.message.tool_calls] for choice in called] == [["mix"], ["mix"]]
    assert colour(called[0].message.tool_calls[0].function.arguments)
    (any_,) = ask.create(**asked, tools=TOOLS, tool_choice="required", parallel_tool_calls=False).choices
    assert (any_.finish_reason, any_.message.content, len(any_.message.tool_calls)) == ("tool_calls", None, 1)
    chunks = [chunk.choices[0] for chunk in ask.create(**asked, tools=TOOLS, tool_choice=one, stream=True)]
    (call,) = [call for chunk in chunks for call in chunk.delta.tool_calls or ()]
    assert colour(call.function.arguments)
    return "ok"


def forces_by_anthropic(task, endpoint):
    ask = Anthropic(max_retries=0).messages
    asked = {"model": endpoint.model, "max_tokens": 300, "messages": [{"role": "user", "content": "x"}]}
    tools = [{"name": tool["function"]["name"], "input_schema": COLOUR} for tool in TOOLS]
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "paint"}):
        said = ask.create(**asked, tools=tools, tool_choice=choice)
        (block,) = said.content
        assert (said.stop_reason, block.type, colour(block.input)) == ("tool_use", "tool_use", True)
    assert block.name == "paint"
    assert colour(ask.create(**asked, output_config={"format": FORMAT}).content[0].text)
    return "ok"


def forces_by_responses(task, endpoint):
    ask = client(endpoint).responses
    tools = [{"type": "function", **tool["function"], "strict": True} for tool in TOOLS]
    asked = {"model": endpoint.model, "input": "x"}
    for choice in ("required", {"type": "function", "name": "paint"}):
        (item,) = ask.create(**asked, tools=tools, tool_choice=choice, parallel_tool_calls=False).output
        assert (item.type, colour(item.arguments)) == ("function_call", True)
    assert item.name == "paint"
    assert colour(ask.create(**asked, text={"format": {"name": "c", **FORMAT}}).output_text)
    return "ok"


REFUSED_WHEN_FORCED = [
    {"response_format": {"type": "poem"}}, {"response_format": {"type": "json_schema"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "strin"}}}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}},
    {"response_format": {"type": "json_schema", "json_schema": 3}},
    {"response_format": {"type": "json_object"}, "tools": TOOLS},  # it could never call a tool
    {"tool_choice": "required"}, {"tool_choice": ["required"], "tools": TOOLS},
    {"tool_choice": {"type": "function", "function": {"name": "burn"}}, "tools": TOOLS},
    {"tool_choice": {"type": "function", "function": 3}, "tools": TOOLS},
    {"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "x", "parameters": {"$defs": 3}}}]},
]


def is_refused_when_forced(task, endpoint):
    """Asks for what cannot be had; asserts 400 for each, and then asks for what can."""
    asked = {"model": endpoint.model, "messages": [{"role": "user", "content": "x"}]}
    for wrong in REFUSED_WHEN_FORCED:
        with pytest.raises(openai.BadRequestError):
            client(endpoint).chat.completions.create(**asked, **wrong)
    client(endpoint).chat.completions.create(**asked, tool_choice="required", tools=TOOLS, parallel_tool_calls=False)


def goes_on_after_a_forced_call(task, endpoint):
    ask = client(endpoint).chat.completions
    messages = [{"role": "user", "content": "x"}]
    one = {"type": "function", "function": {"name": "mix"}}
    said = ask.create(model=endpoint.model, messages=messages, tools=TOOLS, tool_choice=one).choices[0].message
    messages += [said, {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "green"}]
    ask.create(model=endpoint.model, messages=messages, tools=TOOLS, tool_choice="none", max_tokens=5)


def asks(task, endpoint, content, after=None):
    """One message, once a file is there; its answer is the reply."""
    while after and not after.exists():
        time.sleep(0.01)
    return client(endpoint).chat.completions.create(
        model=endpoint.model, messages=[{"role": "user", "content": content}]).choices[0].message.content


def continues_ids(task, endpoint, ids):
    """Its answer is the completion of token ids."""
    return client(endpoint).completions.create(model=endpoint.model, prompt=ids).choices[0].text


def looks(task, endpoint, images):
    """The task, and after each reply the result of a tool: a text and these images; None is the task's first."""
    messages = list(task.messages)
    own = messages[-1]["content"][0]
    for turn in range(len(images) + 1):
        said = client(endpoint).chat.completions.create(model=endpoint.model, messages=messages).choices[0].message
        messages += [said, {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "so"}, *(
            {"type": "image_url", "image_url": {"url": one}} if one else own for one in images[turn])]}] if (
                turn < len(images)) else []
    return said.content


def compares(task, endpoint, one, other):
    """The same question about two images, each alone."""
    for image in (one, other):
        asks(task, endpoint, [{"type": "image_url", "image_url": {"url": image}}])
    return "same"


def replaces(task, endpoint, one, other):
    """A question about an image, and a second one as if the other had been shown before."""
    ask, messages = client(endpoint).chat.completions, []
    for image, more in ((one, []), (other, [{"role": "user", "content": "?"}])):
        messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": image}}]},
                    *messages[1:], *more]
        messages.append(ask.create(model=endpoint.model, messages=messages).choices[0].message)
    return "same"


def draws(task, endpoint):
    """The answer to a task with images after a look at one that a tool draws of the first reply."""
    messages = list(task.messages)
    own = messages[-1]["content"][0]
    said = client(endpoint).chat.completions.create(model=endpoint.model, messages=messages).choices[0].message
    data = base64.b64encode(png(13, 9, sum(map(ord, said.content)))).decode()
    new = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    messages += [said, {"role": "tool", "tool_call_id": "a", "content": [new, own, {"type": "text", "text": "!"}, new]}]
    return client(endpoint).chat.completions.create(model=endpoint.model, messages=messages).choices[0].message.content
