"""Demonstrations and pairs with tools, calls, thoughts, turns of tools: what is rendered, trained on, and rejected."""

import json
import re
from types import SimpleNamespace

import pytest

from ouroboros.commands.init.command import AGENT, TEMPLATES
from ouroboros.operators.turns import as_tools, as_turns
from ouroboros.pipeline.store import records
from ouroboros.pipeline.store.files import CONF, HOME
from ouroboros.workflows.attempts.schedule import roll_out
from ouroboros.workflows.demonstrations import demonstrations, pairs
from ouroboros.workflows.protocol.outcomes import Sampling
from ouroboros.workflows.protocol.prompts import conversation_text, task_texts
from ouroboros.workflows.task_at_hand import TaskAtHand, unwritable
from ouroboros.workflows.template_rows import task_prompts
from tests.chat_templates import CHATML, CHATML_MARKS, FAMILIES, QWEN3, tokenizer_of
from tests.factories import row
from tests.golden.messages import wording

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
TOOLS = '{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}'
ASKED = {"role": "user", "content": "1+2?"}


def call(a, b, number="call00000"):
    return {"id": number, "type": "function", "function": {"name": "add", "arguments": json.dumps({"a": a, "b": b})}}


CALLS = {"role": "assistant", "content": "", "tool_calls": [call(1, 2)]}
THREE = {"role": "tool", "content": "3", "tool_call_id": "call00000"}
ANSWER = {"role": "assistant", "content": "It is 3."}
TALK = [ASKED, CALLS, THREE, ANSWER]
WRITTEN = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call><|im_end|>'
RESULT = "\n<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
QWEN_ASKED = (f"<|im_start|>system\n# Tools\n{TOOLS}<|im_end|>\n<|im_start|>user\n1+2?<|im_end|>\n"
              "<|im_start|>assistant\n")


def settings(system=None, thinking=None):
    return SimpleNamespace(model=SimpleNamespace(enable_thinking=thinking),
                           buffer=SimpleNamespace(explorer_input=SimpleNamespace(system_prompt=system)))


def shown(template, talk, every_turn=False, tools=(ADD,), thinking=None, marks=CHATML_MARKS, end="<|im_end|>"):
    """(prompt, what follows it with the trained parts in [[ ]]) of each row, as texts; or the reason for none."""
    tokenizer = tokenizer_of(template, marks, end)
    task = row(records.Task, messages=json.dumps({"messages": talk, "tools": list(tools)}))
    (made,) = demonstrations(tokenizer, [task], settings(thinking=thinking), every_turn)
    return made if isinstance(made, str) else [marked(tokenizer, *one) for one in made]


def marked(tokenizer, prompt, tokens, mask):
    assert len(tokens) == len(mask)
    text, inside = "", 0
    for token, own in zip(tokens, mask, strict=True):
        text += ("[[" if own > inside else "]]" if own < inside else "") + tokenizer.decode([token])
        inside = own
    return tokenizer.decode(prompt), text + "]]" * inside


THINKS = [ASKED, {**CALLS, "reasoning_content": "Add."}, THREE, {**ANSWER, "reasoning_content": "So."}]
EMPTY = "<think>\n\n</think>\n\n"


@pytest.mark.parametrize(("talk", "settings", "prompt", "after"), [
    (TALK[:2], {}, QWEN_ASKED, f"[[{EMPTY}{WRITTEN}]]"),
    (TALK[:2], {"thinking": False}, QWEN_ASKED + EMPTY, f"[[{WRITTEN}]]"),  # the empty thought is of the prompt
    (TALK, {}, QWEN_ASKED + WRITTEN + RESULT, f"[[{EMPTY}It is 3.<|im_end|>]]"),
    (THINKS, {"every_turn": True}, QWEN_ASKED,
     f"[[<think>\nAdd.\n</think>\n\n{WRITTEN}]]{RESULT}[[<think>\nSo.\n</think>\n\nIt is 3.<|im_end|>]]")])
def test_calls_answers_and_thoughts_are_trained_in_the_form_of_the_template(talk, settings, prompt, after):
    assert shown(QWEN3, talk, **settings) == [(prompt, after)]


