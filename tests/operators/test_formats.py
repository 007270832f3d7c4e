"""Records of data files as raw tasks: texts, conversations, demonstrations, pairs, and what is wrong with some."""

import json
import math
from datetime import date, datetime
from decimal import Decimal

import pytest

from ouroboros.operators.formats import ABSENT, Unusable, as_turns, column_names, look_up, read_records, text_of
from ouroboros.pipeline.settings.data import BufferFormat, TaskFormat
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.records import RawTask
from tests.golden.messages import refuses, wording


def read(records, purpose="task", **columns):
    kind = BufferFormat if purpose == "demonstration" else TaskFormat
    return list(read_records(records, kind(**columns), purpose, "a.jsonl", 0))


def turns(*pairs):
    """turns("u", "hello", ...) by the first letter of the role."""
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": names[role], "content": text} for role, text in zip(pairs[::2], pairs[1::2], strict=True)]


@pytest.mark.parametrize(("said", "margin"), [(2, 2.0), (0.5, 0.5), (0, 0.0), (-1, None), (None, None), ("2", None),
                                              (True, None), (math.inf, None), (ABSENT, None)])
def test_a_margin_is_a_number_of_at_least_zero(said, margin):
    record = {"prompt": "q", "chosen": "c", "rejected": "r", **({} if said is ABSENT else {"m": said})}
    (made,) = read([record], "demonstration", margin_key="m")
    assert (made.margin, made.problem is None) == (margin, margin is not None)
    assert read([record], "demonstration")[0].margin is None
    (of_pool,) = read([record | {"question": "q", "answer": "c"}], margin_key="m")
    assert (of_pool.margin, of_pool.problem is None) == (margin, margin is not None)


VERL = {"data_source": "openai/gsm8k", "prompt": turns("s", "Think.", "u", "1 + 1?"),
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"answer": "one and one\n#### 2", "index": 7}}
OF_VERL = {"prompt_type": "messages", "prompt_key": "prompt", "response_key": "reward_model.ground_truth"}


def test_a_plain_record_and_a_demonstration_which_is_its_own_truth():
    (made,) = read([{"question": "1 + 1?", "answer": "2", "solution": "1 + 1 = 2"}])
    assert made == RawTask(0, "1 + 1?", "2", "1 + 1 = 2")
    assert read([{"prompt": "1 + 1?", "response": "2"}], "demonstration") == [RawTask(0, "1 + 1?", "2", "2")]


def test_what_is_no_text_is_json_and_nulls_stay_null_for_curation_to_tell():
    (made,) = read([{"question": 12, "answer": {"numbers": [3, 5], "target": 8}}])
    assert (made.question, made.answer, made.solution) == ("12", '{"numbers": [3, 5], "target": 8}', None)
    (made,) = read([{"question": None, "answer": None}])
    assert (made.question, made.answer, made.problem) == (None, None, None)


@pytest.mark.parametrize(("value", "text"), [
    (Decimal("1.50"), "1.50"), (date(2026, 1, 2), "2026-01-02"), (datetime(2026, 1, 2, 3, 4), "2026-01-02 03:04:00"),
    ([Decimal("1.50"), None], '["1.50", null]'), (True, "true"), (2**70, "1180591620717411303424")])
def test_a_value_that_json_lacks_has_no_quotes(value, text):
    assert text_of(value) == text


@pytest.mark.parametrize(("record", "columns"), [
    ({"question": ""}, {}), ({"question": " \n"}, {}), ({"question": []}, {}), ({"question": ["a", "b"]}, {}),
    ({"question": "", "s": "Be brief."}, {"system_prompt_key": "s"}),
    ({"m": turns("s", "Think.", "u", " ")}, {"prompt_type": "messages", "messages_key": "m"})])
def test_a_prompt_that_asks_for_nothing_cannot_be_used(record, columns):
    (bad, fine) = read([{**record, "answer": "1"}, {"question": "q", "s": "x", "m": turns("u", "q"), "answer": "1"}],
                       **columns)
    assert bad.problem
    assert fine.problem is None


