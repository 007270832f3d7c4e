"""Batches of more rows than there are."""

import pytest

from ouroboros.pipeline.check.batch import notes, unfillable_steps
from ouroboros.pipeline.check.preflight import check
from ouroboros.pipeline.compose.recipe import Recipe
from tests.configs import changed, places
from tests.golden.messages import wording
from tests.pipeline.check.test_workload import stage


def sft(**buffer) -> list[str]:
    return unfillable_steps(Recipe(changed({f"stages.sft.buffer.{key}": value for key, value in buffer.items()})))


def test_a_batch_of_demonstrations_may_be_all_of_them():
    """6,000, and 5% of 8,500 faulty rows, which may be copies of demonstrations."""
    assert sft(batch_size=6425) == sft() == []
    (problem,) = sft(batch_size=100_000)
    assert (problem.stages, problem.key, problem.found) == (("sft",), "buffer.batch_size", "100,000")
    wording(problem.needed, "6,425: 93,575")
    assert places(sft(train_batch_size=6426)) == ["sft: buffer.train_batch_size"]


def test_pairs_are_counted_as_pairs(tmp_path):
    (tmp_path / "pairs.jsonl").write_text("{}\n" * 40)
    given = {"stages": [{"stage_name": "prefer", "algorithm": {"algorithm_type": "dpo"}}], "buffer.batch_size": 41,
             "buffer.trainer_input.experience_buffer.path": str(tmp_path / "pairs.jsonl")}
    (problem,) = unfillable_steps(Recipe(changed(given)))
    assert (problem.key, problem.found) == ("buffer.batch_size", "41")
    wording(problem.needed, "40: 1")
    assert unfillable_steps(Recipe(changed(given | {"buffer.batch_size": 40}))) == []


@pytest.mark.parametrize(("steps", "batch", "expected"), [
    (3, None, []), (3, 96, []), (3, 128, ["careful: buffer.train_batch_size"]), (None, 10_000, [])])  # not known
def test_a_batch_of_recorded_rows_is_not_more_than_were_explored(steps, batch, expected):
    """4 tasks x 8 rollouts x 3 steps = 96 rows."""
    look = {"stage_name": "look", "mode": "explore", "buffer": {"batch_size": 4, "total_steps": steps}}
    found = unfillable_steps(Recipe(changed({"stages": [look, {"stage_name": "careful", "mode": "train",
                                                               "buffer": {"train_batch_size": batch}}]})))
    assert places(found) == expected
    assert all("96: 32" in problem.needed for problem in found)


def test_tasks_that_are_asked_again_within_a_step_are_a_warning():
    """64 / 3 = 21.3. Of 2,925 tasks x 8 = 23,400 rollouts, 5,120,000 are 219 passes."""
    (note,) = notes(stage("rft", buffer__explorer_input__taskset__limit=3))
    assert note.key == "buffer.batch_size"
    wording(note, "3 tasks", "21.3 times")
    (note,) = notes(stage("rft", buffer__train_batch_size=5_120_000))
    assert (note.key, "219 passes" in note, "2,925" in note) == ("buffer.train_batch_size", True, True)
    assert notes(stage("rft")) == notes(stage("sft")) == []
    assert notes(stage("rft", mode="explore", buffer__train_batch_size=5_120_000)) == []


def test_the_check_before_a_run_says_both(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = check(changed({"stages.sft.buffer.batch_size": 100_000, "buffer.explorer_input.taskset.limit": 3}))
    assert places(report.problems) == ["sft: buffer.batch_size"]
    assert places(report.warnings) == ["rft: buffer.batch_size"]
