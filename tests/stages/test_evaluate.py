"""The stage `evaluate`: a whole one, and which training step its model is said to come from."""

import os

import pytest

from pipeline import records, tables
from stages import evaluate
from tests.factories import row

TASKS = [row(records.Task, task_id=f"t{i}", row=i, split="train" if i == 0 else "test", question=f"{i} 1 = {i + 1}",
             answer=f'{{"numbers": [{i}, 1], "target": {i + 1}}}') for i in range(5)]


@pytest.fixture
def stage(tmp_path, tiny_model, context_of, tiny_settings):
    tables.write(tmp_path / "curate" / "tasks.parquet", records.Task, TASKS)
    context = context_of(tmp_path / "evaluate", tasks=tmp_path / "curate", model=tiny_model)
    context.config = tiny_settings("monitor.monitor_type=none", "model.max_response_tokens=6")
    (taskset,) = context.config.buffer.explorer_input.eval_tasksets
    taskset.limit, taskset.repeat_times = 3, 4
    return context


def test_a_whole_evaluation(stage):
    """3 of the 4 test tasks, each once greedily and four times sampled."""
    evaluate.work(stage)
    found = tables.read(tables.step_file(stage.directory, "samples", 0), records.Sample).to_pylist()
    assert len(found) == 3 + 12
    assert {s["task_id"] for s in found} == {"t1", "t2", "t3"}
    assert {s["status"] for s in found} == {"ok"}
    sampled = [s for s in found if s["decoding"] == "sampled"]
    assert len({s["seed"] for s in sampled}) == 12
    assert [s["run_index"] for s in sampled] == [0, 1, 2, 3] * 3
    assert len({tuple(s["response_tokens"]) for s in sampled if s["task_id"] == "t1"}) == 4
    scores = tables.read(tables.step_file(stage.directory, "scores", 0), records.Score).to_pylist()
    assert [s["metric"] for s in scores] == ["greedy_accuracy", "sampled_accuracy", "pass@2", "pass@4"]
    assert {(s["model"], s["step"]) for s in scores} == {(stage.inputs["model"].name, 0)}
    assert set(stage.made) == {f"countdown_test/{s['metric']}" for s in scores}


def test_a_workflow_finds_the_variables_that_were_set_for_it(stage, monkeypatch):
    monkeypatch.setenv("OURO_TEST_PORT", "none")
    stage.config.explorer.env_vars = {"OURO_TEST_PORT": 8010}
    evaluate.work(stage)
    assert os.environ["OURO_TEST_PORT"] == "8010"