def test_a_key_may_lead_into_structs_and_may_have_a_dot_itself():
    assert look_up(VERL, "extra_info.answer") == "one and one\n#### 2"
    assert look_up({"a.b": 1, "a": {"b": 2}}, "a.b") == 1
    assert column_names({"a": {"b": {"c": 1}}, "d": 2}) == ["a", "a.b", "a.b.c", "d"]


def test_a_record_of_verl_keeps_its_whole_prompt():
    (made,) = read([VERL], **OF_VERL)
    assert made == RawTask(0, "1 + 1?", "2", None, turns("s", "Think."))


def test_a_conversation_keeps_every_turn_before_the_last():
    talk = turns("u", "Hello", "a", "Hello!", "u", "1 + 1?")
    (made,) = read([{"talk": json.dumps(talk), "answer": "2"}], prompt_type="messages", messages_key="talk")
    assert (made.question, made.context) == ("1 + 1?", talk[:2])


def test_the_system_message_of_a_row_wins_over_that_of_the_format():
    rows = [{"question": "q", "answer": "a", "rules": "Be brief."}, {"question": "q", "answer": "a", "rules": None},
            {"question": "q", "answer": "a"}]
    made = read(rows, system_prompt_key="rules", system_prompt="Think.")
    assert [row.context for row in made] == [turns("s", "Be brief."), turns("s", "Think."), turns("s", "Think.")]
    assert [row.context for row in read(rows[1:], system_prompt="Think.")] == [turns("s", "Think.")] * 2


def test_the_last_turn_of_the_assistant_is_the_response():
    talk = turns("s", "Think.", "u", "Hello", "a", "Hello!", "u", "1 + 1?", "a", "2")
    (made,) = read([{"messages": talk}], "demonstration", prompt_type="messages", messages_key="messages")
    assert made == RawTask(0, "1 + 1?", "2", "2", talk[:3])


def test_messages_that_end_with_the_user_take_the_response_column():
    records = [{"prompt": turns("u", "1 + 1?"), "response": "2"}, {"prompt": turns("u", "1 + 1?")}]
    first, second = read(records, "demonstration", prompt_type="messages")
    assert first == RawTask(0, "1 + 1?", "2", "2")
    wording(second.problem, "'response'")


def test_pairs_as_texts_as_messages_and_beside_their_conversation():
    plain, talk = read([{"prompt": "1 + 1?", "chosen": "2", "rejected": "3"}], "demonstration"), read(
        [{"prompt": "1 + 1?", "chosen": turns("u", "1 + 1?", "a", "2"), "rejected": turns("a", "3")[0]}],
        "demonstration")
    assert plain == talk == [RawTask(0, "1 + 1?", "2", None, [], "2", "3")]
    talk = turns("u", "1 + 1?", "a", "2")
    (made,) = read([{"messages": talk, "chosen": talk, "rejected": turns("u", "1 + 1?", "a", "3")}], "demonstration",
                   prompt_type="messages", messages_key="messages")
    assert made == RawTask(0, "1 + 1?", "2", None, [], "2", "3")


@pytest.mark.parametrize(("value", "words"), [
    ("hello", "text where messages are needed: 'hello'"), (None, "messages are null"), ([], "messages are empty"),
    ({"role": "user", "content": "q"}, "needed a list of {role, content}"), ([1], "turn 1 is"),
    ([{"speaker": "human", "value": "q"}], "turn 1 has speaker, value; needed role and content"),
    ([{"role": "human", "content": "q"}], "turn 1: role 'human'; needed one of system, user, assistant, tool"),
    ([{"role": "user", "content": [{"type": "audio"}]}], "turn 1: content has parts audio; needed text"),
    ([{"role": "user", "content": None}], "turn 1: content is null"),
    (turns("s", "Think."), "the prompt ends with a turn of system; needed one of user or tool"),
    (turns("u", "q", "a", "answered"), "ends with a turn of assistant; needed one of user")])
