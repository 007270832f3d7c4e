"""The parent's view of a training stage: every step is reported once, and the last checkpoint is handed on."""

import pytest

from ouroboros.pipeline.job.progress import score_words
from ouroboros.pipeline.store import checkpoints, files, records, tables, versions
from ouroboros.stages import follow
from ouroboros.stages.follow import TOTAL, Follower, RolloutFollower, finish_training
from tests.factories import row
from tests.golden.messages import wording


class Tracker:
    def __init__(self):
        self.steps, self.scores, self.metrics = [], [], []

    def log_earlier(self, rows):
        self.earlier = [(step, sorted(metrics)) for metrics, step in rows]

    def log(self, metrics, step):
        if "actor/loss" in metrics:
            self.steps.append(step)
            return
        rows, speed = metrics["sample/experience_count"], metrics["perf/rollout_tokens_per_second"]
        self.metrics.append((step, rows, speed))

    def log_scores(self, scores, step):
        self.scores.append((step, [score.value for score in scores]))


@pytest.fixture
def tracker(monkeypatch):
    from contextlib import nullcontext

    made = Tracker()
    monkeypatch.setattr(follow, "open_tracker", lambda context: nullcontext(made))
    return made


def write_step(stage, step):
    made = row(records.Step, step=step, loss=1.0, train_seconds=1.0, seconds=1.0)
    tables.write(tables.step_file(stage, "steps", step), records.Step, [made])


def checkpoint(stage, step, content="weights"):
    directory = checkpoints.checkpoint_directory(stage, step)
    (directory / "model").mkdir(parents=True)
    (directory / "model" / checkpoints.WEIGHTS).write_text(content)
    files.write_json(directory / files.MANIFEST, {"step": step, "weights_hash": f"hash of {step}"})


def test_steps_are_reported_once_and_in_order(tmp_path, context_of, tracker):
    with Follower(context_of(tmp_path)) as follower:
        follower.poll()
        write_step(tmp_path, 1)
        write_step(tmp_path, 2)
        follower.poll()
        assert tracker.steps == []  # how many there will be is not known yet
        files.write_json(tmp_path / TOTAL, {"total_steps": 4})
        follower.poll()
        follower.poll()
        write_step(tmp_path, 4)
        follower.poll()
        assert tracker.steps == [1, 2]  # 3 comes first
        write_step(tmp_path, 3)
        follower.poll()
    assert tracker.steps == [1, 2, 3, 4]


def test_a_table_of_rollouts_is_sent_every_interval_of_explorer_steps(tmp_path, context_of, tracker):
    """Two trainer steps are reported while eight explorer steps end."""
    def explored(*steps):
        for step in steps:
            tables.write(tables.step_file(tmp_path, "experience", step), records.Experience,
                         [row(records.Experience, step=step, status="ok")])

    tracker.tables = []
    tracker.log_rollouts = lambda read, step: tracker.tables.append((step, [one["status"] for one in read()]))
    with Follower(context_of(tmp_path, "monitor.rollouts_interval=2")) as follower:
        files.write_json(tmp_path / TOTAL, {"total_steps": 4})
        explored(1, 2, 3, 4, 5)
        write_step(tmp_path, 1)
        follower.poll()
        assert [step for step, _ in tracker.tables] == [2, 4]
        explored(6, 7, 8)
        write_step(tmp_path, 2)
        follower.poll()
    assert tracker.tables == [(step, ["ok"]) for step in (2, 4, 6, 8)]


def test_a_resumed_stage_goes_on_behind_its_checkpoint(tmp_path, context_of, tracker):
    for step in (1, 2, 3):
        write_step(tmp_path, step)
    checkpoint(tmp_path, 2)
    files.write_json(tmp_path / TOTAL, {"total_steps": 99})  # of the life before
    with Follower(context_of(tmp_path)) as follower:
        assert not (tmp_path / TOTAL).exists()
        assert tables.steps_present(tmp_path, "steps") == [1, 2]
        files.write_json(tmp_path / TOTAL, {"total_steps": 3})
        write_step(tmp_path, 3)
        follower.poll()
    assert tracker.steps == [3]
    assert [step for step, metrics in tracker.earlier if "actor/loss" in metrics] == [1, 2]


@pytest.mark.parametrize(("saved", "words"), [
    (2, "resumes at step 3 (it had reached step 3)"), (3, "resumes at step 4"),
    (0, "restarts at step 1 (it had reached step 3): there is no checkpoint yet")])
