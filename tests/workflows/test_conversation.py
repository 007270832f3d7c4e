"""Token-in, token-out over the chat templates of model families, as their documentation describes the formats."""

import json
from types import SimpleNamespace

import pytest

from ouroboros.pipeline.store.errors import ConfigError, DataError
from ouroboros.pipeline.store.files import HOME
from ouroboros.workflows.endpoint import conversation
from ouroboros.workflows.endpoint.chat import Chat
from ouroboros.workflows.endpoint.conversation import Conversation
from ouroboros.workflows.endpoint.dialect import Ask
from ouroboros.workflows.engines.vllm_tools import tool_calls
from ouroboros.workflows.protocol.engine import Reply
from tests.chat_templates import CHATML, CHATML_MARKS, FAMILIES, tokenizer_of
from tests.chat_templates import QWEN3 as THINKS
from tests.golden.messages import refuses

pytestmark = pytest.mark.slow  # vLLM's parsers take ten seconds to import

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {
    "a": {"type": "integer"}, "b": {"type": "integer"}}}}}
ASKED = {"role": "user", "content": "1+2?"}


class Played:
    """A conversation whose replies are given as text."""

    def __init__(self, template, marks, end, **more):
        self.tokenizer, self.end = tokenizer_of(template, marks, end), end
        settings = SimpleNamespace(enable_thinking=more.get("thinking"))
        self.conversation = Conversation(self.tokenizer, settings, more.get("parser"), tool_calls)
        self.number = 0

    def turn(self, messages, said, tools=(ADD,), ended=True, **more):
        """The prompt as text, whether it was tokenized again, and what the client sees."""
        ask = Ask("chat.completions", list(messages), list(tools), **more)
        prompt = self.conversation.prompt(ask)
        tokens = self.tokenizer(said + self.end * ended, add_special_tokens=False)["input_ids"]
        reply = Reply(tokens, [-1.0] * len(tokens), "stop" if ended else "length")
        choice = self.conversation.record(self.number, ask, prompt, reply)
        self.number += 1
        return self.tokenizer.decode(prompt.tokens), prompt.retokenized, choice


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tool_call_is_read_and_its_tokens_stay_as_sampled(family):
    template, marks, end, said, after = FAMILIES[family]
    played = Played(template, marks, end)
    first, _, choice = played.turn([ASKED], said)
    assert choice.finish == "tool_calls"
    ((id_, name, arguments),) = choice.calls
    assert (name, json.loads(arguments)) == ("add", {"a": 1, "b": 2})
    result = {"role": "tool", "tool_call_id": id_, "content": "3"}
    prompt, retokenized, choice = played.turn([ASKED, choice.message, result], "It is 3.")
    assert (prompt, retokenized) == (first + said + end + after, False)
    assert (choice.text, choice.calls, choice.finish) == ("It is 3.", [], "stop")
    (row,) = played.conversation.rows()
    assert played.tokenizer.decode(row.response_tokens) == said + end + after + "It is 3." + end
    assert sum(row.action_mask) == len(played.tokenizer(said + end + "It is 3." + end)["input_ids"])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reply_that_was_cut_off_gets_the_end_of_its_turn(family):
    template, marks, end, *_ = FAMILIES[family]
    played = Played(template, marks, end)
    first, _, choice = played.turn([ASKED], "It is", tools=(), ended=False)
    more = [ASKED, choice.message, {"role": "user", "content": "Go on."}]
    prompt, retokenized, _ = played.turn(more, "3", tools=())
    assert prompt.startswith(first + "It is" + end)
    assert not retokenized


def test_a_template_that_drops_thoughts_begins_a_row():
    played = Played("{% set thinks = true %}" + CHATML, CHATML_MARKS, "<|im_end|>")
    first, _, choice = played.turn([ASKED], "<think>\nhm\n</think>\n\n3", tools=())
    more = [ASKED, choice.message, {"role": "user", "content": "Sure?"}]
    prompt, retokenized, _ = played.turn(more, "Yes", tools=())
    assert (prompt, retokenized) == (
        first + "3<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n", True)
    assert len(played.conversation.rows()) == 2


