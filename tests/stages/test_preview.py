"""What a sample of the data says before anything runs."""

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ouroboros.pipeline.check.reading import Part, Sample, sample
from ouroboros.pipeline.check.sources import FEATURE, RATE
from ouroboros.pipeline.settings.data import BufferFormat, format_of
from ouroboros.pipeline.settings.model import Model
from ouroboros.pipeline.settings.setting import plain
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.stages import preview, sampled_rows
from ouroboros.stages.model import character_tokenizer
from ouroboros.stages.preview import Preview
from ouroboros.stages.sampled_rows import value_at
from ouroboros.stages.unusable_rows import as_read, judged
from tests import zoo
from tests.configs import composed
from tests.factories import jsonl
from tests.golden.messages import refuses, wording
from tests.pictures import png

COLUMNS = {"prompt_key": "question", "response_key": "answer", "solution_key": "solution"}


def task(question="9=3 5 7", **more):
    return {"question": question, "answer": "9", **more}


def form(rows, key, columns):
    """Form and purpose of a source: demonstrations below buffer.trainer_input, else tasks."""
    talk = columns.pop("talks", False) or (isinstance(rows, list) and any(
        isinstance(row.get(columns["prompt_key"]), list) for row in rows))
    purpose = "task"
    if key.startswith("buffer.trainer_input"):
        purpose = "demonstration"
        columns = {**columns, "response_key": columns["solution_key"]}
    kind = format_of(purpose)
    columns = {name: column for name, column in columns.items() if name in kind.model_fields}
    return {"form": json.dumps(plain(kind(**columns, prompt_type="messages" if talk else "plaintext"))),
            "purpose": purpose, "allowed": 0.1, "alone": True}


@pytest.fixture
def previewed(tmp_path):
    """previewed(rows, **columns): what is found in a file of these rows, by the model that the default recipe makes.

    Its tokenizer has one token a character, its template puts a ':' behind the prompt; 24 prompt and 12 response tokens
    are allowed.
    """

    def make(rows, split="train", model=None, system_prompt=None, key="inputs.0", every_turn=False, scored=False,
             **columns):
        if isinstance(rows, list):  # with truths that differ: of equal rows there is a warning
            rows = [row | {"answer": f"{i}"} if row.get("answer") == "9" else row for i, row in enumerate(rows)]
        path = jsonl(tmp_path / "tasks.jsonl", rows) if isinstance(rows, list) else rows
        read = form(rows, key, COLUMNS | columns)
        columns = {name: column for name, column in columns.items() if name not in ("talks", "reply_prefix")}
        source = {"name": "inputs", "key": key, "path": str(path), "split": split, "format_key": "format",
                  "columns": COLUMNS | columns, "optional": ["solution_key"],
                  "prompt_setting": "prompt_key", "every_turn": every_turn, **read, "whole": scored}
        request = {"sources": [source], "rows": 200,
                   "model": model or plain(composed().model), "system_prompt": system_prompt,
                   "recipes": [], "operators": []}
        found = Preview(request)
        found.source(source)
        return found.found

    return make


@pytest.fixture
def gemma(tmp_path):
    """gemma(**settings): of a model whose template has no system role."""
    zoo.make_tokenizer("gemma", tmp_path / "gemma")
    (tmp_path / "gemma" / "config.json").write_text('{"model_type": "gemma"}')
    return lambda **settings: plain(Model(model_path=str(tmp_path / "gemma"), **settings))


# ------------------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize(("name", "content", "words"), [
    ("a.jsonl", b'{"n": 1}\nnone\n', "line 2 is no JSON (Expecting value, column 1); needed one object a line."),
    ("a.jsonl", b"[1]\n", "a.jsonl, line 1 is a JSON list; needed one object"),
    ("a.jsonl", b'{"n": "\xff"}\n', "a.jsonl, line 1 is no JSON"),
    ("a.parquet", b"PAR", "is not a readable Parquet file"),
    ("a.json", b"[]", "needed a .jsonl or .parquet file or a directory. Write its rows as .jsonl, one object a ")])
