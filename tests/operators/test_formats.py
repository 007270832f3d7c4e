"""Records of data files as raw tasks: texts, conversations, demonstrations, pairs, and what is wrong with some."""

import json

import pytest

from operators.formats import as_turns, column_names, look_up, read_records
from pipeline.settings.data import BufferFormat, Format
from pipeline.store.errors import DataError
from pipeline.store.records import RawTask


def read(records, purpose="task", **columns):
    kind = BufferFormat if purpose == "demonstration" else Format
    return list(read_records(records, kind(**columns), purpose, "a.jsonl", 0))


def turns(*pairs):
    """turns("u", "hello", ...) by the first letter of the role."""
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": names[role], "content": text} for role, text in zip(pairs[::2], pairs[1::2], strict=True)]


VERL = {"data_source": "openai/gsm8k", "prompt": turns("s", "Think.", "u", "1 + 1?"),
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"answer": "one and one\n#### 2", "index": 7}}
OF_VERL = {"prompt_type": "messages", "prompt_key": "prompt", "response_key": "reward_model.ground_truth"}


# ----------------------------------------------------------------------------------------------------------- tasks


def test_a_plain_record():
    (made,) = read([{"question": "1 + 1?", "answer": "2", "solution": "1 + 1 = 2"}])
    assert made == RawTask(0, "1 + 1?", "2", "1 + 1 = 2")


def test_what_is_no_text_is_json():
    (made,) = read([{"question": 12, "answer": {"numbers": [3, 5], "target": 8}}])
    assert (made.question, made.answer, made.solution) == ("12", '{"numbers": [3, 5], "target": 8}', None)


def test_nulls_stay_null_for_curation_to_tell():
    (made,) = read([{"question": None, "answer": None}])
    assert (made.question, made.answer, made.problem) == (None, None, None)


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


# ------------------------------------------------------------------------------------------ demonstrations and pairs


def test_a_plain_demonstration_is_its_own_truth():
    (made,) = read([{"prompt": "1 + 1?", "response": "2"}], "demonstration")
    assert made == RawTask(0, "1 + 1?", "2", "2")


def test_the_last_turn_of_the_assistant_is_the_response():
    talk = turns("s", "Think.", "u", "Hello", "a", "Hello!", "u", "1 + 1?", "a", "2")
    (made,) = read([{"messages": talk}], "demonstration", prompt_type="messages", messages_key="messages")
    assert made == RawTask(0, "1 + 1?", "2", "2", talk[:3])


def test_messages_that_end_with_the_user_take_the_response_column():
    records = [{"prompt": turns("u", "1 + 1?"), "response": "2"}, {"prompt": turns("u", "1 + 1?")}]
    first, second = read(records, "demonstration", prompt_type="messages")
    assert first == RawTask(0, "1 + 1?", "2", "2")
    assert "no response: no 'response'" in second.problem


def test_pairs_as_texts_and_as_messages():
    plain, talk = read([{"prompt": "1 + 1?", "chosen": "2", "rejected": "3"}], "demonstration"), read(
        [{"prompt": "1 + 1?", "chosen": turns("u", "1 + 1?", "a", "2"), "rejected": turns("a", "3")[0]}],
        "demonstration")
    assert plain == talk == [RawTask(0, "1 + 1?", "2", None, [], "2", "3")]


def test_a_pair_beside_its_conversation():
    talk = turns("u", "1 + 1?", "a", "2")
    (made,) = read([{"messages": talk, "chosen": talk, "rejected": turns("u", "1 + 1?", "a", "3")}], "demonstration",
                   prompt_type="messages", messages_key="messages")
    assert made == RawTask(0, "1 + 1?", "2", None, [], "2", "3")


# ------------------------------------------------------------------------------------------------------------- bad


