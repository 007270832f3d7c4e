"""Metrics: their names, that they never hold a step up, and what the monitors are told."""

import json
import logging
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from ouroboros.pipeline.job import sinks, tracking
from ouroboros.pipeline.job.metrics import score_metrics, step_metrics
from ouroboros.pipeline.settings import monitors
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.monitors import check_monitor
from ouroboros.pipeline.store import tables
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.pipeline.store.records import Experience, Score, Step
from tests.factories import row
from tests.fake_run import FakeRun
from tests.golden.messages import refuses, wording


def context(root, kind: str, stage: str = "rft", **monitor_args):
    """What a stage hands to open_tracker."""
    directory = FakeRun(root).stage(stage, "rft", complete=False)
    config = {"monitor": {"monitor_type": kind, "monitor_args": monitor_args}, "checkpoint_root_dir": str(root)}
    return SimpleNamespace(config=Config.partial(config), run="toy/first", name=stage, id=directory.name,
                           directory=directory, log=logging.getLogger("test"))


class Memory:
    """A sink that keeps what it is given; it may be slow, or fail for a while."""

    def __init__(self, failures: int = 0, seconds: float = 0.0):
        self.failures, self.seconds, self.rows, self.closed = failures, seconds, [], None

    def open(self):
        time.sleep(self.seconds)

    def write(self, rows):
        if self.failures:
            self.failures -= 1
            raise ConnectionError("no route to host")
        self.rows.append(rows)

    def close(self, failed):
        self.closed = failed


def test_steps_have_the_names_of_the_guide_and_nulls_are_left_out():
    step = row(Step, step=3, loss=0.5, grad_norm=2.0, lr=1e-3, solve_rate=0.25, trained_tokens=600, train_seconds=2.0,
               seconds=3.0, rollout_tokens=90, rollout_seconds=0.5)
    metrics = step_metrics(step)
    assert metrics["actor/loss"] == 0.5
    assert metrics["rollout/accuracy/mean"] == 0.25
    assert metrics["perf/train_tokens_per_second"] == 300
    assert metrics["perf/throughput"] == 200
    assert metrics["perf/rollout_tokens_per_second"] == 180
    assert "actor/ppo_kl" not in metrics


def test_every_number_of_a_step_is_tracked():
    """Whoever adds a column to Step decides here that it has a metric."""
    from dataclasses import fields

    from ouroboros.pipeline.job.metrics import STEP_METRICS

    named = {f.name for f in fields(Step)} - {"stage", "step"}
    assert named - set(STEP_METRICS.values()) == {
        "rollout_tokens", "statistics", "packing", "overlap",
        "start"}  # as tokens per second, each by its name; no numbers, or of the first step alone


def test_scores_are_named_by_set_and_metric():
    score = row(Score, taskset="test", metric="pass@4", value=0.5, low=0.4, high=0.6)
    assert score_metrics([score]) == {
        "eval/test/pass@4": 0.5, "eval/test/pass@4/low": 0.4, "eval/test/pass@4/high": 0.6}


def test_logging_returns_at_once_and_everything_arrives_in_batches():
    sink = Memory(seconds=1.0)
    tracker = tracking.Tracker(sink, logging.getLogger("test"))
    begin = time.perf_counter()
    for step in range(100):
        tracker.log({"actor/loss": 1.0, "bad": float("nan")}, step)
    assert time.perf_counter() - begin < 1.0  # the sink's first batch
    tracker.close(failed=False)
    assert [r[:3] for batch in sink.rows for r in batch] == [("actor/loss", 1.0, step) for step in range(100)]
    assert len(sink.rows) < 5
    assert sink.closed is False


@pytest.mark.parametrize(("failures", "taken", "lost"), [
    (3, [("a", 1.0, 1), ("b", 2.0, 1)], False), (10**6, [], True)])  # it never works
def test_a_failing_monitor_is_told_once_offered_everything_again_and_closed(monkeypatch, caplog, failures, taken, lost):
    monkeypatch.setattr(tracking, "FLUSH_SECONDS", 0.01)
    sink = Memory(failures=failures)
    tracker = tracking.Tracker(sink, logging.getLogger("test"))
    tracker.log({"a": 1.0, "b": 2.0}, 1)
    time.sleep(0.2)
    tracker.close(failed=True)
    assert [r[:3] for batch in sink.rows for r in batch] == taken
    assert (caplog.text.count("no route"), sink.closed) == (1, True)
    if lost:
        wording(caplog.text, "2 metrics")