def test_what_cannot_be_read_is_a_problem(tmp_path, previewed, name, content, words):
    (tmp_path / name).write_bytes(content)
    found = previewed(tmp_path / name)
    assert len(found["problems"]) == 1
    assert found["problems"][0].startswith("inputs.0: ")
    assert words in found["problems"][0]


def test_a_value_is_found_under_a_dotted_column():
    row = {"a": {"b": {"c": 1}}, "x.y": 2}
    assert (value_at(row, "a.b.c"), value_at(row, "x.y"), value_at(row, "a.z.c")) == (1, 2, None)


# ------------------------------------------------------------------------------------------------------------- judging


@pytest.mark.parametrize(("prompt", "system"), [
    ("a question", "Be brief."),
    ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "b"}], None)])
def test_a_prompt_that_the_chat_template_refuses_is_a_problem_of_its_file(previewed, gemma, prompt, system):
    (line,) = previewed([task(prompt)], model=gemma(), system_prompt=system)["problems"]
    wording(line, "inputs.0", "(system, user)")


def test_a_chat_template_that_does_not_parse_is_named_with_its_line(previewed, gemma, tmp_path):
    (tmp_path / "gemma" / "chat_template.jinja").write_text("{% for m in messages %}\n{{ m.content }\n{% endfor %}")
    (line,) = previewed([task()], model=gemma())["problems"]
    wording(line, f"{tmp_path}/gemma", "line 2")


def test_a_system_prompt_that_the_template_leaves_out_is_noticed_once(previewed, gemma):
    model = gemma(custom_chat_template="<bos>{{ (messages | last).content }}<end_of_turn>")
    (line,) = previewed([task(), task()], model=model, system_prompt="Be brief.")["warnings"]
    wording(line, "system_prompt")
    assert previewed([task()], model=model)["warnings"] == []


def test_what_fits_is_a_fact(previewed):
    """`9=3 5 7` has 7 characters, and a ':' behind; a demonstration of 5 an end of sequence."""
    found = previewed([task(solution="3+5+1"), task("9=3 5 77")])
    assert found["problems"] == found["warnings"] == found["unjudged"] == []
    ((word, fact),) = found["facts"]
    assert word == "inputs"
    wording(fact, "tasks.jsonl: 2", "9 tokens", "(limit 24): 0%", "(limit 12): 0%")


@pytest.mark.parametrize(("over", "of", "level"), [(10, 100, None), (11, 100, "warnings"), (100, 100, "problems")])
def test_over_long_prompts_are_a_warning_from_a_tenth_on_and_a_problem_when_all_are(previewed, over, of, level):
    found = previewed([task("9" * 24 if row < over else "9") for row in range(of)])  # 24 and a ':'
    told = {name: lines for name in ("problems", "warnings") if (lines := found[name])}
    assert list(told) == ([level] if level else [])
    if level:
        wording(told[level][0], f"{over} of {of}", "model.max_prompt_tokens=24", "25 tokens")


def test_over_long_demonstrations_are_judged_by_the_response_limit(previewed):
    found = previewed([task(solution="1" * 12), task(), task()])  # and the end of sequence
    wording(found["problems"][0], "1 of 1", "model.max_response_tokens=12")


def test_a_column_that_is_not_there_is_told_with_the_nearest(previewed):
    found = previewed([task()], prompt_key="qestion", response_key="reward.truth")
    assert len(found["problems"]) == 2
    wording(found["problems"][0], "'qestion'", "'question'", "format.prompt_key")
    assert "Set format.response_key." in found["problems"][1]
    assert found["facts"][0][1].endswith("tasks.jsonl: 1 rows")