def test_a_prompt_that_is_no_conversation_is_a_row_with_its_reason(value, words):
    good = {"prompt": turns("u", "q"), "reward_model": {"ground_truth": "2"}}
    bad, fine = read([{**good, "prompt": value}, good], **OF_VERL)
    assert words in bad.problem
    assert (bad.question, bad.row) == (None, 0)
    assert (fine.problem, fine.row) == (None, 1)


@pytest.mark.parametrize(("record", "words"), [
    ({"messages": turns("a", "answered")}, "the conversation has no turn of user"),
    ({"messages": turns("s", "Think.", "a", "answered")}, "ends with a turn of system; needed one of user"),
    ({"messages": turns("u", "q", "t", "42")}, "no response"),
    ({"messages": turns("u", "q"), "chosen": turns("u", "q"), "rejected": "r"}, "a response ends with a turn of user"),
    ({"messages": turns("u", "q"), "chosen": turns("u", "other", "a", "c"), "rejected": "r"}, "a response begins with"),
    ({"messages": turns("t", "42"), "response": "r"}, "the conversation has no turn of user")])
def test_a_conversation_that_shows_nothing_is_a_row_with_its_reason(record, words):
    (made,) = read([record], "demonstration", prompt_type="messages", messages_key="messages")
    assert words in made.problem


def test_messages_under_a_key_of_plain_text_are_told():
    (made,) = read([{"question": turns("u", "q"), "answer": "a"}])
    wording(made.problem, "format.prompt_type=messages")


def test_one_record_without_a_key_is_a_row_with_its_reason():
    rows = read([VERL, {**VERL, "reward_model": {"style": "rule"}}, {**VERL, "reward_model": None}], **OF_VERL)
    wording([[row.problem for row in rows]], "reward_model.ground_truth")


def test_a_key_that_no_record_has_names_the_file_what_there_is_and_the_nearest():
    with refuses(DataError, "a.jsonl", "'reward_model.ground_trut'", "data_source",
                 "reward_model, reward_model.style, reward_model.ground_truth"):
        read([VERL], **OF_VERL | {"response_key": "reward_model.ground_trut"})
    for columns, setting in (({"prompt_key": "problem"}, "prompt_key"),
                             ({"system_prompt_key": "r"}, "system_prompt_key"),
                             ({"prompt_type": "messages", "messages_key": "m"}, "messages_key")):
        with refuses(DataError, f"Set format.{setting}"):
            read([{"question": "q", "answer": "a"}], **columns)
    with refuses(DataError, "'response'", "Set format.response_key"):
        read([{"prompt": "q", "reply": "a"}], "demonstration")


def test_half_a_pair_is_none():
    (made,) = read([{"prompt": "q", "response": "r", "chosen": "c", "rejected": None}], "demonstration")
    assert (made.solution, made.chosen, made.rejected) == ("r", None, None)


def test_the_truth_beside_a_demonstration_or_a_pair_is_its_answer():
    (pair, without) = read([{"prompt": "3=1 2", "answer": {"target": 3}, "chosen": "1+2", "rejected": "2-1"},
                            {"prompt": "3=1 2", "chosen": "1+2", "rejected": "2-1"}], "demonstration")
    assert (pair.answer, pair.chosen, without.answer) == ('{"target": 3}', "1+2", "1+2")
    (shown,) = read([{"prompt": "3=1 2", "truth": "3", "response": "1+2"}], "demonstration", truth_key="truth")
    assert (shown.answer, shown.solution) == ("3", "1+2")
    (shown,) = read([{"prompt": "3=1 2", "answer": "3", "response": "1+2"}], "demonstration", truth_key=None)
    assert (shown.answer, shown.solution) == ("1+2", "1+2")


def test_text_that_cannot_be_stored_is_a_row_with_its_reason():
    (made,) = read([{"question": "\ud800", "answer": "a"}])
    assert "no valid Unicode" in made.problem
    (made,) = read([{**VERL, "prompt": turns("s", "\ud800", "u", "q")}], **OF_VERL)
    assert "no valid Unicode" in made.problem


def test_of_a_turn_what_says_something_is_kept():
    assert as_turns([{"role": "user", "content": "q", "name": " ", "tool_calls": None, "call": {"id": None}}]) == turns(
        "u", "q")
    assert as_turns([{"role": "assistant", "content": None, "reasoning_content": "hm"}]) == [
        {"role": "assistant", "content": "", "reasoning_content": "hm"}]


