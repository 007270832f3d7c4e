import dataclasses
import logging
from collections import Counter
from types import SimpleNamespace

import pytest

from operators.generate import countdown
from operators.reward import parse_countdown
from pipeline import tables
from pipeline.compose import CONF, compose
from pipeline.errors import DataError
from pipeline.process import Context
from pipeline.records import RawTask, Rejected, Task
from stages.curate import make_task, work


def curate(directory, rows, recipe, **settings):
    """Runs the stage on rows, with settings of the task pipeline; returns (tasks, rejected, made)."""
    source, target = directory / "tasks", directory / "curate"
    tables.write(source / "raw.parquet", RawTask, rows)
    pipeline = SimpleNamespace(**{"config_path": None if recipe is None else str(recipe), "operators": [],
                                  "target_fields": [], "num_process": 1, **settings})
    config = SimpleNamespace(data_processor=SimpleNamespace(task_pipeline=pipeline))
    context = Context("p/n", "curate", "0", target, config, {"tasks": source}, logging.getLogger("test"))
    work(context)
    return (tables.read(target / "tasks.parquet", Task).to_pylist(),
            tables.read(target / "rejected.parquet", Rejected).to_pylist(), context.made)


def recipe_file(directory, text):
    path = directory / "recipe.yaml"
    path.write_text(text)
    return path


def test_every_row_is_kept_or_rejected_and_nothing_leaks(tmp_path):
    rows = list(countdown(1, tasks=400, demonstrations=300, dirt=0.2))
    tasks, rejected, made = curate(tmp_path, rows, CONF / "data_juicer" / "countdown.yaml")
    assert made["read"] == len(rows) == 840
    assert sorted([t["row"] for t in tasks] + [r["row"] for r in rejected]) == list(range(840))
    assert made["kept"] + made["rejected"] == made["read"]
    assert made["train"] + made["test"] + made["sft"] == made["kept"]

    def keys(*splits):
        chosen = [parse_countdown(t["answer"]) for t in tasks if t["split"] in splits]
        return {(*sorted(numbers), target) for numbers, target in chosen}

    assert keys("test")
    assert not keys("test") & keys("train", "sft")
    assert all((t["solution"] is not None) == (t["split"] == "sft") for t in tasks)
    assert len({(t["question"], t["solution"]) for t in tasks}) == len(tasks)
    for row in rejected:
        assert row["question"] == rows[row["row"]].question
        assert row["reason"]
    assert set(Counter(r["operator"] for r in rejected)) == {
        "required_columns", "text_length_filter", "full_match_filter", "countdown_solvable_filter",
        "document_deduplicator", "split_by_hash_mapper"}


def test_the_default_recipe_leaves_enough_of_every_split(tmp_path):
    settings = compose([])["data_processor"]["task_pipeline"]
    rows = list(countdown(1, **settings["generator_args"]))
    made = curate(tmp_path, rows, CONF.parent / settings["config_path"])[2]
    assert made["test"] >= 256
    assert made["train"] >= 1500
    assert made["sft"] >= 2000


def test_without_a_split_all_rows_are_for_training(tmp_path):
    rows = [RawTask(0, "a question", "1", None), RawTask(1, "another one", "2", "shown")]
    tasks, _, made = curate(tmp_path, rows, recipe_file(tmp_path, "process: []"))
    assert [(t["split"], t["solution"]) for t in tasks] == [("train", None), ("train", None)]
    assert (made["train"], made["test"], made["sft"]) == (2, 0, 0)


def test_the_same_task_has_the_same_id():
    row = dataclasses.asdict(RawTask(0, "q", "a", None))
    first, second = make_task(row), make_task({**row, "row": 5, "split": "sft", "solution": "s"})
    assert first.task_id == second.task_id
    assert len(first.task_id) == 16
    assert make_task({**row, "answer": "b"}).task_id != first.task_id
    assert make_task({**row, "context": [{"role": "user", "content": "c"}]}).task_id != first.task_id


def test_demonstrations_alone_are_enough_for_a_recipe_of_sft(tmp_path):
    recipe = recipe_file(tmp_path, "process: [{split_by_hash_mapper: {key: question, test_ratio: 0.0}}]")
    _, _, made = curate(tmp_path, [RawTask(0, "what?", "1", "one"), RawTask(1, "who?", "2", "two")], recipe)
    assert (made["train"], made["sft"]) == (0, 2)


def test_nothing_left_lists_the_rejections(tmp_path):
    rows = [RawTask(0, "short", "1", None), RawTask(1, None, "1", None), RawTask(2, "tiny", "1", None)]
    recipe = recipe_file(tmp_path, "process: [{text_length_filter: {min_len: 50}}]")
    with pytest.raises(DataError, match=r"nothing to train on is left.*text_length_filter 2, required_columns 1"):
        curate(tmp_path, rows, recipe)
    assert not (tmp_path / "curate").exists()


def test_a_raw_table_that_is_missing_names_the_file(tmp_path):
    config = SimpleNamespace(data_processor=SimpleNamespace(task_pipeline=SimpleNamespace(config_path="x")))
    context = Context("p/n", "curate", "0", tmp_path, config, {"tasks": tmp_path}, logging.getLogger("test"))
    with pytest.raises(DataError, match=r"raw\.parquet does not exist"):
        work(context)
