"""The number of threads follows from the cores of a process, and a resumed stage keeps its own."""

import logging
import os
import sys

import pytest

from ouroboros.pipeline.job.claims import claimed_cores
from ouroboros.pipeline.job.context import run_stage
from ouroboros.pipeline.job.shares import cores
from ouroboros.pipeline.job.threads import RECORD, record_threads, recorded_threads, thread_environment
from ouroboros.pipeline.store import files
from tests.golden.messages import wording

SET_BY_SNAKEMAKE = ("OMP_NUM_THREADS", "GOTO_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
                    "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS")


@pytest.fixture
def stage(tmp_path, environment_kept):
    spec = {"run": "toy/one", "name": "tasks", "kind": "tasks", "identity": "0123abcd", "root": str(tmp_path),
            "inputs": {}, "config": {"verify": "hash", "log": {"level": "INFO"}}}
    files.write_json(tmp_path / "stage.json", spec)
    return tmp_path


def started(stage, monkeypatch) -> dict[str, str]:
    """Runs the stage in this process; returns the environment that its work saw."""
    seen = {}
    monkeypatch.setattr(sys, "argv", ["tasks", str(stage)])
    run_stage(lambda context: seen.update(os.environ), "doc")
    return seen


def test_every_variable_that_snakemake_sets_is_overwritten():
    assert {thread_environment(3)[name] for name in SET_BY_SNAKEMAKE} == {"3"}


def test_a_stage_has_a_thread_for_each_core_whatever_the_shell_says(stage, monkeypatch):
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    number = len(cores())
    seen = started(stage, monkeypatch)
    assert {seen[name] for name in SET_BY_SNAKEMAKE} == {str(number)}
    assert files.read_json(stage / files.MANIFEST)["threads"] == {"cores": number}


@pytest.mark.skipif(len(cores()) < 2, reason="one core is all there is")
def test_a_resumed_stage_takes_as_many_cores_as_before_though_there_are_more(stage, monkeypatch):
    files.write_json(stage / RECORD, {"cores": 1})
    assert started(stage, monkeypatch)["MKL_NUM_THREADS"] == "1"
    assert len(cores()) == 1
    assert "WARNING" not in (stage / "stage.log").read_text()


@pytest.mark.skipif(len(cores()) < 2, reason="one core is all there is")
def test_a_resumed_stage_takes_cores_that_no_other_resumed_stage_holds(stage, monkeypatch):
    available = cores()
    files.write_json(stage / RECORD, {"cores": 1})
    with claimed_cores(available, 1, str(stage)) as others:
        started(stage, monkeypatch)
        assert others == available[:1]
        assert cores() == available[1:2]


def test_cores_of_other_stages_are_taken_where_too_few_are_free(tmp_path):
    with claimed_cores([3, 4, 7], 2, str(tmp_path)) as first, claimed_cores([3, 4, 7], 2, str(tmp_path)) as second:
        assert (first, second) == ([3, 4], [3, 7])
    with claimed_cores([3, 4, 7], 2, str(tmp_path)) as third:
        assert third == [3, 4]


def test_a_machine_with_fewer_cores_than_before_is_warned_of_once(stage, monkeypatch, caplog):
    more = len(cores()) + 1
    files.write_json(stage / RECORD, {"cores": more, "trainer": more})
    started(stage, monkeypatch)
    record_threads(stage, {"trainer": more - 1}, logging.getLogger("tests"))
    assert not caplog.records
    warnings = [line for line in (stage / "stage.log").read_text().splitlines() if "WARNING" in line]
    assert len(warnings) == 1
    assert f"cores {more} -> {more - 1}" in warnings[0]


def test_children_of_another_size_than_before_are_warned_of(stage, caplog):
    log = logging.getLogger("tests")
    record_threads(stage, {"trainer": 3, "explorer": 1}, log)
    record_threads(stage, {"trainer": 3, "explorer": 1}, log)
    assert not caplog.records
    record_threads(stage, {"trainer": 2, "explorer": 2}, log)
    wording(caplog.text, "3 -> 2", "1 -> 2")
    assert recorded_threads(stage) == {"trainer": 2, "explorer": 2}
