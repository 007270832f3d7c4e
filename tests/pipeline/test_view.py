"""Which runs there are, how far their stages are, what was learnt."""

import fcntl
import os

import pytest

from pipeline.results import view
from pipeline.store import tables
from pipeline.store.errors import DataError
from pipeline.store.records import Rollout, Score
from tests.factories import row
from tests.fake_run import FakeRun


def test_the_latest_launch_is_the_default_and_names_may_be_short(tmp_path):
    old, new = FakeRun(tmp_path, "toy/old").view(), FakeRun(tmp_path, "toy/new").view()
    os.utime(old / "plan.json", (1, 1))
    os.utime(new / "plan.json", (2, 2))
    assert view.find_view(tmp_path).run == "toy/new"
    assert view.find_view(tmp_path, "old").run == "toy/old"
    assert view.find_view(tmp_path, "toy/old").run == "toy/old"


def test_an_unknown_or_ambiguous_name_lists_the_runs(tmp_path):
    FakeRun(tmp_path, "toy/a").view()
    FakeRun(tmp_path, "other/a").view()
    with pytest.raises(DataError, match=r"say which: .*toy/a"):
        view.find_view(tmp_path, "a")
    with pytest.raises(DataError, match=r"no run 'toy/b'.*Did you mean 'toy/a'.*other/a, toy/a"):
        view.find_view(tmp_path, "toy/b")
    with pytest.raises(DataError, match=r"no run below .*ouro run"):
        view.find_view(tmp_path / "empty")


def test_states_of_stages(tmp_path):
    run = FakeRun(tmp_path, steps=4)
    run.data()
    run.sft()
    (sft := view.open_view(run.view()).stages[-1].directory / "manifest.json").unlink()
    partial = view.state(view.open_view(run.view()).stages[-1])
    assert partial.state == "partial, step 4 of 4"
    assert partial.latest.startswith("step 4/4  loss 1.9212")
    with open(sft.parent / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert view.state(view.open_view(run.path).stages[-1]).state == "running, step 4 of 4"
    tasks, missing = view.open_view(run.path).stages[0], run.report()
    assert (view.state(tasks).state, view.state(tasks).seconds) == ("complete", 0.4)
    assert view.state(view.Node("report", "report", missing)).state == "missing"


def test_a_failed_stage_says_why_until_a_later_life_of_it_is_cut_off(tmp_path):
    run = FakeRun(tmp_path, steps=4)
    run.data()
    run.sft()
    stage = view.open_view(run.view()).stages[-1]
    (stage.directory / "manifest.json").unlink()
    (stage.directory / "stage.error").write_text("the trainer died\nlog: ...\n")
    assert view.state(stage).state == "failed, step 4 of 4"
    assert view.state(stage).problem == "the trainer died"
    (stage.directory / "stage.error").write_text("interrupted\nlog: ...\n")
    assert (view.state(stage).state, view.state(stage).problem) == ("interrupted, step 4 of 4", None)
    (stage.directory / "stage.log").touch()
    os.utime(stage.directory / "stage.error", (1, 1))
    assert (view.state(stage).state, view.state(stage).problem) == ("partial, step 4 of 4", None)


def test_a_stage_that_completes_while_it_is_looked_at_is_complete(tmp_path, monkeypatch):
    run = FakeRun(tmp_path)
    stage = view.Node("sft", "train", run.stage("sft", "train", complete=False))

    def completes(path):
        view.files.write_json(stage.directory / "manifest.json", {"seconds": 3.0})
        return False

    monkeypatch.setattr(view, "is_locked", completes)
    assert view.state(stage).state == "complete"


def test_the_summary_says_what_was_learnt_in_how_long_and_where_the_report_is(tmp_path):
    run = FakeRun(tmp_path).whole()
    shown = view.open_view(run.view())
    lines = view.summary(shown).splitlines()
    assert lines[0] == "sft on test: sampled accuracy 38% [35, 41], 256 tasks x 8"
    assert "learnt: 38% [35, 41] after sft -> 81% [78, 84] after rft" in lines
    assert lines[-1] == "toy/first: 7 of 8 stages complete, 3:13 of work"  # 0.4 + 2.1 + 0.8 + 31 + 9 + 141 + 9 s
    (shown.stages[-1].directory / "report.html").touch()
    (run.path / "report.html").symlink_to("stages/report/report.html")
    assert view.summary(shown).splitlines()[-1] == f"report: {run.path / 'report.html'}"


def test_one_model_is_no_before_and_after(tmp_path):
    run = FakeRun(tmp_path)
    run.data()
    run.sft()
    run.evaluate("sft", 0.5)
    assert "learnt" not in view.summary(view.open_view(run.view()))


def test_what_was_learnt_compares_evaluations_of_one_kind():
    """The base and rft were evaluated; a bench then asked rft again, another way: 0.9 is not compared with 0.2."""
    found = [row(Score, model=model, taskset="test", metric="sampled_accuracy", value=value)
             for model, value in (("base", 0.2), ("rft", 0.6), ("rft", 0.9))]
    ((first, last),) = view.before_and_after(found)
    assert (first.value, last.value) == (0.2, 0.6)


def test_the_summary_tells_of_every_checkpoint_of_a_bench(tmp_path):
    run = FakeRun(tmp_path).whole()
    directory = run.stage("bench_rft", "bench", "curate", "rft")
    for step in (1, 2):
        tables.write(tables.step_file(directory, "scores", step), Score, [row(
            Score, model="rft-1", step=step, taskset="test", metric="sampled_accuracy", value=step / 10, low=0.0,
            high=0.5, tasks=4, runs=2)])
    lines = view.summary(view.open_view(run.view())).splitlines()
    assert lines[:2] == ["rft-1, step 1, on test: sampled accuracy 10% [0, 50], 4 tasks x 2",
                         "rft-1, step 2, on test: sampled accuracy 20% [0, 50], 4 tasks x 2"]


def test_how_far_a_stage_is_that_only_explores(tmp_path):
    run = FakeRun(tmp_path, steps=4)
    directory = run.stage("look", "rollout", complete=False)
    tables.write(tables.step_file(directory, "rollouts", 3), Rollout, [row(
        Rollout, step=3, rows=8, failed_rows=1, tokens=500, rollout_seconds=0.25, other_seconds=0.05)])
    found = view.state(view.open_view(run.view()).stages[-1])
    assert found.state == "partial, step 3 of 4"
    assert found.latest == "explorer step 3/4  8 rows (1 failed)  rollout 2.0k tokens/s  0.30 s"
