"""Evaluating the checkpoints of a training stage, one after the other."""

import shutil

import pytest

from ouroboros.pipeline.store import checkpoints, files, records, tables
from ouroboros.stages import bench, score
from ouroboros.stages.learner.engine import policy
from tests.factories import row

TASKS = [row(records.Task, task_id=f"t{i}", split="test", question=f"{i} 1 = {i + 1}",
             answer=f'{{"numbers": [{i}, 1], "target": {i + 1}}}') for i in range(2)]


@pytest.fixture
def stage(tmp_path, tiny_model, context_of, tiny_settings, monkeypatch):
    """Checkpoints 2, 4 and 6 of a training stage, all the same model; of 2 the weights are zeros."""
    from transformers import AutoModelForCausalLM

    tables.write(tmp_path / "curate" / "tasks.parquet", records.Task, TASKS)
    trained = tmp_path / "rft-1"
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    for step, scale in ((2, 0.0), (4, 1.0), (6, 1.0)):
        directory = checkpoints.checkpoint_directory(trained, step)
        checkpoints.copy_model_files(tiny_model, directory / "model")
        state = {name: scale * value for name, value in model.named_parameters()}
        policy.export(state, model, directory / "model")
        files.write_json(directory / files.MANIFEST, {"step": step})
    monkeypatch.setattr(bench, "run_evaluator", score.score_benched)
    context = context_of(tmp_path / "bench", tasks=tmp_path / "curate", model=trained)
    context.config = tiny_settings("monitor.monitor_type=none", "model.max_response_tokens=4")
    return context


def greedy(context, step):
    samples = tables.read(tables.step_file(context.directory, "samples", step), records.Sample).to_pylist()
    return [s["response_tokens"] for s in samples if s["decoding"] == "greedy"]


def test_every_checkpoint_but_the_last_is_scored_with_its_own_weights(stage):
    bench.work(stage)
    assert tables.steps_present(stage.directory, "scores") == [2, 4]
    assert {(s.model, s.step, s.stage) for s in tables.read_scores(stage.directory, 4)} == {("rft-1", 4, "bench")}
    assert greedy(stage, 2) == [[0] * 4] * 2  # all logits equal: the first token
    assert greedy(stage, 4) != greedy(stage, 2)
    assert stage.made == {"checkpoints": [2, 4]}


def test_chosen_steps_alone_are_scored(stage):
    stage.config = stage.config.but("explorer.bench_steps", [4, 6, 5])  # 5 is another stage's, 6 the model of this one
    bench.work(stage)
    assert tables.steps_present(stage.directory, "scores") == [4]


def test_what_is_scored_is_not_scored_again(stage, monkeypatch):
    for step in (2, 4):
        tables.write(tables.step_file(stage.directory, "scores", step), records.Score, [])
    monkeypatch.setattr(bench, "run_evaluator", None)
    bench.work(stage)
    assert tables.read_scores(stage.directory, 2) == []


def test_a_single_checkpoint_leaves_nothing_to_do(stage, monkeypatch):
    for step in (2, 4):
        shutil.rmtree(checkpoints.checkpoint_directory(stage.inputs["model"], step))
    monkeypatch.setattr(bench, "run_evaluator", None)
    bench.work(stage)
    assert stage.made == {"checkpoints": []}