@pytest.mark.parametrize(("value", "words"), [
    ("hello", "text where messages are needed: 'hello'"), (None, "messages are null"), ([], "messages are empty"),
    ({"role": "user", "content": "q"}, "needed a list of {role, content}"), ([1], "turn 1 has int"),
    ([{"from": "human", "value": "q"}], "turn 1 has from, value; needed role and content"),
    ([{"role": "human", "content": "q"}], "turn 1: role 'human'; needed one of system, user, assistant, tool"),
    ([{"role": "user", "content": [{"type": "image"}]}], "turn 1: content has parts image; needed text"),
    ([{"role": "user", "content": None}], "turn 1: content is NoneType"),
    (turns("s", "Think."), "the prompt ends with a turn of system; needed one of user"),
    (turns("u", "q", "a", "answered"), "ends with a turn of assistant; needed one of user"),
])
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
    ({"messages": turns("u", "q"), "chosen": turns("u", "q"), "rejected": "r"}, "a response of the pair ends with"),
])
def test_a_conversation_that_shows_nothing_is_a_row_with_its_reason(record, words):
    (made,) = read([record], "demonstration", prompt_type="messages", messages_key="messages")
    assert words in made.problem


def test_messages_under_a_key_of_plain_text_are_told():
    (made,) = read([{"question": turns("u", "q"), "answer": "a"}])
    assert made.problem == "the prompt is a list of messages; set format.prompt_type=messages"


def test_one_record_without_a_key_is_a_row_with_its_reason():
    rows = read([VERL, {**VERL, "reward_model": {"style": "rule"}}, {**VERL, "reward_model": None}], **OF_VERL)
    assert [row.problem for row in rows] == [None, *["the record has no reward_model.ground_truth"] * 2]


def test_a_key_that_no_record_has_names_the_file_what_there_is_and_the_nearest():
    with pytest.raises(DataError, match=r"^a\.jsonl has no column 'reward_model\.ground_trut'; found data_source, "
                                        r"prompt, reward_model, reward_model\.style, reward_model\.ground_truth, .*Did "
                                        r"you mean 'reward_model\.ground_truth'\? Set format\.response_key"):
        read([VERL], **OF_VERL | {"response_key": "reward_model.ground_trut"})
    for columns, setting in (({"prompt_key": "problem"}, "prompt_key"),
                             ({"system_prompt_key": "r"}, "system_prompt_key"),
                             ({"prompt_type": "messages", "messages_key": "m"}, "messages_key")):
        with pytest.raises(DataError, match=rf"Set format\.{setting}"):
            read([{"question": "q", "answer": "a"}], **columns)
    with pytest.raises(DataError, match=r"no column 'response'; found prompt, reply\..*Set format\.response_key"):
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


def test_turns_are_role_and_content_alone():
    assert as_turns([{"role": "user", "content": "q", "name": " ", "tool_calls": None, "call": {"id": None}}]) == turns(
        "u", "q")


CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}


@pytest.mark.parametrize(("turn", "more", "words"), [
    ({"role": "assistant", "content": "", "tool_calls": [CALL]}, {}, "tool_calls"),
    ({"role": "assistant", "content": "3", "reasoning_content": "hm"}, {}, "reasoning_content"),
    ({"role": "assistant", "content": [{"type": "text", "text": "3"}, {"type": "image_url"}]}, {}, "image_url"),
    ({"role": "assistant", "content": None}, {}, "NoneType"),
    ({"role": "assistant", "content": "3"}, {"tools": [{"type": "function"}]}, "tools"),
    ({"role": "assistant", "content": "3"}, {"images": ["a.png"]}, "images"),
])
def test_what_training_would_leave_out_makes_a_record_unusable(turn, more, words):
    record = {"messages": [{"role": "user", "content": "<image> 1+2?"}, turn], **more}
    columns = BufferFormat(prompt_type="messages", prompt_key="messages")
    (made,) = read_records([record], columns, "demonstration", "f", 0)
    assert words in made.problem
    assert made.question is None


def test_text_parts_and_empty_fields_of_columnar_files_are_read():
    parts = [{"type": "text", "text": "1+"}, {"type": "text", "text": "2?"}]
    record = {"messages": [{"role": "user", "content": parts, "tool_calls": None, "name": ""},
                           {"role": "assistant", "content": "3", "tool_calls": []}], "images": None}
    columns = BufferFormat(prompt_type="messages", prompt_key="messages")
    (made,) = read_records([record], columns, "demonstration", "f", 0)
    assert (made.question, made.solution, made.problem) == ("1+2?", "3", None)
