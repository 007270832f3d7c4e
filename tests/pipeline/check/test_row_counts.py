"""Rows of files, counted without reading them, and the steps that a stage makes of them at most."""

import inspect

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ouroboros.operators.generate import GENERATORS
from ouroboros.pipeline.check import reading, sources
from ouroboros.pipeline.check.sources import most_rows
from ouroboros.pipeline.check.workload import described, workload
from tests.golden.messages import wording
from tests.pipeline.check.test_workload import stage

SET = "buffer__explorer_input__taskset__"
EPOCHS = {"buffer__total_steps": None, "buffer__total_epochs": 3, "data_processor__task_pipeline__generator": None}


@pytest.fixture
def files(tmp_path):
    """100 rows in one file, 28 in the other, whose last line has no end."""
    pq.write_table(pa.table({"question": ["q"] * 100}), tmp_path / "train-0.parquet")
    (tmp_path / "more.jsonl").write_text("{}\n" * 27 + "{}")
    return tmp_path


def test_rows_of_a_set_are_those_of_its_files_up_to_its_limit(files):
    both = {f"{SET}path": [str(files / "train-0.parquet"), str(files / "more.jsonl")]}
    assert most_rows(stage("rft", **both)) == 128
    assert most_rows(stage("rft", **both, **{f"{SET}limit": 60})) == 60
    assert most_rows(stage("rft", **{f"{SET}path": str(files)})) == 100  # the file of the split
    pool = {"data_processor__task_pipeline__generator": None,
            "data_processor__task_pipeline__inputs": [str(files / "more.jsonl")]}
    assert most_rows(stage("rft", **pool)) == most_rows(stage("sft", **pool)) == 28


def test_what_cannot_be_counted_here_is_not(files, monkeypatch):
    assert most_rows(stage("rft")) is None  # generated
    assert most_rows(stage("rft", **{f"{SET}path": [str(files / "more.jsonl"), "elsewhere.jsonl"]})) is None
    (files / "whole.jsonl").write_text('[{"question": "a"}, {"question": "b"}]\n')
    assert most_rows(stage("rft", **{f"{SET}path": str(files / "whole.jsonl")})) is None
    (files / "train-1.parquet").write_text("no table")
    assert most_rows(stage("rft", **{f"{SET}path": str(files)})) is None
    monkeypatch.setattr(reading, "LARGEST", 10)
    (files / "large.jsonl").write_text("{}\n" * 4)  # 12 bytes
    assert most_rows(stage("rft", **{f"{SET}path": str(files / "large.jsonl")})) is None


@pytest.mark.parametrize(("arguments", "curated", "rows"), [
    ({"tasks": 2500, "demonstrations": 6000, "dirt": 0.05}, True, (2925, 6425)),  # 0.05 of 8500 are 425
    ({"tasks": 10, "demonstrations": 5, "dirt": 0}, False, (15, 15)),
    ({"tasks": "many", "demonstrations": 5, "dirt": 0}, True, (None, None)), ({"tasks": 10}, True, (None, None))])
def test_generated_rows_are_counted_where_that_is_asked(arguments, curated, rows):
    given = {"data_processor__task_pipeline__generator_args": arguments}
    given |= {} if curated else {"data_processor__task_pipeline__config_path": None}
    assert tuple(most_rows(stage(name, **given), generated=True) for name in ("rft", "sft")) == rows
    assert most_rows(stage("rft", **given)) is None


def test_arguments_that_count_are_those_of_the_generators():
    for name, arguments in sources.GENERATED.items():
        assert set(arguments) <= set(inspect.signature(GENERATORS[name]).parameters)
    rows = list(GENERATORS["countdown"](1, tasks=40, demonstrations=20, dirt=0.1))
    assert len(rows) == 66
    assert sum(row.solution is None for row in rows) <= 46


def test_passes_over_files_are_at_most_so_many_steps(files):
    """3 x 100 tasks are 4 explorer steps of 64, and 300 x 8 rows 4 of 512; 3 x 28 demonstrations one batch of 64."""
    found = workload(stage("rft", **EPOCHS, **{f"{SET}path": str(files / "train-0.parquet")}))
    assert (found.explorer_steps, found.trainer_steps, found.experiences, found.most) == (4, 4, 4 * 512, True)
    words = dict(described(stage("rft", **EPOCHS, **{f"{SET}path": str(files / "train-0.parquet")})))
    wording(words["trainer"], "4 optimizer", "3 pass")
    wording(words["explorer"], "4 steps", "64 tasks")
    sft = stage("sft", stages__sft__buffer__total_steps=None, stages__sft__buffer__batch_size=64,
                stages__sft__buffer__total_epochs=3, data_processor__task_pipeline__generator=None,
                buffer__trainer_input__experience_buffer__path=str(files / "more.jsonl"))
    assert (workload(sft).trainer_steps, workload(sft).most) == (1, True)