def test_a_monitor_that_took_no_metric_in_time_is_not_said_to_lack_none(monkeypatch, caplog):
    """The thread waits for the sink: with rows in hand they are counted, without any nothing is said."""
    monkeypatch.setattr(tracking, "LAST_FLUSH_SECONDS", 0.05)
    for metrics, counted in (({}, False), ({"a": 1.0, "b": 2.0, "c": 3.0}, True)):
        tracker = tracking.Tracker(Memory(seconds=0.5), logging.getLogger("test"))
        tracker.log(metrics, 1)
        tracker.close(failed=False)
        assert ("3 metrics" in caplog.text, "0 metrics" in caplog.text) == (counted, False)


ODD = ("math (hard)", "math [hard]", "50%", "a//b", "../up", "/root", "", "数学", "🧮", "n" * 300, "n" * 301,
       "line\nbreak")


def test_names_are_what_mlflow_takes_and_stay_apart():
    from mlflow.utils.validation import _validate_metric

    written = [sinks._key(f"eval/{name}/pass@4") for name in ODD]
    for name in written:
        _validate_metric(name, 1.0, 1, 1)
    assert len(set(written)) == len(ODD)
    assert sinks._key("eval/test set: a-b/pass@4") == "eval/test set: a-b/pass_at_4"
    assert written[0].startswith("eval/math _hard_/pass_at_4-")


def test_none_takes_everything_and_starts_nothing(tmp_path):
    with tracking.open_tracker(context(tmp_path, "none")) as tracker:
        tracker.log(step_metrics(row(Step, step=1)), 1)
        tracker.log_scores([row(Score)], 1)
    assert list(tmp_path.rglob("*.db")) == []


@pytest.mark.parametrize(("kind", "arguments", "words"), [
    ("mlflow", {"uri": "https://me:secret@host"}, "password"), ("mlflow", {"uri": "https://secret@host/"}, "password"),
    ("mlflow", {"uri": "https://secret@[host"}, "address"), ("mlflow", {"url": "x"}, "'uri'"),
    ("none", {"uri": "x"}, "Known"), ("mlfow", {}, "'mlflow'")])
def test_wrong_settings_are_refused_with_what_to_do(kind, arguments, words):
    with refuses(ConfigError, words) as caught:
        check_monitor(kind, arguments)
    assert "secret@" not in str(caught.value)


def test_a_monitor_that_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setattr(monitors.importlib.util, "find_spec", lambda name: None)
    with refuses(ConfigError, "monitor.monitor_type=wandb"):
        check_monitor("wandb", {})


def test_tensorboard_writes_event_files(tmp_path):
    pytest.importorskip("tensorboard")
    made = context(tmp_path, "tensorboard")
    with tracking.open_tracker(made) as tracker:
        tracker.log({"actor/loss": 1.0} | {f"eval/{name}/mean": 0.5 for name in ODD}, 1)
        tracker.log_rollouts(lambda: [{"prompt": "1+1=", "reward": 1.0}, {"prompt": "2+2=", "reward": None}], 1)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(made.directory / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["tensors"]) == {"actor/loss", "rollouts"} | {f"eval/{name}/mean" for name in ODD}
    (texts,) = events.Tensors("rollouts")
    assert list(texts.tensor_proto.string_val) == [b"**prompt**: 1+1=\n\n**reward**: 1.0",
                                                   b"**prompt**: 2+2=\n\n**reward**: None"]


@pytest.mark.slow
def test_a_name_that_mlflow_refuses_loses_only_itself(tmp_path, monkeypatch, caplog):
    """A server may have rules that this one does not have."""
    monkeypatch.setattr(sinks, "_key", lambda name: name)
    with tracking.open_tracker(context(tmp_path, "mlflow")) as tracker:
        tracker.log({"actor/loss": 1.0, "math (hard)": 0.5, "actor/lr": 0.1}, 1)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("toy").experiment_id])
    (rft,) = (run for run in runs if run.info.run_name == "rft")
    assert (rft.data.metrics, rft.info.status) == ({"actor/loss": 1.0, "actor/lr": 0.1}, "FINISHED")
    assert caplog.text.count("math (hard): ") == 1


