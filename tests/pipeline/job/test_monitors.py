"""Weights & Biases and Trackio as they are installed, without network: `make test-frameworks` fetches the clients."""

import json
import struct
import time
from pathlib import Path

import pytest

from ouroboros.pipeline.job import tracking
from ouroboros.pipeline.store.records import Score
from tests.factories import row
from tests.pipeline.job.test_tracking import context

pytestmark = pytest.mark.frameworks

ROWS = [{"task_id": "a", "run_index": 0, "prompt": "1+1=", "response": "<b>2</b>", "reward": 1.0, "status": "ok"},
        {"task_id": "b", "run_index": 1, "prompt": "数", "response": "", "reward": None, "status": "reward_failed"}]


def logged(made, steps) -> None:
    """One launch of a stage: loss 1/step, at step 2 an evaluation and a table of rollouts."""
    with tracking.open_tracker(made) as tracker:
        for step in steps:
            tracker.log({"actor/loss": 1.0 / step}, step)
        tracker.log_scores([row(Score, taskset="test", metric="pass@4", value=0.5, low=0.4, high=0.6)], steps[-1])
        tracker.log_rollouts(lambda: ROWS, steps[0])


def of_wandb(file: Path) -> list:
    """The records of an offline run: a log of LevelDB's form with messages of wandb.proto."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, whole, found = file.read_bytes(), 7, b"", []
    while at + 7 <= len(content):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            found.append(Record.FromString(whole))
            whole = b""
    return found


def test_a_stage_is_one_run_of_wandb_however_often_it_is_launched(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    made = context(tmp_path, "wandb")
    logged(made, (1, 2))
    logged(made, (3, 4))
    files = sorted(made.directory.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 2
    for file, steps in zip(files, ((1, 2), (3, 4)), strict=True):
        while not (records := of_wandb(file)) or not records[-1].HasField("exit"):  # written later
            time.sleep(0.1)
        (run,) = (one.run for one in records if one.HasField("run"))
        assert (run.run_id, run.run_group, run.project) == (made.id, "first", "toy")
        config = {item.key: json.loads(item.value_json) for item in run.config.update}
        assert config["ouroboros.run"] == "toy/first"
        history = [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in one.history.item}
                   for one in records if one.HasField("history")]
        assert [one["actor/loss"] for one in history if "actor/loss" in one] == [1.0 / step for step in steps]
        assert [one["eval/test/pass@4/low"] for one in history if "eval/test/pass@4/low" in one] == [0.4]
        shown = [one for one in history if "rollouts/nrows" in one]
        assert [(one["step"], one["rollouts/nrows"], one["rollouts/ncols"]) for one in shown] == [(steps[0], 2, 6)]
        assert {one.metric.step_metric for one in records if one.HasField("metric")} == {"step"}


def test_a_stage_is_one_run_of_trackio_however_often_it_is_launched(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    made = context(tmp_path, "trackio")
    logged(made, (1, 2))
    logged(made, (3, 4))
    assert SQLiteStorage.get_runs("toy") == [made.id]
    rows = SQLiteStorage.get_logs("toy", made.id)
    assert [one["actor/loss"] for one in rows if "actor/loss" in one] == [1.0, 0.5, 1 / 3, 0.25]
    assert [one["eval/test/pass@4/low"] for one in rows if "eval/test/pass@4/low" in one] == [0.4, 0.4]
    assert len([one for one in rows if "rollouts" in one]) == 2