def test_every_file_of_a_directory_must_have_the_columns(tmp_path, previewed):
    """All of a file's columns at once; of several files the first one that lacks one, with how many do."""
    jsonl(tmp_path / "a.jsonl", [task()] * 3)
    jsonl(tmp_path / "b.jsonl", [{"prompt": "9=3 5 7", "truth": "9"}])
    found = previewed(tmp_path)["problems"]
    assert len(found) == 2
    wording(found, "'question'", "'answer'", f"{tmp_path}/b.jsonl")
    jsonl(tmp_path / "c.jsonl", [{"question": "9=3 5 7"}])
    wording(previewed(tmp_path)["problems"][1], "b.jsonl", "'answer'", "2 of", "3 files")


def test_a_file_without_rows_is_told_alone_and_among_others(tmp_path, previewed):
    jsonl(tmp_path / "a.jsonl", [task()])
    jsonl(tmp_path / "b.jsonl", [])
    wording([previewed(tmp_path)["problems"]], "inputs.0", f"{tmp_path}/b.jsonl")
    assert "holds no rows" in previewed([])["problems"][0]


@pytest.mark.parametrize(("lacking", "level"), [(0, None), (2, "warnings"), (3, "problems"), (20, "problems")])
def test_rows_without_a_truth_are_counted(previewed, lacking, level):
    """Of 20 a tenth may lack it."""
    found = previewed([task() | {"answer": None} if row < lacking else task() for row in range(20)])
    assert [name for name in ("problems", "warnings") if found[name]] == ([level] if level else [])
    if level:
        wording([found[level]], f"inputs.0: {lacking} of 20", "answer is null")


@pytest.mark.parametrize(("values", "rates", "level"), [
    ([0.5, 1], True, None), ([0.5, "high"], False, "problems"), ([0.5, None], False, "problems"),
    ([0.5, 50], False, None), ([0.5, 50], True, "problems"), ([0.5, -0.1], True, "problems")])
def test_what_a_selector_reads_is_looked_at(previewed, values, rates, level):
    """Numbers, and of difficulty_based solve rates. One of two rows is more than a tenth."""
    rows = [task(f"9=3 5 {place}") | {"rate": value} for place, value in enumerate(values)]
    found = previewed(rows, **{f"{RATE if rates else FEATURE}0": "rate"})
    assert [name for name in ("problems", "warnings") if found[name]] == ([level] if level else [])
    assert "'rate'" in "".join(found["problems"]) or "rate (data" in "".join(found["problems"]) or not level


@pytest.mark.parametrize(("prompt", "settings", "tokens"), [
    ("9=3 5 7", {"system_prompt": "ab"}, 10), ([{"role": "user", "content": "c"}], {"system_prompt": "ab"}, 4),
    ([{"role": "system", "content": "ab"}, {"role": "user", "content": "c"}], {}, 4),
    (json.dumps([{"role": "user", "content": "abc"}]), {"talks": True}, 4), ("ab", {"reply_prefix": "5="}, 5),
    ([{"role": "user", "content": "ab"}], {"reply_prefix": "5="}, 5)])
def test_a_prompt_is_measured_with_all_that_stages_put_around_it(previewed, prompt, settings, tokens):
    """Characters of its turns, ':' for the reply, and the prefix of that."""
    found = previewed([{"question": prompt, "truth": {"answer": "1"}}], response_key="truth.answer", **settings)
    ((_, fact),) = found["facts"]
    wording(fact, f"{tokens} to", f"{tokens} tokens")
    assert not [line for line in found["warnings"] if "system_prompt" in line]


def test_the_last_turn_of_a_demonstration_is_no_part_of_its_prompt(previewed):
    """20 letters and ':' are within 24 prompt tokens; with a response of 11 and ':', 33, they are not."""
    turns = [{"role": "user", "content": "a" * 20}, {"role": "assistant", "content": "b" * 11}]
    shown = "buffer.trainer_input.experience_buffer.path"
    demonstration, task_ = (previewed([{"prompt": turns, "answer": "1"}], key=key, prompt_key="prompt")
                            for key in (shown, "inputs.0"))
    assert demonstration["problems"] == []
    wording(task_["problems"][0], "assistant")  # which is no prompt


