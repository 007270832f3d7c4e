"""The last lines of a run that failed: the reason, whatever became of the stage, in ten lines."""

import os

import pytest

from ouroboros.commands.run import failure
from ouroboros.pipeline.results import view
from ouroboros.pipeline.store import files
from tests.golden.messages import wording

SNAKEMAKE = """\
[Sun Nov 22 11:00:09 2026]
Error in rule rft:
    jobid: 6
    input: store/sft-1/manifest.json
    output: {place}/manifest.json (update)
    log: {place}/stage.error (check log file(s) for error details)
    shell:
        python -m ouroboros.stages.rft {place}
        (command exited with non-zero exit code)
"""


@pytest.fixture
def failed(run):
    """The finished run, but for its rft; returns view and directory."""
    shown = view.open_view(run.path)
    directory = next(s.directory for s in shown.stages if s.kind == "rft")
    (directory / files.MANIFEST).unlink()
    return shown, directory


def last_lines(shown, said: str = "") -> list[str]:
    lines = failure.what_failed(shown, 1, "ouro run seed=2", said, "snakemake.log").splitlines()
    assert len(lines) <= 10
    wording(lines[-2], "toy/first: 6", "8 stages", "code 1")
    wording(lines[-1], "seed=2")
    return lines


def test_the_recorded_reason_is_shown_without_its_hint(failed):
    shown, directory = failed
    (directory / "stage.error").write_text(
        "the trainer died: no GPU\nnanobind: leaked 2 instances!\n  its log: trainer.log\nlog: x; to go on: y\n")
    wording(last_lines(shown)[:2], "rft failed", "trainer.log")


def test_of_a_traceback_the_error_itself_is_shown(failed):
    shown, directory = failed
    trace = "Traceback (most recent call last):\n" + '  File "x.py", line 1, in f\n    f()\n' * 30
    (directory / "stage.error").write_text(f"unexpected failure\n{trace}OSError: [Errno 5] bad\n\nlog: x\n")
    wording(last_lines(shown)[0], "OSError: [Errno 5]")
    state = view.state(next(s for s in shown.stages if s.kind == "rft"))
    wording(state.problem, "OSError: [Errno 5]")


def test_a_long_reason_keeps_its_beginning_and_its_end(failed):
    shown, directory = failed
    (directory / "stage.error").write_text("\n".join(f"line {i}" for i in range(40)) + "\nlog: x; to go on: y\n")
    lines = last_lines(shown)
    wording(lines[0], "line 0")
    assert lines[1:5] == [f"  line {i}" for i in range(36, 40)]


def test_a_reason_that_could_not_be_written_is_taken_from_what_was_printed(failed):
    """As on a full disk. Another stage prints beside it."""
    shown, directory = failed
    printed = (f"rft: step 1/4  loss 1\nrft: no space left for {directory}/x: 0 MiB are free on that disk.\n"
               "nanobind: leaked 2 instances!\n - leaked instance 0x7f\n"
               f"sft: step 3/4\nrft: log: {directory}/stage.log; to go on: y\n")
    lines = last_lines(shown, printed + SNAKEMAKE.format(place=directory))
    wording(lines[0], f"{directory}/x: 0 MiB")
    assert "nanobind" not in "".join(lines)


def test_a_manifest_that_did_not_appear_in_time_and_a_stage_that_left_no_reason_are_named(failed):
    shown, directory = failed
    said = (f"Waiting at most 5 seconds for missing files:\n{directory}/manifest.json (missing locally)\n"
            'MissingOutputException in rule rft in file "Snakefile", line 54:\n')
    wording(last_lines(shown, said)[0], f"{directory}/manifest.json", "5 s")
    assert last_lines(shown, SNAKEMAKE.format(place=directory))[0] == f"ouro: rft failed: {failure.UNEXPLAINED}"


def test_a_reason_of_an_earlier_life_is_none_of_this_one(failed):
    shown, directory = failed
    (directory / "stage.error").write_text("interrupted by SIGTERM; step 3 is saved\n")
    (directory / "stage.log").write_text("later")
    os.utime(directory / "stage.error", ns=(1, 1))
    wording(last_lines(shown)[0], "code 1")
    os.utime(directory / "stage.error", ns=(3 * 10**9, 3 * 10**9))
    os.utime(directory / "stage.log", ns=(10**9, 10**9))
    wording(failure.what_failed(shown, 1, since=2.0), "interrupted")
    wording(failure.what_failed(shown, 1, since=4.0), "code 1")
    wording([failure.interrupted(shown, 2.0)], "SIGTERM", "3 is")
    assert failure.interrupted(shown, 4.0) == []
    killed = failure.what_failed(shown, -9, since=2.0)
    wording(killed, "SIGKILL")
    assert "exit code 137" in killed


def test_several_failures_share_the_ten_lines(failed):
    shown, _ = failed
    for stage in shown.stages:
        (stage.directory / files.MANIFEST).unlink(missing_ok=True)
        (stage.directory / "stage.error").write_text("\n".join(f"{stage.name} {i}" for i in range(9)) + "\n")
    lines = failure.what_failed(shown, 1).splitlines()
    assert len(lines) <= 12
    wording(lines[0], "tasks 0")
    assert any(line.startswith("ouro: failed too: ") for line in lines)
