"""`ouro timeline`: a run as a trace, with times worked out by hand."""

import json

from ouroboros.commands import cli
from ouroboros.pipeline.store import records, tables
from tests.factories import row


def test_rows_that_were_sampled_by_another_stage_say_nothing_of_one_that_rewards(warmed_up, capsys):
    """A stage from 0 to 40 s rewards a row of 100 s."""
    directory = warmed_up.stage("again", "scored", "curate", seconds=40.0)
    tables.write(tables.step_file(directory, "experience", 1), records.Experience, [
        row(records.Experience, stage=directory.name, step=1, unix_seconds=100.0)])
    tables.write(tables.step_file(directory, "rollouts", 1), records.Rollout, [
        row(records.Rollout, stage=directory.name, step=1, other_seconds=2.0)])
    warmed_up.view()
    assert spans(warmed_up, capsys, "again") == [("stage", "again", 0.0, 40.0)]


def spans(fake, capsys, stage):
    """(name of the thread, name, begin, seconds) of each span of a stage, in order."""
    assert cli.main(["timeline", "first", "--root", str(fake.root)]) == 0
    events = json.loads(capsys.readouterr().out)["traceEvents"]
    (process,) = {one["pid"] for one in events if one["name"] == "process_name" and one["args"]["name"] == stage}
    own = [one for one in events if one["pid"] == process]
    threads = {one["tid"]: one["args"]["name"] for one in own if one["name"] == "thread_name"}
    return [(threads[one["tid"]], one["name"], one["ts"] / 1e6, one["dur"] / 1e6) for one in own if one["ph"] == "X"]


def test_trainer_steps_end_with_their_stage(warmed_up, capsys):
    """Four steps of 0.45 s in a stage from 0 to 31 s: the first begins at 31 - 1.8 = 29.2 and waits for 0.05 s."""
    stage, first, waits, others, *_ = found = spans(warmed_up, capsys, "sft")
    assert stage == ("stage", "sft", 0.0, 31.0)
    assert first == ("trainer", "trainer step 1", 29.2, 0.45)
    assert waits[1:] == ("train_wait", 29.2, 0.05)
    assert others[1:] == ("train_other", 29.25, 0.02)
    assert [begin for _, name, begin, _ in found if name.startswith("trainer step")] == [29.2, 29.65, 30.1, 30.55]


def test_explorer_steps_end_with_their_last_row_also_in_a_stage_that_goes_on(warmed_up, capsys):
    """Rows at 99 and 100 s; 2 s of waiting, 3 s of rollouts and 0.5 s besides: from 94.5 s on."""
    directory = warmed_up.stage("rft", "rft", "curate", "sft", complete=False)
    tables.write(tables.step_file(directory, "experience", 1), records.Experience, [
        row(records.Experience, stage=directory.name, step=1, slot=slot, unix_seconds=99.0 + slot) for slot in (0, 1)])
    tables.write(tables.step_file(directory, "rollouts", 1), records.Rollout, [
        row(records.Rollout, stage=directory.name, step=1, wait_seconds=2.0, rollout_seconds=3.0, other_seconds=0.5)])
    warmed_up.view()
    assert spans(warmed_up, capsys, "rft") == [
        ("explorer", "explorer step 1", 94.5, 5.5), ("explorer", "wait", 94.5, 2.0), ("explorer", "rollout", 96.5, 3.0),
        ("explorer", "other", 99.5, 0.5)]