@pytest.mark.parametrize(("turn", "more", "words"), [
    ({"role": "assistant", "content": [{"type": "text", "text": "3"}, {"type": "image_url"}]}, {}, "turn of assistant"),
    ({"role": "assistant", "content": None}, {}, "null"), ({"role": "alien", "content": "3"}, {}, "role 'alien'"),
    ({"role": "assistant", "content": "3"}, {"tools": [{"type": "function"}]}, "tools: number 1 names no function"),
    ({"role": "assistant", "content": "3"}, {"tools": {"add": {}, "b": 1}}, "tools are {"),
    ({"role": "assistant", "content": "3"}, {"tools": "add"}, "tools are the text 'add'"),
    ({"role": "assistant", "content": "3"}, {"images": ["a.png"]}, "images")])
def test_what_training_would_leave_out_makes_a_record_unusable(turn, more, words):
    record = {"messages": [{"role": "user", "content": "<image> 1+2?"}, turn], **more}
    columns = BufferFormat(prompt_type="messages", prompt_key="messages")
    (made,) = read_records([record], columns, "demonstration", "f.jsonl", 0)
    assert words in made.problem
    assert made.question is None


def test_text_parts_and_empty_fields_of_columnar_files_are_read():
    parts = [{"type": "text", "text": "1+"}, {"type": "text", "text": "2?"}]
    record = {"messages": [{"role": "user", "content": parts, "tool_calls": None, "name": ""},
                           {"role": "assistant", "content": "3", "tool_calls": []}], "images": None}
    columns = BufferFormat(prompt_type="messages", prompt_key="messages")
    (made,) = read_records([record], columns, "demonstration", "f", 0)
    assert (made.question, made.solution, made.problem) == ("1+2?", "3", None)


def call(arguments='{"a": 1}', **more):
    return {"id": "c1", "type": "function", "function": {"name": "add", "arguments": arguments}, **more}


ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
ASKED, CALLS = {"role": "user", "content": "1+2?"}, {"role": "assistant", "content": None, "tool_calls": [call()]}
THREE, ANSWER = {"role": "tool", "content": "3", "tool_call_id": "c1"}, {"role": "assistant", "content": "It is 3."}
KEPT = {"role": "assistant", "content": "", "tool_calls": [call()]}


def demonstration(record, file="a.jsonl", **columns):
    given = BufferFormat(prompt_type="messages", prompt_key="messages", **columns)
    (made,) = read_records([record], given, "demonstration", file, 0)
    assert made.problem is None
    return made


def test_a_conversation_with_tools_is_kept_whole_beside_its_texts():
    made = demonstration({"messages": [ASKED, CALLS, THREE, ANSWER], "tools": json.dumps([ADD])})
    assert (made.question, made.solution, made.answer) == ("3", "It is 3.", "It is 3.")
    assert made.context == turns("u", "1+2?", "a", json.dumps([call()]))
    assert json.loads(made.messages) == {"messages": [ASKED, KEPT, THREE, ANSWER], "tools": [ADD]}


def test_a_call_is_a_response():
    made = demonstration({"messages": [ASKED, CALLS]})
    assert (made.question, json.loads(made.solution)) == ("1+2?", [call()])
    assert json.loads(made.messages) == {"messages": [ASKED, KEPT]}


def test_a_prompt_of_a_task_may_end_with_a_tool_and_have_tools_under_a_key():
    record = {"prompt": [ASKED, CALLS, THREE], "answer": "3", "functions": [ADD["function"]]}
    (made,) = read([record], prompt_type="messages", prompt_key="prompt", tools_key="functions")
    assert (made.question, made.answer) == ("3", "3")
    assert json.loads(made.messages) == {"messages": [ASKED, KEPT, THREE], "tools": [ADD]}


@pytest.mark.parametrize(("tools", "messages"), [
    ([ADD], {"messages": [ASKED], "tools": [ADD]}), (None, None), ([], None)])
