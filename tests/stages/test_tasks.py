import dataclasses
import json
import logging

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ouroboros.pipeline.check.reading import sample
from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.results.view import is_locked
from ouroboros.pipeline.settings.data import AuxiliaryBuffer, TaskFormat
from ouroboros.pipeline.settings.setting import plain
from ouroboros.pipeline.store import tables
from ouroboros.pipeline.store.errors import ConfigError, DataError
from ouroboros.pipeline.store.records import RawTask
from ouroboros.stages import images
from ouroboros.stages.tasks import generate, read_set, work
from tests.configs import element, overridden
from tests.golden.messages import refuses, wording

GSM8K = [{"question": "What is 40 + 2?", "answer": "40 + 2\n#### 42"}, {"question": "1 + 1?", "answer": "#### 2"}]


def write_jsonl(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return str(path)


def read(*inputs, split="train", subset=None, purpose="task", **columns):
    key = "data_processor.task_pipeline.inputs"
    rows = read_set([str(i) for i in inputs], subset, split, TaskFormat(**columns), purpose, key)
    return [dataclasses.replace(row, row=number) for number, row in enumerate(rows)]


def test_jsonl(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", GSM8K)
    assert read(path) == [RawTask(0, "What is 40 + 2?", "40 + 2\n#### 42", None), RawTask(1, "1 + 1?", "#### 2", None)]


def test_several_inputs_are_numbered_through(tmp_path):
    first, second = write_jsonl(tmp_path / "a.jsonl", GSM8K), tmp_path / "b.parquet"
    pq.write_table(pa.table({"question": ["3?"], "answer": ["3"], "solution": ["three"]}), second)
    rows = read(first, second)
    assert [row.row for row in rows] == [0, 1, 2]
    assert rows[2] == RawTask(2, "3?", "3", "three")


@pytest.mark.parametrize("save", [lambda table, path: pq.write_table(table, path.with_suffix(".parquet")),
                                  lambda table, path: datasets.Dataset(table).save_to_disk(path)])
def test_numbers_of_32_bits_are_as_they_were_written(tmp_path, save):
    """0.1 in 32 bits is 0.10000000149011612 in 64, which no answer equals."""
    narrow = pa.float32()
    save(pa.table({"question": ["q", "r"], "answer": pa.array([0.1, 1e-7], narrow), "wide": [0.1, 123456.7890625],
                   "list": pa.array([[0.1, None], []], pa.list_(narrow)),
                   "struct": pa.array([{"half": 0.1}, {"half": None}], pa.struct([("half", narrow)]))}), tmp_path / "a")
    path = next(tmp_path.iterdir())
    assert [row.answer for row in read(path)] == ["0.1", "1e-07"]
    assert [row.answer for row in read(path, response_key="list")] == ["[0.1, null]", "[]"]
    assert [row.answer for row in read(path, response_key="struct.half")] == ["0.1", None]
    assert [row.answer for row in read(path, response_key="wide")] == ["0.1", "123456.7890625"]
    assert {row["answer"] for row in sample(path, "train", 2, ["answer"]).rows} == {0.1, 1e-7}


@pytest.mark.parametrize("save", [lambda rows, path: rows.to_parquet(path.with_suffix(".parquet")),
                                  lambda rows, path: rows.save_to_disk(path)])
def test_classes_of_datasets_have_their_names(tmp_path, save):
    """-1 is no class."""
    kinds = datasets.Features({"question": datasets.Value("string"),
                               "answer": datasets.ClassLabel(names=["no", "yes"])})
    rows = datasets.Dataset.from_dict({"question": ["q", "r", "s"], "answer": [1, 0, -1]}, features=kinds)
    save(rows, tmp_path / "a")
    path = next(tmp_path.iterdir())
    assert [row.answer for row in read(path)] == ["yes", "no", None]
    assert {row["answer"] for row in sample(path, "train", 3, ["answer"]).rows} == {"yes", "no", None}


def test_columns_by_other_names_and_values_that_are_no_text(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"problem": "3 5 = 8", "truth": {"numbers": [3, 5], "target": 8}},
                                              {"problem": None, "truth": 42}])
    assert [(r.question, r.answer) for r in read(path, prompt_key="problem", response_key="truth")] == [
        ("3 5 = 8", '{"numbers": [3, 5], "target": 8}'), (None, "42")]


def test_blank_lines_and_a_byte_order_mark_are_no_rows(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"question": "q", "answer": "a"}\n\n   \n{"question": "r", "answer": "b"}')
    assert [row.question for row in read(path)] == ["q", "r"]