def test_a_resumed_stage_says_with_which_step_it_goes_on(tmp_path, context_of, caplog, saved, words):
    caplog.set_level("INFO")
    Follower(context_of(tmp_path / "new"))
    assert not caplog.records
    for step in (1, 2, 3):
        write_step(tmp_path, step)
    if saved:
        checkpoint(tmp_path, saved)
    Follower(context_of(tmp_path))
    (record,) = caplog.records
    assert words in record.getMessage()


def test_failed_rows_are_warned_about_once_with_a_question_that_shows_why(tmp_path, context_of, tracker, caplog):
    with Follower(context_of(tmp_path)) as follower:
        files.write_json(tmp_path / TOTAL, {"total_steps": 3})
        for step, failed in ((1, 0), (2, 3), (3, 1)):
            made = row(records.Step, step=step, loss=1.0, lr=1.0, grad_norm=1.0, failed_rows=failed)
            tables.write(tables.step_file(tmp_path, "steps", step), records.Step, [made])
        follower.poll()
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    wording(said, "3 rows", "2 failed")
    assert "ouro sql" in said


def test_steps_that_learn_nothing_are_warned_about_once_also_after_a_resume(tmp_path, context_of, tracker, caplog):
    """Every step has a learning rate of 0."""
    for life, last in enumerate([12, 24]):
        with Follower(context_of(tmp_path)) as follower:
            files.write_json(tmp_path / TOTAL, {"total_steps": 24})
            for step in range(12 * life + 1, last + 1):
                write_step(tmp_path, step)
            follower.poll()
        checkpoint(tmp_path, last)
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    wording(said, "1 to", "10 taught", "rate 0")


def write_scores(stage, step, value):
    made = row(records.Score, step=step, taskset="test", metric="sampled_accuracy", value=value, low=0.2, high=0.4)
    tables.write(tables.step_file(stage, "scores", step), records.Score, [made])


def test_evaluations_on_the_way_are_reported_once_and_shown_with_every_later_step(tmp_path, context_of, tracker):
    write_scores(tmp_path, 2, 0.1)  # of a life before, kept and reported then
    checkpoint(tmp_path, 2)
    write_step(tmp_path, 1)
    write_step(tmp_path, 2)
    with Follower(context_of(tmp_path)) as follower:
        files.write_json(tmp_path / TOTAL, {"total_steps": 5})
        write_scores(tmp_path, 4, 0.3)
        follower.poll()
        follower.poll()
        wording(score_words(follower.scores), "30% [20, 40]", "step 4")
    assert tracker.scores == [(4, [0.3])]


def test_explorer_steps_are_followed_where_there_is_no_trainer(tmp_path, context_of, tracker):
    def explored(step):
        made = row(records.Rollout, stage=tmp_path.name, step=step, rows=8, tokens=500, rollout_seconds=0.25,
                   other_seconds=0.05)
        tables.write(tables.step_file(tmp_path, "experience", step), records.Experience, [])
        tables.write(tables.step_file(tmp_path, "rollouts", step), records.Rollout, [made])

    explored(1)
    context = context_of(tmp_path)
    with RolloutFollower(context) as follower:
        assert context.earlier_seconds == pytest.approx(0.3)
        files.write_json(tmp_path / TOTAL, {"total_steps": 2})
        explored(2)
        follower.poll()
    assert tracker.metrics == [(2, 8.0, 2000.0)]


@pytest.mark.parametrize(("offset", "kind", "kept"), [
    (0, "constant", []), (1, "constant", [8, 9]), (2, "wsd", [8, 9]), (3, "constant", [6, 8, 9]), (3, "linear", [])])
def test_a_finished_stage_hands_on_its_last_model_and_keeps_the_weights_that_a_longer_one_begins_with(
        tmp_path, context_of, offset, kind, kept):
    """Step 11 of an explorer that gets every second version: on-policy 10, the checkpoint, else 8, 8 and 6; none
    follows where the learning rate falls towards the last step."""
    context = context_of(tmp_path, f"synchronizer.sync_offset={offset}",
                         f"algorithm.optimizer.lr_scheduler_type={kind}")
    checkpoint(tmp_path, 5, "old")
    checkpoint(tmp_path, 10, "new")
    for version in (4, 6, 8, 9):
        files.write_json(versions.version_directory(tmp_path, version) / files.MANIFEST, {"hash": "old"})
    finish_training(context)
    assert (tmp_path / "model" / checkpoints.WEIGHTS).read_text() == "new"
    assert versions.numbers(tmp_path) == kept
    assert context.made == {"steps": 10, "weights_hash": "hash of 10"}
