"""What a sample of the data says before anything runs."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import DataError
from stages import preview
from stages.preview import Preview, names, sample, spread, value_at
from tests.configs import composed

COLUMNS = {"prompt_key": "question", "response_key": "answer", "solution_key": "solution"}


def jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def task(question="9=3 5 7", **more):
    return {"question": question, "answer": "9", **more}


@pytest.fixture
def previewed(tmp_path):
    """previewed(rows, **columns): what is found in a file of these rows, by the model that the default recipe makes.

    Its tokenizer has one token a character, its template puts a ':' behind the prompt; 24 prompt and 12 response tokens
    are allowed.
    """

    def make(rows, split="train", model=None, system_prompt=None, **columns):
        path = jsonl(tmp_path / "tasks.jsonl", rows) if isinstance(rows, list) else rows
        source = {"name": "inputs", "key": "inputs.0", "path": str(path), "split": split, "format_key": "format",
                  "columns": COLUMNS | columns, "optional": ["solution_key"]}
        request = {"sources": [source], "rows": 200, "model": model or composed()["model"],
                   "system_prompt": system_prompt, "recipes": [], "operators": []}
        found = Preview(request)
        found.source(source)
        return found.found

    return make


# ------------------------------------------------------------------------------------------------------------ sampling


def test_positions_are_spread_evenly():
    assert spread(10, 4) == [0, 2, 5, 7]
    assert spread(3, 4) == [0, 1, 2]
    assert spread(0, 4) == []


def test_a_small_file_is_sampled_exactly(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", [{"n": n} for n in range(10)])
    assert sample(path, "train", 4) == ([{"n": 0}, {"n": 2}, {"n": 5}, {"n": 7}], 10)
    path.write_text('\n{"n": 1}\n\n{"n": 2}')
    assert sample(path, "train", 4) == ([{"n": 1}, {"n": 2}], 2)


def test_a_large_file_is_sampled_by_seeking(tmp_path, monkeypatch):
    """1,000 lines of 11 bytes, `{"n":1000}` first: 4 places at 0, 2,750, 5,500, 8,250, each at the beginning of a line
    that is skipped, as any that a seek falls on."""
    monkeypatch.setattr(preview, "WHOLE", 100)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"n": 1000 + n}, separators=(",", ":")) + "\n" for n in range(1000)))
    rows, total = sample(path, "train", 4)
    assert [row["n"] for row in rows] == [1000, 1251, 1501, 1751]
    assert total == 1000


def test_parquet_is_sampled_from_its_row_groups(tmp_path):
    """4 groups of 5 rows: 2 rows from the beginning of each of 4."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": list(range(20))}), path, row_group_size=5)
    rows, total = sample(path, "train", 8)
    assert [row["n"] for row in rows] == [0, 1, 5, 6, 10, 11, 15, 16]
    assert total == 20


def test_a_directory_is_sampled_by_its_split(tmp_path):
    jsonl(tmp_path / "train-0.jsonl", [{"n": 1}])
    jsonl(tmp_path / "train-1.jsonl", [{"n": 2}])
    jsonl(tmp_path / "test-0.jsonl", [{"n": 3}])
    assert sample(tmp_path, "train", 8) == ([{"n": 1}, {"n": 2}], 2)


def test_a_saved_dataset_is_sampled_by_its_split(tmp_path):
    from datasets import Dataset, DatasetDict

    DatasetDict({"train": Dataset.from_dict({"n": list(range(10))})}).save_to_disk(str(tmp_path / "d"))
    assert sample(tmp_path / "d", "train", 2) == ([{"n": 0}, {"n": 5}], 10)
    with pytest.raises(DataError, match=r"has no split 'trian'; found train\. Did you mean 'train'"):
        sample(tmp_path / "d", "trian", 2)


@pytest.mark.parametrize(("name", "content", "words"), [
    ("a.jsonl", b'{"n": 1}\nnone\n', "has a line that is no JSON"),
    ("a.jsonl", b"[1]\n", "a JSON list; needed one object"),
    ("a.jsonl", b'{"n": "\xff"}\n', "has a line that is no JSON"),
    ("a.parquet", b"PAR", "is not a readable Parquet file"),
    ("a.csv", b"n\n1\n", "needed a .jsonl or .parquet file or a directory")])
def test_what_cannot_be_read_is_a_problem(tmp_path, previewed, name, content, words):
    (tmp_path / name).write_bytes(content)
    found = previewed(tmp_path / name)
    assert len(found["problems"]) == 1
    assert found["problems"][0].startswith("inputs.0: ")
    assert words in found["problems"][0]


def test_columns_within_structs_are_told_with_dots():
    row = {"a": {"b": {"c": 1}}, "x.y": 2}
    assert list(names(row)) == ["a", "a.b", "a.b.c", "x.y"]
    assert (value_at(row, "a.b.c"), value_at(row, "x.y"), value_at(row, "a.z.c")) == (1, 2, None)


# ------------------------------------------------------------------------------------------------------------- judging


def test_what_fits_is_a_fact(previewed):
    """`9=3 5 7` has 7 characters, and a ':' behind; a demonstration of 5 an end of sequence."""
    found = previewed([task(solution="3+5+1"), task("9=3 5 77")])
    assert found["problems"] == found["warnings"] == found["unjudged"] == []
    ((word, fact),) = found["facts"]
    assert word == "inputs"
    assert fact.endswith("tasks.jsonl: 2 rows; prompts of 8 to 9 tokens (limit 24): 0% over; demonstrations of 6 to 6 "
                         "tokens (limit 12): 0% over")


