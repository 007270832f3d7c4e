"""What OpenAI's client loads and builds at its first request, done before attempts are forked.

The package imports its resources and builds pydantic's validators when they are first used. In a process that was just
forked that is 0.1 s of a core for each attempt, several times what a short agent computes itself.
"""

import asyncio
import contextlib
import inspect
import logging
import sys
from functools import cache, partial

SAID = {"role": "assistant", "content": "-", "tool_calls": [
    {"id": "-", "type": "function", "function": {"name": "-", "arguments": "{}"}}]}
COMPLETION = {"id": "-", "object": "chat.completion", "created": 0, "model": "-",
              "choices": [{"index": 0, "finish_reason": "stop", "message": SAID}],
              "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}}
REQUEST = {"model": "-", "messages": [{"role": "user", "content": "-"}],
           "tools": [{"type": "function", "function": {"name": "-"}}]}


def warm_clients() -> None:
    """Makes a request that leaves the process by no socket, once, if a module has imported the package openai."""
    if "openai" in sys.modules:
        _once()


@cache
def _once() -> None:
    level = logging.root.manager.disable
    logging.disable()  # a module that logs requests would log those of nobody
    try:
        with contextlib.suppress(Exception):  # a release made otherwise, a proxy's malformed address: slower attempts
            _requests()
    finally:
        logging.disable(level)


def _requests() -> None:
    import httpx2
    import openai

    transport = httpx2.MockTransport(lambda request: httpx2.Response(200, json=COMPLETION))
    given = {"base_url": "http://127.0.0.1", "api_key": "-", "max_retries": 0}
    openai.OpenAI(**given).close()  # the usual transport is imported by the first client
    with openai.OpenAI(**given, http_client=httpx2.Client(transport=transport)) as client:
        _own_create(client.chat.completions)(**REQUEST)

    async def request() -> None:
        async with openai.AsyncOpenAI(**given, http_client=httpx2.AsyncClient(transport=transport)) as client:
            await _own_create(client.chat.completions)(**REQUEST)

    loop = asyncio.new_event_loop()  # asyncio.run would leave asyncio.get_event_loop() of an attempt without one
    try:
        loop.run_until_complete(request())
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())  # its thread, too, is gone before a fork
        loop.close()


def _own_create(completions):
    """The package's own method: around it a module may have put one that traces or counts requests."""
    return partial(inspect.unwrap(type(completions).create), completions)