def test_directory_whose_file_names_tell_the_splits(tmp_path):
    write_jsonl(tmp_path / "main" / "train-00000-of-00001.jsonl", GSM8K)
    write_jsonl(tmp_path / "main" / "test-00000-of-00001.jsonl", GSM8K[:1])
    assert len(read(tmp_path)) == 2
    assert len(read(tmp_path, split="test")) == 1
    with refuses(DataError, "'validation'"):
        read(tmp_path, split="validation")


def test_directory_without_splits_in_its_names_is_read_whole(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", GSM8K)
    write_jsonl(tmp_path / "b.jsonl", GSM8K)
    assert len(read(tmp_path)) == 4


def test_saved_hugging_face_datasets(tmp_path):
    from datasets import Dataset, DatasetDict

    data = Dataset.from_list(GSM8K)
    DatasetDict({"train": data, "test": data.select([0])}).save_to_disk(str(tmp_path / "both"))
    data.save_to_disk(str(tmp_path / "one"))
    wording([read(tmp_path / "both", split="test")], "40 +", "2", "#### 42")
    assert len(read(tmp_path / "one")) == 2
    with refuses(DataError, "'dev'"):
        read(tmp_path / "both", split="dev")


def test_broken_saved_dataset(tmp_path):
    (tmp_path / "dataset_info.json").write_text("{}")
    with refuses(DataError, "readable"):
        read(tmp_path)


@pytest.mark.parametrize(("content", "message"), [
    (b'{"question": "q", "answer": "a"}\n{"question": "q", "ans', "a.jsonl"),
    (b'{"question": "\xff", "answer": "a"}\n', "a.jsonl"), (b"[1, 2]\n", "a.jsonl"), (b"", "a.jsonl"),
    (b"\n\n", "a.jsonl"),
    (b'{"questoin": "q", "answer": "a"}\n',
     "format.prompt_key"),
    (b'{"question": "q"}\n', "format.response_key")])
def test_bad_jsonl(tmp_path, content, message):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with refuses(DataError, message):
        read(path)


def test_bad_files_and_directories(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 but no more")
    (tmp_path / "a.csv").write_text("question,answer\n")
    (tmp_path / "empty").mkdir()
    for name, message in (("a.parquet", "a.parquet is not a readable Parquet"),
                          ("a.csv", "needed a .jsonl or .parquet"),
                          ("empty", "holds no .jsonl or .parquet"), ("nowhere.jsonl", "nowhere.jsonl does not exist")):
        with refuses(DataError, message):
            read(tmp_path / name)


def test_generator_by_name():
    rows = generate("countdown", 1, {"tasks": 3, "demonstrations": 2, "dirt": 0})
    assert len(rows) == 5


@pytest.mark.parametrize(("name", "arguments", "error", "message"), [
    ("countdwon", {}, ConfigError, "'countdown'"), ("countdown", {"tasks": 3}, ConfigError, "'demonstrations'"),
    ("countdown", {"tasks": 3, "demonstrations": 0, "dirt": 0, "number": 3}, ConfigError, "'number'"),
    ("countdown", {"tasks": 0, "demonstrations": 0, "dirt": 0}, DataError, "made no rows")])
def test_generator_errors(name, arguments, error, message):
    with refuses(error, message):
        generate(name, 1, arguments)


NOTHING = ("data_processor.task_pipeline.generator=null", "buffer.explorer_input.eval_tasksets=[]")


def context_of(directory, *overrides):
    return Context("p/n", "tasks", "0", directory, overridden(*overrides), {}, logging.getLogger("test"))


def test_the_stage_writes_the_raw_table(tmp_path):
    arguments = "{tasks: 3, demonstrations: 2, dirt: 0.5}"
    context = context_of(tmp_path, f"data_processor.task_pipeline.generator_args={arguments}")
    work(context)
    table = tables.read(tmp_path / "raw.parquet", RawTask)
    assert table.num_rows == context.made["rows"] == 7
    assert table["row"].to_pylist() == list(range(1, 8))
    assert set(table["taskset"].to_pylist()) == set(table["split"].to_pylist()) == {None}


def test_no_data_at_all(tmp_path):
    with refuses(ConfigError, "no data:"):
        work(context_of(tmp_path, *NOTHING))
    assert list(tmp_path.iterdir()) == []


def test_every_set_with_a_path_is_read_under_its_name_and_the_split_of_its_place(tmp_path):
    train = write_jsonl(tmp_path / "a.jsonl", GSM8K)
    shown = write_jsonl(tmp_path / "d.jsonl", [{"prompt": "1?", "response": "one"},
                                               {"prompt": "2?", "chosen": "two", "rejected": "too"}])
    write_jsonl(tmp_path / "eval" / "test.jsonl", [{"problem": "q", "truth": 7}])
    source = "buffer.explorer_input"
    context = context_of(
        tmp_path / "stage", "data_processor.task_pipeline.generator=null",
        f"{source}.tasksets=[]", f"{source}.taskset.path={train}", f"{source}.taskset.name=gsm8k",
        f"{source}.eval_tasksets.0.path={tmp_path / 'eval'}", f"{source}.eval_tasksets.0.name=gsm8k",
        f"{source}.eval_tasksets.0.split=test", f"{source}.eval_tasksets.0.format.prompt_key=problem",
        f"{source}.eval_tasksets.0.format.response_key=truth", "buffer.trainer_input.experience_buffer.path=" + shown)
    work(context)
    rows = tables.read(tmp_path / "stage" / "raw.parquet", RawTask).to_pylist()
    wording([[(r["row"], r["taskset"], r["split"], r["question"], r["answer"], r["solution"]) for r in rows]], "(1,",
            "gsm8k", "40 +", "2")
    assert (rows[4]["chosen"], rows[4]["rejected"]) == ("two", "too")


def test_several_files_are_one_set_and_a_subset_is_a_directory(tmp_path):
    first = write_jsonl(tmp_path / "gsm8k" / "main" / "train-0.jsonl", GSM8K)
    second = write_jsonl(tmp_path / "gsm8k" / "socratic" / "train-0.jsonl", GSM8K[:1])
    assert [r.row for r in read(first, second)] == [0, 1, 2]
    assert len(read(tmp_path / "gsm8k", subset="socratic")) == 1
    for path, subset, words in (
            (tmp_path / "gsm8k", "mian", "subset_name=mian:"), (first, "main", "subset_name=main:")):
        with refuses(DataError, words):
            read(path, subset=subset)


def test_what_may_be_the_name_of_a_dataset_is_told_as_its_id():
    with refuses(DataError, "openai/gsm8k", "hf://datasets/openai/gsm8k"):
        read("openai/gsm8k")
    for name in ("nowhere/a.jsonl", "/openai/gsm8k", "data/gsm8k", "tests/gsm8k", "a/b/c"):
        with pytest.raises(DataError) as caught:
            read(name)
        assert "hf://" not in str(caught.value)


def test_plain_text_is_read_whole_and_rows_of_an_expert_bear_the_name_of_their_buffer(tmp_path):
    """A buffer without a response is text for cpt; an auxiliary one with responses is demonstrations."""
    texts = write_jsonl(tmp_path / "texts.jsonl", [{"prompt": "one two"}, {"prompt": ""}])
    shown = write_jsonl(tmp_path / "shown.jsonl", [{"prompt": "1 + 1", "response": "2"}])
    context = context_of(
        tmp_path, *NOTHING, f"buffer.trainer_input.experience_buffer.path={texts}",
        "buffer.trainer_input.experience_buffer.format.response_key=null", "buffer.explorer_input.taskset.path=null",
        "buffer.trainer_input.auxiliary_buffers={mine: "
        + json.dumps(plain(element(AuxiliaryBuffer, {"path": shown}))) + "}")
    work(context)
    rows = tables.read(tmp_path / "raw.parquet", RawTask).to_pylist()
    assert [(r["question"], r["answer"], r["solution"], r["taskset"], r["split"]) for r in rows] == [
        ("one two", "", None, "experience_buffer", "text"), (None, None, None, "experience_buffer", "text"),
        ("1 + 1", "2", "2", "mine", "sft")]
    wording(rows[1]["problem"], "'prompt' (format.prompt_key)")


def test_an_empty_file_of_an_expert_is_named(tmp_path):
    (tmp_path / "none.jsonl").write_text("")
    mine = json.dumps(plain(element(AuxiliaryBuffer, {"path": str(tmp_path / "none.jsonl")})))
    context = context_of(tmp_path, *NOTHING, "buffer.trainer_input.auxiliary_buffers={mine: " + mine + "}")
    with refuses(DataError, "none.jsonl", "buffer.trainer_input.auxiliary_buffers.mine"):
        work(context)


def test_the_table_of_images_is_written_while_no_other_stage_builds(context_of, tmp_path, monkeypatch):
    held = []
    monkeypatch.setattr(images.tables, "write", lambda *_: held.append(is_locked(tmp_path / "images" / ".lock")))
    images.work(context_of(tmp_path / "stage", f"checkpoint_root_dir={tmp_path}"))
    assert held == [True]
    assert not is_locked(tmp_path / "images" / ".lock")