def test_the_system_prompt_counts(previewed):
    (_, fact), = previewed([task()], system_prompt="ab")["facts"]
    assert "prompts of 10 to 10 tokens" in fact


@pytest.mark.parametrize(("over", "of", "level"), [(10, 100, None), (11, 100, "warnings"), (100, 100, "problems")])
def test_over_long_prompts_are_a_warning_from_a_tenth_on_and_a_problem_when_all_are(previewed, over, of, level):
    found = previewed([task("9" * 24 if row < over else "9") for row in range(of)])  # 24 and a ':'
    told = {name: lines for name in ("problems", "warnings") if (lines := found[name])}
    assert list(told) == ([level] if level else [])
    if level:
        assert told[level][0].startswith(f"inputs.0: {over} of {of} sampled prompts are longer than "
                                         "model.max_prompt_tokens=24, the longest has 25 tokens")


def test_over_long_demonstrations_are_judged_by_the_response_limit(previewed):
    found = previewed([task(solution="1" * 12), task(), task()])  # and the end of sequence
    assert "1 of 1 sampled demonstrations are longer than model.max_response_tokens=12" in found["problems"][0]


def test_empty_prompts_are_counted_and_a_problem_when_all_are(previewed):
    found = previewed([task(), task(" "), task(None)])
    assert found["problems"] == []
    assert "; 2 empty" in found["facts"][0][1]
    assert "every sampled prompt (column 'question') is empty" in previewed([task("")])["problems"][0]


def test_a_column_that_is_not_there_is_told_with_the_nearest(previewed):
    found = previewed([task()], prompt_key="qestion", response_key="reward.truth")
    assert len(found["problems"]) == 2
    assert ("has no column 'qestion'; found question, answer. Did you mean 'question'? Set format.prompt_key."
            in found["problems"][0])
    assert "Set format.response_key." in found["problems"][1]
    assert found["facts"][0][1].endswith("tasks.jsonl: 1 rows")


def test_conversations_go_through_the_chat_template(previewed):
    """'ab', then 'c', then ':' for the reply."""
    turns = [{"role": "system", "content": "ab"}, {"role": "user", "content": "c"}]
    (_, fact), = previewed([{"prompt": turns, "truth": {"answer": "1"}}], prompt_key="prompt",
                           response_key="truth.answer")["facts"]
    assert "prompts of 4 to 4 tokens" in fact


def test_an_empty_file_is_a_problem(previewed):
    assert "holds no rows" in previewed([])["problems"][0]


def test_without_the_model_columns_are_judged_and_lengths_are_not(previewed, tmp_path):
    model = {**composed()["model"], "init": {"enable": False}, "model_path": str(tmp_path / "none")}
    found = previewed([task()], model=model, prompt_key="nothing")
    assert found["unjudged"] == ["lengths of prompts and responses: the model, and so its tokenizer, is not here."]
    assert len(found["problems"]) == 1


def test_request_and_answer_are_files(tmp_path):
    recipe = "process:\n  - text_length_fliter:\n  - text_length_filter: {max_length: 3}\n"
    (tmp_path / "recipe.yaml").write_text(recipe)
    operators = [{"name": "text_length_fliter"}, {"name": "text_length_filter", "args": {"foo": 1}}]
    request = {"sources": [], "rows": 200, "model": composed()["model"], "system_prompt": None,
               "recipes": [str(tmp_path / "recipe.yaml")], "operators": [[operators, []]]}
    (tmp_path / "request.json").write_text(json.dumps(request))
    preview.main(str(tmp_path / "request.json"), str(tmp_path / "answer.json"))
    found = json.loads((tmp_path / "answer.json").read_text())
    first, second, *written_out = found["problems"]
    assert "unknown Data-Juicer operator 'text_length_fliter'. Did you mean 'text_length_filter'?" in first
    assert "operator 'text_length_filter' has no argument 'max_length'. Did you mean 'max_len'?" in second
    assert ["text_length_fliter" in written_out[0], "no argument 'foo'" in written_out[1], len(written_out)] == [
        True, True, 2]
    assert all(line.startswith("data_processor.task_pipeline.operators: ") for line in written_out)


def test_plain_text_may_be_longer_than_a_prompt(tmp_path):
    """It is cut into pieces."""
    path = jsonl(tmp_path / "texts.jsonl", [{"text": "1" * 100}, {"text": "1"}])
    source = {"name": "texts", "key": "buffer.path", "path": str(path), "split": "train", "format_key": "format",
              "columns": {"prompt_key": "text"}, "optional": []}
    found = Preview({"sources": [source], "rows": 200, "model": composed()["model"], "system_prompt": None})
    found.source(source)
    assert found.found["problems"] == found.found["warnings"] == []
    assert found.found["facts"][0][1].endswith("2 rows; texts of 2 to 101 tokens")


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


def test_pairs_of_one_response_are_told_by_their_share(previewed):
    rows = [{"chosen": "7", "rejected": "7"}, {"chosen": "7", "rejected": "8"}, {"response": "8"}]
    found = previewed([{"prompt": "9=3 5 7", **row} for row in rows], **PAIR)
    assert "in 1 of 2 sampled pairs (50%)" in " ".join(found["warnings"])
    assert previewed([{"prompt": "9=3 5 7", **row} for row in rows[1:]], **PAIR)["warnings"] == []


def test_a_file_with_pairs_may_have_other_rows(previewed):
    rows = [{"chosen": "7+5-3", "rejected": "7"}, {"response": "8"}]
    assert previewed([{"prompt": "9=3 5 7", **row} for row in rows], **PAIR)["problems"] == []
