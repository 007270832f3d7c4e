"""The stage `evaluate`: a whole one, and which training step its model is said to come from."""

import logging
import shutil

import pytest

from ouroboros.pipeline.job.tasksets import read_eval
from ouroboros.pipeline.store import files, records, tables
from ouroboros.pipeline.store.errors import DataError
from ouroboros.stages import evaluate, score
from tests.factories import row
from tests.golden.messages import refuses, wording

TASKS = [row(records.Task, task_id=f"t{i}", row=i, split="train" if i == 0 else "test", question=f"{i} 1 = {i + 1}",
             answer=f'{{"numbers": [{i}, 1], "target": {i + 1}}}') for i in range(5)]


@pytest.fixture
def stage(tmp_path, tiny_model, context_of, tiny_settings, monkeypatch):
    """An evaluation without a process of its own for the evaluator."""
    monkeypatch.setattr(evaluate, "run_evaluator", score.score_model)
    tables.write(tmp_path / "curate" / "tasks.parquet", records.Task, TASKS)
    curated = tmp_path / "curate"
    context = context_of(tmp_path / "evaluate", tasks=curated, trained=curated, model=tiny_model)
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
    monkeypatch.undo()
    stage.config.explorer.env_vars = {"OURO_TEST_PORT": 8010}
    started = []
    monkeypatch.setattr(evaluate, "supervise", lambda context, children, follow: started.extend(children))
    evaluate.run_evaluator(stage)
    assert [child.environment for child in started] == [{"OURO_TEST_PORT": "8010"}]


def test_a_set_with_a_path_has_its_own_rows_and_eval_sets_their_own_workflow(stage, tmp_path):
    """Set held has a path: its one task, though the file has four others of split test."""
    held = row(records.Task, task_id="h", taskset="held", split="test", question="1", context=[
        {"role": "system", "content": "Add "}], answer='{"numbers": [1], "target": 1}')
    tables.write(tmp_path / "curate" / "tasks.parquet", records.Task, [*TASKS, held])
    (taskset,) = stage.config.buffer.explorer_input.eval_tasksets
    taskset.name, taskset.path = "held", "held.jsonl"
    stage.config.buffer.explorer_input.default_workflow_type = "nobody:nothing"
    stage.config.buffer.explorer_input.default_eval_workflow_type = "simple_workflow"
    evaluate.work(stage)
    found = tables.read(tables.step_file(stage.directory, "samples", 0), records.Sample).to_pylist()
    assert {(s["task_id"], s["taskset"], s["prompt"], s["status"]) for s in found} == {("h", "held", "Add 1:", "ok")}
    taskset.name = "other"
    with refuses(DataError, "evaluation set 'other':", "tasks.parquet"):
        read_eval(stage.inputs["tasks"], taskset)


def test_tasks_that_were_trained_on_too_and_duplicates_are_counted(stage, tmp_path, caplog):
    """Of four rows two are the same task. Two of the three tasks were trained on: one with other spaces and another
    system message by the stage itself, one by the stage before it, whose files lead there."""
    question = [{"question": "What is  1 + 1?", "context": [{"role": "system", "content": "Think."}]},
                {"question": "Who are you?"}, {"question": "Who are you?"}, {"question": "New?"}]
    tables.write(tmp_path / "curate" / "tasks.parquet", records.Task, [
        row(records.Task, task_id=one["question"], split="test", answer='{"numbers": [1], "target": 1}', **one)
        for one in question])
    for name, split, asked in (("first", "sft", "Who are you?"), ("second", "train", "What is 1 + 1?")):
        tables.write(tmp_path / name / "tasks.parquet", records.Task, [
            row(records.Task, split=split, question=asked), row(records.Task, split="test", question="New?")])
    model = tmp_path / "rft"
    shutil.copytree(stage.inputs["model"], model)
    files.write_json(tmp_path / "sft" / "stage.json", {"inputs": {
        "tasks": str(tmp_path / "first"), "model": str(tmp_path / "random")}})
    files.write_json(tmp_path / "random" / "stage.json", {"inputs": {}})
    files.write_json(model / "stage.json", {"inputs": {
        "tasks": str(tmp_path / "second"), "model": str(tmp_path / "sft")}})
    files.write_json(model / files.MANIFEST, {"steps": 0})
    stage.inputs |= {"model": model, "trained": tmp_path / "second"}
    stage.log = logging.getLogger()
    stage.config.buffer.explorer_input.eval_tasksets[0].limit = None
    caplog.set_level("INFO")
    evaluate.work(stage)
    wording([[r.getMessage() for r in caplog.records if r.name == "root"][:2]], "countdown_test: 3", "4 rows",
            "1 duplicate", "merged")
    scores = tables.read_scores(stage.directory, 0)
    assert {(s.tasks, s.rows, s.trained_tasks) for s in scores} == {(3, 4, 2)}
    samples = tables.read(tables.step_file(stage.directory, "samples", 0), records.Sample).to_pylist()
    assert sorted((s["task_id"], s["run_index"]) for s in samples if s["decoding"] == "sampled") == sorted(
        (task, run) for task in ("What is  1 + 1?", "Who are you?", "New?") for run in range(4))