def test_thoughts_stay_within_a_loop_of_tool_calls():
    played = Played("{% set thinks = true %}" + CHATML, CHATML_MARKS, "<|im_end|>")
    said = "<think>\nadd\n</think>\n\n" + FAMILIES["qwen2.5"][3]
    first, _, choice = played.turn([ASKED], said)
    result = {"role": "tool", "tool_call_id": choice.calls[0][0], "content": "3"}
    prompt, retokenized, _ = played.turn([ASKED, choice.message, result], "3")
    assert prompt.startswith(first + said + "<|im_end|>")
    assert not retokenized


QWEN3 = CHATML.replace("""assistant
{% endif %}""", """assistant
{% if enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}""")
OPENED = CHATML.replace("""assistant
{% endif %}""", """assistant
<think>
{% endif %}""")  # the history shows the content as it is
CHANNEL = """{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant<|channel|>final<|message|>{% endif %}"""


def test_six_tool_calls_without_thinking_are_one_row():
    """Qwen3 with enable_thinking=false: the empty thought of the generation prompt is not in the history."""
    played, messages, sampled = Played(QWEN3, CHATML_MARKS, "<|im_end|>", thinking=False), [ASKED], []
    for number in range(7):
        said = f'<tool_call>\n{{"name": "add", "arguments": {{"a": {number},"b":2}}}}\n</tool_call>' * (number < 6)
        said = said or "Done."
        prompt, retokenized, choice = played.turn(messages, said)
        assert prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
        assert not retokenized
        sampled.append(said + "<|im_end|>")
        messages = [*messages, choice.message]
        if choice.calls:
            messages.append({"role": "tool", "tool_call_id": choice.calls[0][0], "content": "3"})
    (row,) = played.conversation.rows()
    own = [token for token, mask in zip(row.response_tokens, row.action_mask, strict=True) if mask]
    assert played.tokenizer.decode(own) == "".join(sampled)
    assert [p for p, mask in zip(row.logprobs, row.action_mask, strict=True) if mask] == [-1.0] * len(own)
    assert played.tokenizer.decode(row.response_tokens).count("<think>") == 6
    assert played.tokenizer.decode(row.prompt_tokens).count("<think>") == 1


@pytest.mark.parametrize(("template", "marks", "end", "said"), [
    (QWEN3, CHATML_MARKS, "<|im_end|>", "3"),
    (QWEN3, CHATML_MARKS, "<|im_end|>", "<b>3</b>"),  # begins as the dropped thought does
    (OPENED, CHATML_MARKS, "<|im_end|>", "one and two</think>3"),
    (CHANNEL, ["<|start|>", "<|message|>", "<|channel|>", "<|end|>"], "<|end|>", "3")])
def test_what_the_generation_prompt_adds_stays_in_the_row(template, marks, end, said):
    played = Played(template, marks, end, thinking=False)
    first, _, choice = played.turn([ASKED], said, tools=())
    more = [ASKED, choice.message, {"role": "user", "content": "Sure?"}]
    prompt, retokenized, _ = played.turn(more, "Yes", tools=())
    assert prompt.startswith(first + said + end)
    assert not retokenized
    assert len(played.conversation.rows()) == 1
    rewritten = [ASKED, {"role": "assistant", "content": "4"}, *more[2:]]
    assert played.turn(rewritten, "Yes", tools=())[1]


def test_a_template_that_drops_an_opened_thought_begins_a_row():
    """DeepSeek-R1: the history has only what follows the thought."""
    strips = OPENED.replace("{% set content = m.content %}", '{% set content = m.content.split("</think>")[-1] %}')
    played = Played(strips, CHATML_MARKS, "<|im_end|>")
    _, _, choice = played.turn([ASKED], "one and two</think>3", tools=())
    more = [ASKED, choice.message, {"role": "user", "content": "Sure?"}]
    assert played.turn(more, "</think>Yes", tools=())[1]


