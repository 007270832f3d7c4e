"""Which runs there are, how far their stages are, what was learnt."""

import fcntl
import os

import pytest

from pipeline import view
from pipeline.errors import DataError
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