@pytest.mark.slow
def test_mlflow_has_one_run_a_pipeline_and_one_a_stage_however_often_it_resumes(tmp_path):
    """A resumed launch repeats step 2, and writes step 3, which the first launch was killed before it could."""
    for stage, earlier, steps in (("sft", (), (1,)), ("rft", (), (1, 2)), ("rft", (1, 3), (2, 4))):
        with tracking.open_tracker(context(tmp_path, "mlflow", stage)) as tracker:
            tracker.log_earlier(({"actor/loss": 1.0 / step}, step) for step in earlier)
            for step in steps:
                tracker.log({"actor/loss": 1.0 / step, "eval/test/pass@4": 0.5}, step)
            tracker.log_rollouts(lambda: [{"prompt": "007", "reward": 1.0}], steps[-1])
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    runs = {run.info.run_name: run for run in client.search_runs([client.get_experiment_by_name("toy").experiment_id])}
    assert set(runs) == {"first", "sft", "rft"}
    assert runs["rft"].data.tags["mlflow.parentRunId"] == runs["first"].info.run_id
    assert runs["rft"].data.params["buffer.total_steps"] == "4"
    history = client.get_metric_history(runs["rft"].info.run_id, "actor/loss")
    assert sorted((m.step, round(m.value, 3)) for m in history) == [(1, 1.0), (2, 0.5), (3, 0.333), (4, 0.25)]
    assert runs["rft"].data.metrics["eval/test/pass_at_4"] == 0.5
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    rollouts = Path(client.download_artifacts(runs["rft"].info.run_id, "rollouts", tmp_path))
    assert sorted(one.name for one in rollouts.iterdir()) == ["000002.json", "000004.json"]
    written = json.loads((rollouts / "000002.json").read_text())
    assert written == {"columns": ["prompt", "reward"], "data": [["007", 1.0]]}
    assert (tmp_path / "mlartifacts").is_dir()
    kind = "mlflow.experimentKind"  # without one MLflow 3 opens an experiment on its GenAI view
    toy = client.get_experiment_by_name("toy")
    assert toy.tags == {kind: "custom_model_development"}
    client.delete_experiment_tag(toy.experiment_id, kind)
    for chosen in ("custom_model_development", "genai_development"):  # set where there is none; the user's stays
        with tracking.open_tracker(context(tmp_path, "mlflow")):
            pass
        assert client.get_experiment_by_name("toy").tags[kind] == chosen
        client.set_experiment_tag(toy.experiment_id, kind, "genai_development")


def test_sampled_rollouts_of_a_step_are_the_same_eight(tmp_path):
    file = tmp_path / "000002.parquet"
    tables.write(file, Experience, [row(Experience, step=2, run_index=at, response=f"r{at}") for at in range(20)])
    drawn = tracking.sampled_rollouts(file, 2)
    assert len({one["response"] for one in drawn}) == len(drawn) == 8
    assert drawn == tracking.sampled_rollouts(file, 2)


def test_a_table_that_cannot_be_read_stops_nothing(monkeypatch, caplog):
    """It is offered again, and the last 16 tables are."""
    monkeypatch.setattr(tracking, "FLUSH_SECONDS", 0.01)
    sink = Memory()
    sink.write_rollouts = lambda rows, step: sink.rows.append([(rows, step)])
    tracker = tracking.Tracker(sink, logging.getLogger("test"))
    tracker.log_rollouts(lambda: 1 / 0, 1)
    tracker.log({"a": 1.0}, 1)
    time.sleep(0.2)
    for step in range(2, 18):
        tracker.log_rollouts(lambda: [{}], step)
    tracker.close(failed=False)
    assert [r[:3] for r in sink.rows[0]] == [("a", 1.0, 1)]
    assert [one[0][1] for one in sink.rows[1:]] == [*range(2, 18)]
    assert caplog.text.count("ZeroDivisionError") == 1