def test_the_template_of_a_new_agent_writes_the_demonstration_that_the_page_gives():
    """docs/agents.md, "Demonstrations with tools"; the recipe of `ouro init agent` names the template."""
    recipe = (TEMPLATES / AGENT / "conf/recipe/project.yaml.j2").read_text(encoding="utf-8")
    template = (CONF / re.search(r"chat_template_path: conf/(\S+)", recipe)[1]).read_text(encoding="utf-8")
    page = (HOME / "docs/agents.md").read_text(encoding="utf-8")
    given = json.loads(re.search(r"```json\n(.*?)```", page, re.DOTALL)[1])
    talk, tools = as_turns(given["messages"]), as_tools(given["tools"])
    ((prompt, said),) = shown(template, talk, True, tools, marks=["<eos>"], end="<eos>")
    assert prompt == ('{"name": "stock", "parameters": {"type": "object", "properties": {"item": {"type": "string"}}}}'
                      "\nHow many lamps are there?:")
    assert said == '[[[stock(item="lamp")]<eos>]]12:[[12<eos>]]'


def test_turns_that_the_template_writes_anew_are_rows_of_their_own():
    """Without a thought the last turn has an empty one, which it loses once it is history."""
    assert shown(QWEN3, TALK, every_turn=True) == [
        (QWEN_ASKED, f"[[<think>\n\n</think>\n\n{WRITTEN}]]"),
        (QWEN_ASKED + WRITTEN + RESULT, "[[<think>\n\n</think>\n\nIt is 3.<|im_end|>]]")]
    later = [ASKED, {**ANSWER, "reasoning_content": "Add."}, {"role": "user", "content": "Sure?"},
             {"role": "assistant", "content": "Yes", "reasoning_content": "Again."}]
    begin = "<|im_start|>user\n1+2?<|im_end|>\n<|im_start|>assistant\n"
    assert shown(QWEN3, later, every_turn=True, tools=()) == [
        (begin, "[[<think>\nAdd.\n</think>\n\nIt is 3.<|im_end|>]]"),
        (begin + "It is 3.<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n",
         "[[<think>\nAgain.\n</think>\n\nYes<|im_end|>]]")]


EXPECTED = {
    "qwen2.5": (f"<|im_start|>system\n[{TOOLS}]<|im_end|>\n<|im_start|>user\n1+2?<|im_end|>\n<|im_start|>assistant\n",
                f"[[{WRITTEN}]]{RESULT}[[It is 3.<|im_end|>]]"),
    "llama3": (f"<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n[{TOOLS}]<|eot_id|>"
               "<|start_header_id|>user<|end_header_id|>\n\n1+2?<|eot_id|>"
               "<|start_header_id|>assistant<|end_header_id|>\n\n",
               '[[{"name": "add", "parameters": {"a": 1, "b": 2}}<|eot_id|>]]'
               '<|start_header_id|>ipython<|end_header_id|>\n\n"3"<|eot_id|>'
               "<|start_header_id|>assistant<|end_header_id|>\n\n[[It is 3.<|eot_id|>]]"),
    "mistral": (f"<s>[AVAILABLE_TOOLS] [{TOOLS}][/AVAILABLE_TOOLS][INST] 1+2?[/INST]",
                '[[[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1, "b": 2}, "id": "call00000"}]</s>]]'
                '[TOOL_RESULTS] {"content": 3, "call_id": "call00000"}[/TOOL_RESULTS][[ It is 3.</s>]]'),
    "deepseek": (f"<｜begin▁of▁sentence｜>[{TOOLS}]<｜User｜>1+2?<｜Assistant｜>",
                 "[[<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n"
                 '{"a": 1, "b": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>]]'
                 "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>3<｜tool▁output▁end｜><｜tool▁outputs▁end｜>"
                 "[[It is 3.<｜end▁of▁sentence｜>]]"),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_turn_in_the_form_of_each_family(name):
    template, marks, end, *_ = FAMILIES[name]
    assert shown(template, TALK, every_turn=True, marks=marks, end=end) == [EXPECTED[name]]


def test_a_template_without_end_token_has_one_after_the_last_turn_alone():
    bare = CHATML.replace("{% endfor %}<|im_end|>\n{% elif", "{% endfor %}\n{% elif")
    (_, after), = shown(bare, TALK, every_turn=True, tools=())
    assert after == f"[[{WRITTEN.removesuffix('<|im_end|>')}]]{RESULT.lstrip()}[[It is 3.<|im_end|>]]"


def test_arguments_are_text_where_a_template_would_write_python():
    text = "{% for m in messages %}{{ m.role }}{% for one in m.tool_calls or [] %}{{ one.function.arguments }}" \
           "{% endfor %}{% endfor %}"
    said = {**CALLS, "tool_calls": [call(1, 2)]}
    assert conversation_text(tokenizer_of(text, CHATML_MARKS, "<|im_end|>"), [said]) == 'assistant{"a": 1, "b": 2}'


NAMELESS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}" \
           "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
