"""Batches of more rows than there are."""

import pytest

from pipeline.check.batch_rules import batch_notes, problems
from pipeline.check.preflight import check
from tests.configs import changed
from tests.pipeline.test_workload import stage

LOOK = {"stage_name": "look", "mode": "explore", "buffer": {"batch_size": 4, "total_steps": 3}}  # 4 x 8 x 3 = 96 rows


def sft(**buffer) -> list[str]:
    return problems(changed({f"stages.sft.buffer.{key}": value for key, value in buffer.items()}))


def test_a_batch_of_demonstrations_may_be_all_of_them():
    """6,000, and 5% of 8,500 faulty rows, which may be copies of demonstrations."""
    assert sft(batch_size=6425) == sft() == []
    (line,) = sft(batch_size=100_000)
    assert line == ("stage 'sft': buffer.batch_size=100,000: a step takes so many demonstrations, each once, "
                    "and before curation there are at most 6,425: 93,575 short. Lower it.")
    (line,) = sft(train_batch_size=6426)
    assert line.startswith("stage 'sft': buffer.train_batch_size=6,426:")


def test_pairs_are_counted_as_pairs(tmp_path):
    (tmp_path / "pairs.jsonl").write_text("{}\n" * 40)
    given = {"stages": [{"stage_name": "prefer", "algorithm": {"algorithm_type": "dpo"}}], "buffer.batch_size": 41,
             "buffer.trainer_input.experience_buffer.path": str(tmp_path / "pairs.jsonl")}
    (line,) = problems(changed(given))
    assert "buffer.batch_size=41: a step takes so many pairs, each once, and before curation there are at " \
           "most 40: 1 short" in line
    assert problems(changed(given | {"buffer.batch_size": 40})) == []


@pytest.mark.parametrize(("batch", "short"), [(None, 0), (96, 0), (128, 32)])
def test_a_batch_of_recorded_rows_is_not_more_than_were_explored(batch, short):
    found = problems(changed({"stages": [LOOK, {"stage_name": "careful", "mode": "train",
                                                "buffer": {"train_batch_size": batch}}]}))
    assert found == ([f"stage 'careful': buffer.train_batch_size=128: a step takes so many experiences, each "
                      f"once, and 'look' explores at most 96: {short} short. Lower it, or let look make more steps."]
                     if short else [])


def test_of_a_length_that_is_not_known_nothing_is_said():
    look = {**LOOK, "buffer": {"batch_size": 4, "total_steps": None}}
    careful = {"stage_name": "careful", "mode": "train", "buffer": {"train_batch_size": 10_000}}
    assert problems(changed({"stages": [look, careful]})) == []


def test_tasks_that_are_asked_again_within_a_step_are_told():
    """64 / 3 = 21.3. Of 2,925 tasks x 8 = 23,400 rollouts, 5,120,000 are 219 passes."""
    (line,) = batch_notes(stage("rft", buffer__explorer_input__taskset__limit=3))
    assert line.startswith("buffer.batch_size=64: there are at most 3 tasks, so every explorer step asks each of them "
                           "21.3 times, in as many groups.")
    (line,) = batch_notes(stage("rft", buffer__train_batch_size=5_120_000))
    assert line.startswith("buffer.train_batch_size=5,120,000: one optimizer step takes the rollouts of 219 passes "
                           "over all tasks (at most 2,925).")
    assert batch_notes(stage("rft")) == batch_notes(stage("sft")) == []
    assert batch_notes(stage("rft", mode="explore", buffer__train_batch_size=5_120_000)) == []


def test_the_check_before_a_run_says_both(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = check(changed({"stages.sft.buffer.batch_size": 100_000, "buffer.explorer_input.taskset.limit": 3}))
    assert any("93,575 short" in line for line in report.problems)
    assert any("at most 3 tasks" in line for line in report.warnings)