def test_a_plain_prompt_has_the_tools_of_its_row(tools, messages):
    (made,) = read([{"question": "1+2?", "answer": "3", "tools": tools}])
    assert (made.question, made.problem) == ("1+2?", None)
    assert (made.messages and json.loads(made.messages)) == messages


@pytest.mark.parametrize(("given", "kept"), [
    ({"tool_calls": json.dumps([call()])}, [call()]), ({"tool_calls": [call({"a": 1})]}, [call()]),
    ({"tool_calls": [call('{"a":1}')]}, [call('{"a":1}')]), ({"tool_calls": [call("")]}, [call("{}")]),
    ({"tool_calls": [{"name": "add", "arguments": {"a": 1}}]}, [{k: v for k, v in call().items() if k != "id"}]),
    ({"function_call": {"name": "add", "arguments": '{"a": 1}'}}, [{k: v for k, v in call().items() if k != "id"}])])
def test_calls_are_brought_to_one_form(given, kept):
    (turn,) = as_turns([{"role": "assistant", "content": None, **given}])
    assert turn == {"role": "assistant", "content": "", "tool_calls": kept}


def test_turns_of_sharegpt_are_read_as_messages():
    """A call, or a list of calls, is JSON in a turn of function_call."""
    talk = [{"from": "system", "value": "Be brief."}, {"from": "human", "value": "1+2?", "weight": 0.0},
            {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 1}}'},
            {"from": "observation", "value": "3"}, {"from": "gpt", "value": "It is 3.", "reasoning_content": "1+2",
                                               "weight": 1.0}, {"from": "gpt", "value": "No.", "weight": 0}]
    assert as_turns(talk) == [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+2?"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}]},
        {"role": "tool", "content": "3"}, {"role": "assistant", "content": "It is 3.", "reasoning_content": "1+2"},
        {"role": "assistant", "content": "No.", "weight": 0}]
    for turn in ({"from": ["human"], "value": "x"}, {"from": "function_call", "value": "add("},
                 {"from": "narrator", "value": "x"}):
        with pytest.raises(Unusable):
            as_turns([turn])


def test_a_turn_of_tool_answers_the_only_call():
    talk = [ASKED, CALLS, {"role": "function", "name": "add", "content": "3"}]
    assert as_turns(talk)[-1] == {"role": "tool", "content": "3", "name": "add", "tool_call_id": "c1"}


TWO = {"role": "assistant", "content": "", "tool_calls": [call(), call(id="c2")]}


@pytest.mark.parametrize(("talk", "words"), [
    ([{**CALLS, "tool_calls": {"add": 1}}], "turn 2: tool_calls are {"),
    ([{**CALLS, "tool_calls": "add(1)"}], "turn 2: tool_calls are the text 'add(1)'"),
    ([{**CALLS, "tool_calls": ["add"]}], "turn 2: call 1 names no function"),
    ([{**CALLS, "tool_calls": [call(type="custom")]}], "turn 2: call 1 is of type 'custom'"),
    ([{**CALLS, "tool_calls": [call("a=1")]}], "turn 2: call 1: arguments are 'a=1'; needed a JSON object"),
    ([{**CALLS, "tool_calls": [call("[1]")]}], "needed a JSON object"),
    ([{**CALLS, "tool_calls": [call('{"a": NaN}')]}], "needed a JSON object"),
    ([{**CALLS, "tool_calls": [call('{"a": "\\ud800"}')]}], "needed a JSON object"),
    ([{**CALLS, "role": "user"}], "turn 2: tool_calls in a turn of user"),
    ([CALLS, {**THREE, "tool_call_id": "c9"}], "turn 3: tool_call_id 'c9' answers no call; needed one of c1"),
    ([TWO, {"role": "tool", "content": "3"}], "turn 3 has no tool_call_id, and may answer c1, c2"),
    ([CALLS, {"role": "tool"}], "turn 3 has role; needed role and content")])
def test_malformed_calls_make_a_record_unusable(talk, words):
    (made,) = read([{"messages": [ASKED, *talk, ANSWER]}], "demonstration", prompt_type="messages",
                   prompt_key="messages")
    assert words in made.problem