FIRST_CALL = CHATML.replace("in m.tool_calls or []", "in (m.tool_calls or [])[:1]")
TWO = {"role": "assistant", "content": "", "tool_calls": [call(1, 2, "call00001"), call(3, 4, "call00002")]}


@pytest.mark.parametrize(("template", "talk", "tools", "words"), [
    (NAMELESS, TALK, (), "turn 2: tool_calls"), (NAMELESS, [ASKED, ANSWER], (ADD,), "tools (format.tools_key)"),
    (CHATML, [ASKED, {**ANSWER, "reasoning_content": "Add."}], (), "turn 2: reasoning_content"),
    (CHATML, [ASKED, {**ANSWER, "weight": 1}], (), "turn 2: weight"),
    (CHATML, [{**ASKED, "name": "Bob"}, ANSWER], (), "turn 1: name"),
    (FIRST_CALL, [ASKED, TWO], (ADD,), "turn 2: tool_calls"),
    (CHATML.replace(" | tojson }}}", ".x }}}"), [ASKED, CALLS], (ADD,), "turn 2: arguments of tool_calls"),
    (CHATML.replace("{{ m.content }}\n</tool", "</tool"), TALK, (ADD,), "turn 3: content"),
    (QWEN3.replace("{{ m.content }}\n{%- for one", "{%- for one"), TALK[:2], (ADD,), None),
    (QWEN3.replace("{{ m.content }}\n{%- for one", "{%- for one"), TALK, (ADD,), "turn 4: content"),
    (QWEN3 + "{% if messages|length > 3 %}{{ raise_exception('too long') }}{% endif %}", TALK, (ADD,), "too long"),
    (FAMILIES["llama3"][0], [ASKED, TWO], (ADD,), "one call at a time"),
    (QWEN3.replace("<think>\n\n</think>", "<think>"), [ASKED, CALLS], (ADD,), None)])
def test_what_the_template_does_not_read_is_the_reason(template, talk, tools, words):
    found = shown(template, talk, tools=tools)
    assert words in found if words else isinstance(found, list)


def test_a_generation_prompt_that_no_turn_begins_with_is_the_reason():
    opens = CHATML.replace("{%- if add_generation_prompt %}<|im_start|>assistant\n",
                           "{%- if add_generation_prompt %}<|im_start|>assistant\n<think>\n")
    wording(shown(opens, TALK[:2]), "turn 2")


def test_without_a_chat_template_calls_are_lost():
    wording(shown(None, TALK, tools=()), "2: tool_calls")


def test_one_row_that_is_refused_leaves_the_others():
    strict = "{% if messages[0].content == 'x' %}{{ raise_exception('no x') }}{% endif %}" + CHATML
    tasks = [row(records.Task, question=text, solution="y") for text in ("a", "x", "b")]
    made = demonstrations(tokenizer_of(strict, CHATML_MARKS, "<|im_end|>"), tasks, settings(), False)
    assert [isinstance(one, str) for one in made] == [False, True, False]
    assert "no x" in made[1]