@pytest.mark.parametrize(("every_turn", "length"), [(False, 13), (True, 17)])
def test_demonstrated_turns_are_judged_by_the_response_limit(previewed, every_turn, length):
    """Last turn: 12 and the end. All after 'a:': 'b' and the end, 'c:' of the next prompt, 12 and the end."""
    turns = [{"role": role, "content": content} for role, content in (
        ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d" * 12))]
    shown = "buffer.trainer_input.experience_buffer.path"
    found = previewed([{"prompt": turns, "answer": "1"}], key=shown, prompt_key="prompt", every_turn=every_turn)
    (line,) = found["problems"]
    wording(line, "model.max_response_tokens=12", length)


def test_without_the_model_columns_are_judged_and_lengths_are_not(previewed, tmp_path):
    model = plain(Model(model_path=str(tmp_path / "none")))
    found = previewed([task()], model=model, prompt_key="nothing")
    wording([found["unjudged"]], "responses")
    assert len(found["problems"]) == 1


def test_request_and_answer_are_files(tmp_path):
    recipe = "process:\n  - text_length_fliter:\n  - text_length_filter: {max_length: 3}\n"
    (tmp_path / "recipe.yaml").write_text(recipe)
    operators = [{"name": "text_length_fliter"}, {"name": "text_length_filter", "args": {"foo": 1}},
                 {"name": "text_length_filter", "args": {"max_len": "banana", "min_len": 3}}]
    request = {"sources": [], "rows": 200, "model": plain(composed().model), "system_prompt": None,
               "recipes": [str(tmp_path / "recipe.yaml")], "operators": [[operators, []]]}
    (tmp_path / "request.json").write_text(json.dumps(request))
    preview.main(str(tmp_path / "request.json"), str(tmp_path / "answer.json"))
    found = json.loads((tmp_path / "answer.json").read_text())
    first, second, *written_out = found["problems"]
    wording(first, "Data-Juicer", "'text_length_fliter'", "'text_length_filter'")
    wording(second, "'text_length_filter'", "'max_length'", "'max_len'")
    assert ["text_length_fliter" in written_out[0], "no argument 'foo'" in written_out[1],
            "max_len='banana'" in written_out[2], len(written_out)] == [True, True, True, 3]
    assert all(line.startswith("data_processor.task_pipeline.operators: ") for line in written_out)


def test_plain_text_may_be_longer_than_a_prompt(tmp_path):
    """It is cut into pieces."""
    path = jsonl(tmp_path / "texts.jsonl", [{"text": "1" * 100}, {"text": "1"}])
    source = {"name": "texts", "key": "buffer.path", "path": str(path), "split": "train", "format_key": "format",
              "columns": {"prompt_key": "text"}, "optional": [], "prompt_setting": "prompt_key", "every_turn": False,
              "form": json.dumps(plain(BufferFormat(prompt_key="text", response_key=None))), "purpose": "text",
              "allowed": 0.1, "alone": True, "whole": False}
    found = Preview({"sources": [source], "rows": 200, "model": plain(composed().model), "system_prompt": None})
    found.source(source)
    assert found.found["problems"] == found.found["warnings"] == []
    wording(found.found["facts"][0][1], "2 rows", "2 to", "101")


PAIR = {"prompt_key": "prompt", "response_key": "prompt", "solution_key": "response", "chosen_key": "chosen",
        "rejected_key": "rejected"}


@pytest.mark.parametrize(("rows", "words"), [
    ([{"response": "7+5-3"}], ["no column 'chosen'; found prompt, response. Set format.chosen_key.",
                               "no column 'rejected'; found prompt, response. Set format.rejected_key."]),
    ([{"chosen": "7+5-3"}], ["no column 'rejected'; found prompt, chosen."]),
    ([{"chosen": "7+5-3"}, {"rejected": "7", "chosen": None}],
     ["none of 2 sampled rows of", "in each of them chosen or rejected is absent or null"])])
def test_a_file_without_a_pair_is_told(previewed, rows, words):
    said = previewed([{"prompt": "9=3 5 7", **row} for row in rows], **PAIR)["problems"]
    assert all(word in " ".join(said) for word in words)


def test_pairs_of_one_response_are_told_by_their_share_and_other_rows_are_none(previewed):
    rows = [{"chosen": "7", "rejected": "7"}, {"chosen": "7", "rejected": "8"}, {"response": "8"}]
    found = previewed([{"prompt": "9=3 5 7", **row} for row in rows], **PAIR)
    wording(" ".join(found["warnings"]), "1 of 2", "(50%)")
    found = previewed([{"prompt": "9=3 5 7", **row} for row in rows[1:]], **PAIR)
    assert found["warnings"] == found["problems"] == []


# ------------------------------------------------------------------------------------------------ the model's tokenizer


@pytest.fixture
def directory(tmp_path):
    """A model directory with the tokenizer of 99 characters, its chat template left out, `vocabulary` embeddings."""
    def make(vocabulary=99):
        character_tokenizer(80).save_pretrained(tmp_path / "model")
        (tmp_path / "model" / "chat_template.jinja").unlink()
        (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "qwen2", "vocab_size": vocabulary}))
        return plain(composed().model.merged({"model_path": str(tmp_path / "model"), "init": {"enable": False}}))

    return make


