"""Tool calls in a model's text, read by vLLM's own parsers (`--tool-call-parser` of `vllm serve`)."""

import logging
from collections.abc import Sequence
from functools import cache

from ouroboros.pipeline.store.errors import ConfigError, nearest


def tool_calls(name: str, tokenizer, text: str, tools: Sequence[dict]) -> tuple[str, list[tuple[str, str]]]:
    """Content of a reply, and (name, arguments as JSON) of its tool calls. tools: of the request, in OpenAI's form."""
    parser, chat_request = _parser(name)
    request = chat_request(messages=[{"role": "user", "content": ""}], tools=list(tools) or None)
    try:
        reader = parser(tokenizer, request.tools)
    except (RuntimeError, ValueError) as error:  # the tokenizer lacks the tokens of that format
        raise ConfigError(f"explorer.tool_call_parser={name} does not fit the model: {error}") from error
    try:
        found = reader.extract_tool_calls(text, request)
    except NotImplementedError as error:  # some of vLLM's read whole replies in another way only
        raise ConfigError(f"explorer.tool_call_parser={name} reads no tool calls here: {error}") from error
    except Exception:  # of whatever a policy may write, such as brackets a thousand deep: a malformed call is content
        return text, []
    return found.content or "", [(one.function.name, one.function.arguments) for one in found.tool_calls]


@cache
def import_parsers() -> None:
    """Imports what reads tool calls, which takes ten seconds: outside of a loop that answers requests."""
    import vllm.entrypoints.openai.chat_completion.protocol
    import vllm.tool_parsers  # noqa: F401


@cache
def _parser(name: str) -> tuple[type, type]:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    logging.getLogger("vllm.tool_parsers").setLevel(logging.CRITICAL)  # a malformed call is content, no error
    try:
        return ToolParserManager.get_tool_parser(name), ChatCompletionRequest
    except KeyError as error:
        known = ToolParserManager.list_registered()
        raise ConfigError(f"explorer.tool_call_parser={name}: vLLM has no such parser; it has {', '.join(known)}."
                          f"{nearest(name, known)}") from error