def test_nulls_with_which_parquet_fills_arguments_are_no_arguments():
    record = {"messages": [ASKED, {**CALLS, "tool_calls": [call({"a": 1, "city": None})]}]}
    assert json.loads(demonstration(record, "a.parquet").messages)["messages"][1] == KEPT
    kept = json.loads(demonstration(record, "a.jsonl").messages)["messages"][1]["tool_calls"][0]
    assert kept["function"]["arguments"] == '{"a": 1, "city": null}'


def test_a_pair_of_calls_and_a_pair_of_several_turns():
    pair = demonstration({"messages": [ASKED], "tools": [ADD], "chosen": [CALLS], "rejected": "4"})
    assert (pair.rejected, json.loads(pair.chosen)) == ("4", [call()])
    assert json.loads(pair.messages) == {"messages": [ASKED], "tools": [ADD], "chosen": [KEPT],
                                         "rejected": turns("a", "4")}
    whole = demonstration({"messages": [ASKED, CALLS, THREE, ANSWER], "chosen": [ASKED, CALLS, THREE, ANSWER],
                           "rejected": [ASKED, CALLS, THREE, {**ANSWER, "content": "4"}]})
    assert json.loads(whole.messages) == {"messages": [ASKED, KEPT, THREE], "chosen": [ANSWER],
                                          "rejected": turns("a", "4")}
    assert (whole.question, whole.chosen, whole.rejected) == ("3", "It is 3.", "4")


def test_a_response_column_may_be_messages():
    made = demonstration({"messages": [ASKED], "response": [KEPT, THREE, ANSWER]})
    assert json.loads(made.messages)["messages"] == [ASKED, KEPT, THREE, ANSWER]
    assert demonstration({"messages": [ASKED], "response": [ANSWER]}) == RawTask(0, "1+2?", "It is 3.", "It is 3.")


@pytest.mark.parametrize(("chosen", "rejected", "usable"), [
    (" ", "x", False), ("x", "", True),  # a rejected empty response teaches to say something
    ("a", "a", False), ("a", "b", True)])
def test_a_pair_that_prefers_silence_or_has_one_response_is_unusable(chosen, rejected, usable):
    (made,) = read([{"prompt": "q", "chosen": chosen, "rejected": rejected}], "demonstration")
    assert (made.problem is None) == usable


BY_ROW = {"workflow_key": "how", "reward_fn_key": "scored.by"}


def test_a_row_may_name_its_workflow_and_its_reward_functions():
    made = read([{"question": "a", "answer": "1", "how": "retry_workflow", "scored": {"by": "accuracy_reward"}},
                 {"question": "b", "answer": "1", "how": "", "scored": {"by": ["format_reward", "accuracy_reward"]}},
                 {"question": "c", "answer": "1", "how": None}], **BY_ROW)
    assert [json.loads(one.choices) if one.choices else None for one in made] == [
        {"workflow": "retry_workflow", "reward_fn": ["accuracy_reward"]},
        {"reward_fn": ["format_reward", "accuracy_reward"]}, None]


@pytest.mark.parametrize("more", [{"how": "os:system"}, {"how": 3}, {"scored": {"by": ["accuracy_reward", "mine"]}}])
def test_a_row_that_names_none_of_our_functions_cannot_be_used(more):
    good, bad = read([{"question": "a", "answer": "1", "how": "simple_workflow", "scored": {"by": None}},
                      {"question": "b", "answer": "1", **more}], **BY_ROW)
    assert (good.problem, good.choices) == (None, '{"workflow": "simple_workflow"}')
    assert bad.problem
    assert bad.choices is None


def test_a_key_of_functions_that_no_row_has_is_an_error():
    with refuses(DataError, "workflow_key"):
        read([{"question": "a", "answer": "1", "scored": {"by": None}}], **BY_ROW)


def test_every_task_of_a_set_has_the_prefix_of_its_format():
    (made,) = read([{"question": "a", "answer": "1"}], reply_prefix="<think>")
    assert json.loads(made.choices) == {"reply_prefix": "<think>"}