def test_a_model_without_a_chat_template_is_told_once_with_a_prompt(previewed, directory):
    found = previewed([task(), task()], model=directory(), system_prompt="ab")
    assert found["problems"] == []
    (line,) = found["warnings"]
    assert "no chat template" in line
    assert repr("ab\n\n9=3 5 7") in line


def test_the_template_beside_a_model_that_the_run_makes_is_tried(previewed):
    made = plain(composed().model)
    (line,) = previewed([task()], model=made | {"custom_chat_template": "{% for"})["problems"]
    wording(line, "model.custom_chat_template", "chat_template_path", "line 1")
    assert previewed([task()], model=made)["problems"] == []


@pytest.mark.parametrize("template", ["{{ messages[0].content }}{{ 'x' * 10**10 }}",
                                      "{{ messages[0].content * 10**6 }}"])
def test_a_template_that_writes_without_end_is_a_problem(previewed, template):
    found = previewed([task()], model=plain(composed().model) | {"custom_chat_template": template})
    assert len(found["problems"]) == 1
    assert found["facts"][0][1].endswith("1 rows")  # nothing was measured


@pytest.mark.parametrize(("template", "split"), [
    ("<|im_start|>{{ messages[0].content }}<|im_end|>", ["<|im_start|>", "<|im_end|>"]),
    ("<bos>{{ messages[0].content }}<end_of_turn>", [])])
def test_markers_of_another_models_template_are_named(previewed, gemma, template, split):
    """Gemma's tokenizer has its own markers as single tokens, and splits those of ChatML."""
    model = gemma(custom_chat_template=template)
    lines = [line for line in previewed([task()], model=model)["warnings"] if "single tokens" in line]
    assert [mark in line for line in lines for mark in split] == [True] * len(split)


def test_a_vocabulary_smaller_than_the_tokenizers(previewed, directory):
    (line,) = previewed([task()], model=directory(98))["problems"]
    wording(line, "number 98", "for 98")
    assert previewed([task()], model=directory(160))["problems"] == []  # padded: more than needed


@pytest.mark.parametrize("question", ["", None, float("nan")])
def test_prompts_that_are_no_text_are_told_by_their_share(previewed, question):
    """A row that cannot be used is told always, and two of ten are too many."""
    for bad, level in ((1, "warnings"), (2, "problems"), (10, "problems")):
        found = previewed([task(question)] * bad + [task()] * (10 - bad))
        told = {name: [line for line in found[name] if "cannot be used" in line] for name in ("problems", "warnings")}
        assert [name for name in told if told[name]] == [level]