def test_a_malformed_call_is_text():
    played = Played(*FAMILIES["qwen2.5"][:3])
    _, _, choice = played.turn([ASKED], "<tool_call>\n{add 1 2}\n</tool_call>")
    assert (choice.calls, choice.finish) == ([], "stop")
    assert "{add 1 2}" in choice.text
    _, _, choice = played.turn([ASKED], FAMILIES["qwen2.5"][3] + "<|im_start|>", tools=())  # without tools it is none
    assert (choice.calls, choice.text) == ([], FAMILIES["qwen2.5"][3])
    _, _, choice = played.turn([ASKED], FAMILIES["qwen2.5"][3], calls_tools=False)  # tool_choice none
    assert (choice.calls, choice.text) == ([], FAMILIES["qwen2.5"][3])


@pytest.mark.parametrize("parser", [
    "hermes", "pythonic", "llama4_pythonic", "olmo3", "xlam", "phi4_mini_json", "granite", "qwen3_coder", "mistral"])
@pytest.mark.parametrize("opened", ["[", '{"a":', "(", "[add(a=", "-"])
def test_brackets_without_an_end_are_content_with_every_parser(parser, opened):
    tokenizer = tokenizer_of(CHATML, [*CHATML_MARKS, "[TOOL_CALLS]", "[ARGS]"], "<|im_end|>")
    for before in ("", "<tool_call>", "[TOOL_CALLS]add[ARGS]", '<tool_call>{"name": "add", "arguments": '):
        for depth in (150, 4000):
            text, calls = tool_calls(parser, tokenizer, before + opened * depth, [ADD])
            assert isinstance(text, str)
            assert all(name == "add" for name, _ in calls)


def test_a_parser_that_vllm_only_names_is_refused():
    with refuses(ConfigError, "explorer.tool_call_parser=openai"):
        tool_calls("openai", tokenizer_of(CHATML, CHATML_MARKS, "<|im_end|>"), "3", [ADD])


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_thoughts_that_a_client_sends_back_are_written(field):
    body = {"model": "policy", "tools": [ADD], "messages": [
        ASKED, {"role": "assistant", "content": "3", field: "one and two"}, {"role": "tool", "content": "3"}]}
    prompt = Played(THINKS, CHATML_MARKS, "<|im_end|>").conversation.prompt(Chat().read(body))
    assert "<think>\none and two\n</think>\n\n3<|im_end|>" in prompt.text


def test_what_a_client_sends_and_the_template_does_not_write_is_named(caplog):
    conversation._warn.cache_clear()
    template = (HOME / "conf/chat_template/pythonic.jinja").read_text(encoding="utf-8")
    thinks = [ASKED, {"role": "assistant", "content": "3", "reasoning_content": "Add."}, ASKED]
    for messages, tools, what in (([ASKED], (), ""), (thinks, (), "reasoning_content"), ([ASKED], (ADD,), "tools")):
        caplog.clear()
        for _ in range(2):  # said once
            Played(template, ["<eos>"], "<eos>", parser="pythonic").turn(messages, "3", tools=tools)
        assert [what in record.getMessage() for record in caplog.records] == [True] * bool(what)


def test_without_a_template_the_prompt_is_the_plain_turns_as_in_training():
    played = Played(None, ["<|im_end|>"], "<|im_end|>")
    assert played.turn([{"role": "system", "content": "Add."}, ASKED], "3", tools=())[:2] == ("Add.\n\n1+2?", False)
    said = [ASKED, {"role": "assistant", "content": "3"}, {"role": "user", "content": "Sure?"}]
    assert played.turn(said, "Yes", tools=())[:2] == ("1+2?\n\n3\n\nSure?", True)
    with refuses(DataError, "tools"):
        played.turn([ASKED], "3")