def test_both_responses_of_a_pair_follow_one_prompt():
    tokenizer = tokenizer_of(QWEN3, CHATML_MARKS, "<|im_end|>")
    thinks = {**CALLS, "reasoning_content": "Add."}
    task = row(records.Task, messages=json.dumps({
        "messages": [ASKED], "tools": [ADD], "chosen": [thinks, THREE, ANSWER],
        "rejected": [{"role": "assistant", "content": "4"}]}))
    ((chosen, rejected),) = pairs(tokenizer, [task], settings())
    assert marked(tokenizer, *chosen) == (QWEN_ASKED, (
        f"[[<think>\nAdd.\n</think>\n\n{WRITTEN}]]{RESULT}[[<think>\n\n</think>\n\nIt is 3.<|im_end|>]]"))
    assert marked(tokenizer, *rejected) == (QWEN_ASKED, "[[<think>\n\n</think>\n\n4<|im_end|>]]")


def test_a_response_that_is_no_single_row_makes_no_pair():
    task = row(records.Task, messages=json.dumps({"messages": [ASKED], "tools": [ADD], "chosen": TALK[1:],
                                                  "rejected": [ANSWER]}))
    (found,) = pairs(tokenizer_of(QWEN3, CHATML_MARKS, "<|im_end|>"), [task], settings())
    assert "chosen" in found


def test_a_prompt_may_end_with_a_tool_and_have_a_system_message():
    task = row(records.Task, messages=json.dumps({"messages": TALK[:3], "tools": [ADD]}))
    (text,) = task_texts(tokenizer_of(QWEN3, CHATML_MARKS, "<|im_end|>"), [task], settings("Be brief."))
    assert text == QWEN_ASKED.replace("# Tools", "Be brief.\n\n# Tools") + WRITTEN + RESULT


def test_a_task_whose_prompt_cannot_be_written_fails_with_the_reason_and_no_other():
    lost = row(records.Task, question="3", messages=json.dumps({"messages": TALK[:3]}))
    plain = row(records.Task, question="1+2?")
    texts, reasons = task_prompts(tokenizer_of(NAMELESS, CHATML_MARKS, "<|im_end|>"), [plain, lost], settings())
    assert texts == ["<|im_start|>user\n1+2?<|im_end|>\n<|im_start|>assistant\n", "3"]
    assert list(reasons) == [1]
    assert "turn 2: tool_calls" in reasons[1]
    (outcome,) = roll_out(None, [unwritable(reasons[1])], [[1]], [0], [Sampling(1.0, 1.0, -1, 8, 8, 16)])
    assert outcome.status == "workflow_failed"
    assert reasons[1] in outcome.reason


def test_the_task_that_a_workflow_gets_has_the_whole_conversation(settings):
    task = row(records.Task, question="3", answer="3", messages=json.dumps({"messages": TALK[:3], "tools": [ADD]}))
    at_hand = TaskAtHand(task, [], tokenizer_of(QWEN3, CHATML_MARKS, "<|im_end|>"), settings())
    assert (at_hand.messages, at_hand.tools, at_hand.answer) == (TALK[:3], [ADD], "3")
    asked = tokenizer_of(QWEN3, CHATML_MARKS, "<|im_end|>").decode(at_hand.prompt(TALK[:3]))
    assert asked == QWEN_ASKED + WRITTEN + RESULT


TRIMS = CHATML.replace("{% set content = m.content %}", "{% set content = m.content | trim %}")
SAYS = [ASKED, {**CALLS, "content": "Let me see."}]


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(("other", "template", "reason"), [
    ([ASKED, {**CALLS, "content": "\n\n"}], TRIMS, None),
    ([ASKED, {**CALLS, "content": "<a>"}], TRIMS.replace("| trim", "| replace('<a>', '')"), "turn 2: "),
    ([ASKED, {**CALLS, "content": "Let me see.", "weight": 0}], TRIMS, "turn 2: weight")])
def test_what_one_conversation_leaves_unread_decides_for_no_other(place, other, template, reason):
    """Blank content is not missed; each row is judged as it would be alone."""
    talks = [SAYS, SAYS]
    talks.insert(place, other)
    tasks = [row(records.Task, messages=json.dumps({"messages": talk, "tools": [ADD]})) for talk in talks]
    made = demonstrations(tokenizer_of(template, CHATML_MARKS, "<|im_end|>"), tasks, settings(), False)
    refused = {number: one for number, one in enumerate(made) if isinstance(one, str)}
    assert set(refused) == ({place} if reason else set())
    assert all(one.startswith(reason) for one in refused.values())