@pytest.mark.parametrize(("rows", "told"), [
    ([task(), task("\ud800")], "line 2"),  # half a surrogate pair
    ([task("1" * 10_000_000)], "100000"),  # it is not tokenized whole
    ([{"question": "1", "answer": float("inf")}] * 3, "3 of 3")])  # a truth that cannot be text
def test_rows_that_cannot_be_used_are_one_problem(previewed, rows, told):
    (line,) = previewed(rows)["problems"]
    wording(line, told)


CALLS = [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}]


@pytest.mark.parametrize(("lost", "level"), [(0, None), (1, "warnings"), (2, "warnings"), (3, "problems")])
@pytest.mark.parametrize("turns", [
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": CALLS}],
    [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}],
    [{"role": "user", "content": [{"type": "image"}]}, {"role": "assistant", "content": "b"}]])
def test_demonstrations_that_would_be_rejected_are_counted(previewed, turns, lost, level):
    """Of 20 rows a tenth may be."""
    fine = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    found = previewed([{"prompt": turns if i < lost else fine, "answer": f"{i}"} for i in range(20)],
                      key="buffer.trainer_input.experience_buffer.path", prompt_key="prompt")
    told = {name: [line for line in found[name] if f"{lost} of 20 sampled" in line]
            for name in ("problems", "warnings")}
    assert [name for name in told if told[name]] == ([level] if level else [])


@pytest.mark.parametrize(("lost", "level"), [(0, None), (2, "warnings"), (3, "problems")])
@pytest.mark.parametrize("every_turn", [False, True])
def test_demonstrations_of_texts_that_the_template_refuses_are_rejected_rows(previewed, gemma, every_turn, lost, level):
    """As the stage rejects them: of 20 rows a tenth may be."""
    fine = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    found = previewed([{"prompt": [{"role": "system", "content": "s"}] * (i < lost) + fine, "answer": f"{i}"}
                       for i in range(20)], model=gemma(), every_turn=every_turn,
                      key="buffer.trainer_input.experience_buffer.path", prompt_key="prompt")
    told = {name: [line for line in found[name] if "the chat template refuses" in line]
            for name in ("problems", "warnings")}
    assert [name for name in told if told[name]] == ([level] if level else [])
    assert all(f"{lost} of 20 sampled" in line for lines in told.values() for line in lines)
    assert level == "problems" or "; conversations of " in found["facts"][0][1]


ANSWERS = ("{% for m in messages %}{% if m.role == 'assistant' %}A{{ m.content + eos_token }}{% else %}{{ m.content }}"
           "{% endif %}{% endfor %}{% if add_generation_prompt %}A{% endif %}")
OPENS = ANSWERS.replace(
    "prompt %}A", "prompt %}A{{ '' if enable_thinking is defined and not enable_thinking else '<think>' }}")


@pytest.mark.parametrize(("pair", "scored", "thinking", "is_lost"), [
    (False, False, None, True), (True, False, None, True), (True, True, None, False), (True, False, False, False)])
def test_responses_of_text_that_do_not_go_on_from_the_prompt_are_told_with_what_works(
        previewed, pair, scored, thinking, is_lost):
    """A reward model, which is trained on whole conversations, needs no prompt."""
    response = {"chosen": "b", "rejected": "c"} if pair else {"solution": "b"}
    found = previewed([{"question": f"a{i}", "answer": "9"} | response for i in range(4)], scored=scored,
                      model=plain(composed().model) | {"custom_chat_template": OPENS, "enable_thinking": thinking},
                      key="buffer.trainer_input.experience_buffer.path",
                      **({"chosen_key": "chosen", "rejected_key": "rejected"} if pair else {}))
    assert ["4 of 4" in line and "model.enable_thinking=false works" in line for line in found["problems"]] == (
        [True] * is_lost)


