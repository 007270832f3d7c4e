"""What the terminal shows of stages at work, and where the output of snakemake goes."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from ouroboros.commands.run.console import KEPT, STARTED, Console, Output
from ouroboros.pipeline.job.activity import Activity
from ouroboros.pipeline.job.context import open_log
from ouroboros.pipeline.job.progress import Progress, Reached, read_line
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.records import Step
from tests.factories import row
from tests.golden.messages import wording


def stage(root: Path, name: str, identity: str = "0") -> SimpleNamespace:
    """What is read of a planned stage; its directory exists."""
    directory = root / "store" / f"{name}-{identity}"
    directory.mkdir(parents=True)
    return SimpleNamespace(name=name, identity=identity, directory=str(directory))


def log_of(made: SimpleNamespace):
    return open_log(Path(made.directory) / "stage.log", made.name, "INFO", terminal=False)


@pytest.mark.parametrize(("line", "reached"), [
    ("step 3/10  loss 0.1  2.00 s  12 s left", Reached(3, 10, "steps", "loss 0.1  2.00 s")),
    ("12/40 explorer steps  8 rows  1:02 left", Reached(12, 40, "explorer steps", "8 rows")),
    ("1/2 passes", Reached(1, 2, "passes", "")),
    ("840 rows, 414 of them demonstrations", None), ("step 3  loss 0.1", None), ("evaluated: 1/2", None)])
def test_progress_is_read_back_from_a_log(line, reached):
    assert read_line(line) == reached


def test_what_progress_writes_can_be_read_back(tmp_path, capsys):
    log = open_log(tmp_path / "stage.log", "rft", "INFO", terminal=False)
    with Progress(log, 50, "steps", "rft") as progress:
        progress.step(row(Step, step=1, loss=1.5, grad_norm=2.0, seconds=1.0))
        progress.advance(4, "of a kind")
    lines = [line.split(" INFO ")[1] for line in (tmp_path / "stage.log").read_text().splitlines()]
    assert [(r.done, r.total, r.unit) for r in map(read_line, lines)] == [(1, 50, "steps"), (5, 50, "steps")]


def test_stages_are_shown_from_their_logs(tmp_path, capsys):
    first, second = stage(tmp_path, "sft"), stage(tmp_path, "rft")
    old = log_of(first)
    old.info("said in an earlier life")
    with Console([first, second]) as console:
        console.poll()
        assert capsys.readouterr().err == ""
        log = log_of(first)
        log.info("started: process 1 on host")
        log.info("12 demonstrations, 0 over the token limits left out")
        for step in range(1, 4):
            log.info("step %d/3  loss 1.0", step)
        console.poll()
        files.write_json(tmp_path / "store/sft-0/manifest.json", {})
        log.info("complete in 65.0 s: {}")
        log_of(second).error("no GPU\nmore of it")
        log_of(second).error("log: x; to go on: y")
        console.poll()
    shown = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in shown] == ["sft"] * 5 + ["rft"]
    assert [read_line(line.partition(": ")[2]) for line in shown[2:4]] == [
        Reached(step, 3, "steps", "loss 1.0") for step in (1, 3)]  # the second is in the same second
    wording(shown, "sft: started", "12 demonstrations", "1/3", "1:05; 1 of 2", f"{tmp_path}/store/rft-0/stage.log")


def test_a_running_stage_without_new_lines_is_noticed(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("ouroboros.commands.run.console.QUIET", 0.0)
    made = stage(tmp_path, "rft")
    with Console([made]) as console:
        log = log_of(made)
        log.info("started: process 1 on host")
        console.poll()
        wording(capsys.readouterr().err, "0.0", "`ouro status`")
        log.error("no GPU")
        console.poll()
        console.poll()
    assert "no new line" not in capsys.readouterr().err


def test_before_the_first_step_is_shown_what_a_stage_does(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("ouroboros.pipeline.job.progress.QUIET_SECONDS", 0.0)
    made = stage(tmp_path, "rft")
    explorer = Activity(Path(made.directory) / "explorer.activity")
    with Console([made]) as console:
        log = log_of(made)
        log.info("started: process 1 on host")
        for _ in range(2):
            console.poll()
            console.poll()  # the same is not told twice
            explorer.now("answers and rewards", "step 1: 3 of 8 attempts ended, 1.2k tokens")
        console.poll()
        (Path(made.directory) / "explorer.activity").unlink()
        console.poll()  # nothing is told of a stage that does nothing
        log.info("step 1/3  loss 1.0")
        console.poll()
        explorer.now("waits", "step 2")
        console.poll()
    shown = capsys.readouterr().err.splitlines()
    assert shown == ["rft: started", "rft: explorer: starts",
                     "rft: explorer: answers and rewards, step 1: 3 of 8 attempts ended, 1.2k tokens",
                     "rft: step 1/3  loss 1.0"]


def test_a_line_that_is_half_written_waits_for_its_end(tmp_path, capsys):
    made = stage(tmp_path, "sft")
    line = "2026-11-22 11:01:13,634 WARNING slow disk\n"
    with Console([made]) as console, open(tmp_path / "store/sft-0/stage.log", "w") as log:
        for part in (line[:30], line[30:]):
            log.write(part)
            log.flush()
            console.poll()
            shown = capsys.readouterr().err
            assert shown == ("" if part == line[:30] else "sft: slow disk\n")


def test_stages_of_a_sweep_with_one_name_are_told_apart(tmp_path, capsys):
    several = [stage(tmp_path, "rft", "a1"), stage(tmp_path, "rft", "b2")]
    with Console(several) as console:
        log_of(several[1]).warning("slow disk")
        console.poll()
    assert capsys.readouterr().err == "rft_b2: slow disk\n"


def test_output_goes_to_a_file_once_the_stages_start(tmp_path, capsys):
    for number in range(15):
        (tmp_path / f"snakemake-20260101-0000{number:02d}-1.log").touch()
    output = Output(tmp_path)
    os.write(output.stderr, b"Building DAG\n")
    output.copy()
    assert output.log is None
    os.write(output.stderr, STARTED.encode() + b"\n")
    output.copy()
    os.write(output.stdout, b"said by a stage\n")
    output.copy()
    wording(output.log.read_text(), "DAG", STARTED)
    assert len(list(tmp_path.iterdir())) == KEPT
    assert str(output.log) in capsys.readouterr().err


@pytest.mark.parametrize(("out", "error", "shown"), [
    (b"digraph {}\n", b"Building DAG\n", ("digraph {}\n", "Building DAG\n")),
    (b"", b"usage: snakemake [-h]\n" + b"  [--an-option VALUE]\n" * 99 + b"snakemake: error: unrecognized arguments: "
     b"--nope\n", ("", "snakemake: error: unrecognized arguments: --nope\n"))])  # and not the usage
def test_what_snakemake_answers_without_a_stage_is_printed(tmp_path, capsys, out, error, shown):
    output = Output(tmp_path)
    os.write(output.stdout, out)
    os.write(output.stderr, error)
    output.copy()
    output.answer()
    assert capsys.readouterr() == shown
    assert not list(tmp_path.iterdir())


def test_a_disk_that_is_full_loses_nothing_of_the_errors(tmp_path, capsys):
    output = Output(tmp_path / "logs")
    os.write(output.stderr, STARTED.encode() + b"\nno space left\n")
    output.directory.touch()  # a file where the directory should be
    output.copy()
    assert "no space left" in output.errors()


def test_secrets_are_masked_and_a_job_that_empties_standard_error_loses_nothing_later(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-this-test-alone")
    output = Output(tmp_path)
    os.write(output.stderr, STARTED.encode() + b"\nkey=sk-of-this-test-")
    output.copy()
    os.write(output.stderr, b"alone\n")
    output.copy()
    os.ftruncate(output.stderr, 0)  # what `echo hi > /dev/stderr` does
    os.lseek(output.stderr, 0, os.SEEK_SET)
    os.write(output.stderr, b"hi\n")
    output.copy()
    assert output.log.read_text() == f"{STARTED}\nkey=***\nhi\n"
    assert output.problem is None