def test_images_are_named_from_the_directory_of_each_file(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / f"{name}.png").write_bytes(png())
        jsonl(tmp_path / name / "rows.jsonl", [{"question": "q", "answer": name, "image": f"{name}.png"}])
    source = {"columns": {}} | form([], "inputs.0", COLUMNS | {"image_key": "image"})
    read = as_read(source, sample(tmp_path, "train", 10, ()))
    assert sorted((row.answer, row.problem) for row in read) == [("a", None), ("b", None)]


def test_a_model_of_text_is_refused_for_images_and_equal_questions_with_other_images_are_other_rows(previewed):
    uri = "data:image/png;base64," + base64.b64encode(png()).decode()
    (problem,) = previewed([{"question": "a", "answer": "9", "image": uri}], image_key="image")["problems"]
    wording(problem, "model.init.image_size")
    rows = [{"question": "a", "answer": "b", "image": f"{i}.png"} for i in range(40)]
    source = {"key": "k", "path": "p", "columns": COLUMNS, "optional": ["solution_key"]} | form(
        [], "k", COLUMNS | {"image_key": "image"})
    assert [*sampled_rows._identical_rows(source, rows)] == []


def test_a_response_is_measured_as_the_template_writes_it(previewed):
    """'1' and the end are 2, and what the template adds 20."""
    model = plain(composed().model) | {"custom_chat_template": ANSWERS.replace("A{{", "A{{ 20 * 'x' +")}
    found = previewed([{"question": "a", "answer": "9", "solution": "1"}], model=model,
                      key="buffer.trainer_input.experience_buffer.path")
    (line,) = found["problems"]
    wording(line, "model.max_response_tokens=12", 22)


@pytest.mark.parametrize(("lost", "alone", "level"), [
    (21, True, "warnings"), (40, True, "warnings"), (41, True, "problems"), (41, False, "warnings")])
def test_a_sample_or_a_file_of_several_decides_with_a_margin(lost, alone, level):
    """200 of 1,000 rows were read."""
    rows = [{"question": "a", "answer": float("nan") if i < lost else "1"} for i in range(200)]
    source = {"key": "inputs.0", "path": "a.jsonl", "format_key": "format", "columns": {}} | form(
        rows, "inputs.0", COLUMNS)
    drawn = Sample(rows, [Part(Path("a.parquet"), 1000, [])], [(Path("a.parquet"), 2 * i + 1) for i in range(200)])
    reasons = [(at, one.problem) for at, one in enumerate(as_read(source, drawn)) if one.problem is not None]
    found = judged(source | {"alone": alone}, drawn, reasons)
    assert [name for name, lines in zip(("warnings", "problems"), found, strict=True) if lines] == [level]
    wording((found[0] or found[1])[0], "rows 1, 3", "5, 7, 9", f"{lost - 5} more")


@pytest.mark.parametrize("text", ["process:\n\t- x\n", "a: &a [1]\n", "process: ["])
def test_a_curation_recipe_that_cannot_be_read_is_a_mistake_of_the_users(tmp_path, text):
    (tmp_path / "x.yaml").write_text(text)
    with refuses(ConfigError, "x.yaml"):
        preview._recipe(tmp_path / "x.yaml")
    with refuses(ConfigError, "cannot be read"):
        preview._recipe(tmp_path)


@pytest.mark.parametrize("question", [["a", "b"], 7, {"a": 1}])
def test_a_prompt_is_text(previewed, question):
    assert any("no text" in line or "cannot be used" in line for line in previewed([task(question)] * 2)["problems"])


def test_rows_that_are_all_equal_are_a_warning(previewed, tmp_path):
    (line,) = previewed(jsonl(tmp_path / "a.jsonl", [task()] * 3))["warnings"]
    wording(line, "3 sampled")
    others = [task(f"{number}=1 2 3") for number in range(1, 9)]
    assert previewed(jsonl(tmp_path / "b.jsonl", [task(), *others]))["warnings"] == []
    (line,) = previewed(jsonl(tmp_path / "c.jsonl", [task(), *others[:7], *others[:2]]))["warnings"]
    wording(line, "2 of 10")


@pytest.mark.parametrize(("rows", "same", "told"), [(20, 7, True), (20, 6, False), (19, 19 // 2, False)])
def test_an_answer_to_many_tasks_is_a_warning(previewed, tmp_path, rows, same, told):
    """More than 30% of at least 20 rows: what a policy earns that always gives it."""
    made = [task(f"{number}=1 2 3") | {"answer": "1" if number < same else str(number)} for number in range(rows)]
    lines = previewed(jsonl(tmp_path / "a.jsonl", made))["warnings"]
    assert len(lines) == told
    if told:
        wording(lines[0], "7 of 20", "35%", "'1'")


def test_a_key_that_an_object_has_twice_is_a_problem(previewed, tmp_path):
    (tmp_path / "twice.jsonl").write_text('{"question": "a", "answer": "1", "answer": "2"}\n')
    wording(previewed(tmp_path / "twice.jsonl")["problems"][0], "1 has", "'answer'")


def test_conversations_with_calls_are_measured_and_what_the_template_loses_is_counted(previewed):
    """The template of the default recipe's model writes contents alone: `1+2?:` `3`, and no calls."""
    calls = [{"role": "user", "content": "1+2?"}, {"role": "assistant", "content": "", "tool_calls": CALLS}]
    plain = [{"role": "user", "content": "1+2?"}, {"role": "assistant", "content": "3"}]

    def found(lost):
        rows = [{"messages": calls if i < lost else plain, "answer": "9"} for i in range(10)]
        return previewed(rows, key="buffer.trainer_input.experience_buffer.path", prompt_key="messages")

    assert found(0)["problems"] == []
    (line,) = found(2)["problems"]
    wording(line, "2 of 10", "(rows 1, 2)", "2: tool_calls")
    assert "model.chat_template_path" in line
    (line,) = [one for one in found(1)["warnings"] if "cannot be used" in one]
    wording(line, "1 of 10")


def test_media_and_a_split_that_a_file_has_not_are_told(previewed, tmp_path):
    """Of three rows two have an image; a column of nulls is none."""
    rows = [task(f"{i}=3 5 7") | {"image": "a.png" if i else None, "video": None} for i in range(3)]
    (line,) = previewed(rows)["warnings"]
    assert ("2 of 3" in line, "'image'" in line) == (True, True)
    (line,) = previewed(jsonl(tmp_path / "b.jsonl", [task(), task("1=1 2 3")]), split="val")["warnings"]
    assert "split=val" in line


@pytest.mark.parametrize("listed", ['{"splits": 3}', "[]", "null", '{"splits": [3]}'])
def test_a_saved_dataset_of_other_types_is_a_problem(previewed, tmp_path, listed):
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "dataset_dict.json").write_text(listed)
    assert previewed(tmp_path / "saved")["problems"][0].startswith("inputs.0: ")


def test_what_cuda_maps_is_there_before_addresses_are_limited(tmp_path, tiny_model):
    """In a new process; the libraries of torch for CUDA alone are larger than the limit."""
    code = """
import sys
from contextlib import contextmanager
from ouroboros.stages import preview

@contextmanager
def limited():
    assert "torch" in sys.modules
    yield

preview.limited_memory = limited
from ouroboros.pipeline.settings.model import Model
one = preview.Preview.__new__(preview.Preview)
one.limits, one.found = Model(model_path=sys.argv[1]), {"problems": [], "warnings": [], "unjudged": []}
one.limits.init.enable = False
print(one._tokenizer() is not None, one.found["problems"])
"""
    done = subprocess.run([sys.executable, "-c", code, str(tiny_model)], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "[]"], done.stderr
