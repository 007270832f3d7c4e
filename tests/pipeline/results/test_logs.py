"""`ouro logs`: several logs as one, by time."""

from pathlib import Path

import pytest

from ouroboros.commands import cli
from ouroboros.pipeline.results import logs
from ouroboros.pipeline.store.errors import DataError
from tests.golden.messages import wording

STAGE = ("2026-11-22 10:00:01,000 INFO started: process 1\n2026-11-22 10:00:05,000 WARNING warning: slow\n"
         "2026-11-22 10:00:07,000 ERROR it failed\nTraceback\n  File x\n")
TRAINER = ("Loading weights\n2026-11-22 10:00:03,500 INFO resumes after step 3\nfrom a library\n"
           "nanobind: leaked 2 instances!\n")


@pytest.fixture
def run(warmed_up):
    sft = Path(warmed_up.stages[-1]["directory"])
    (sft / "stage.log").write_text(STAGE)
    (sft / "trainer.log").write_text(TRAINER)
    return warmed_up


def show(run, capsys, *words: str) -> list[str]:
    assert cli.main(["logs", "first", "--root", str(run.root), *words]) == 0
    return capsys.readouterr().out.splitlines()


def time_of(line: str) -> str:
    """The seconds of a line that begins with a time; empty for others."""
    return line[17:23] if line.startswith("2026-11-22 10:00:") else ""


def test_records_are_merged_by_time_and_lines_without_one_stay_with_theirs(run, capsys):
    shown = show(run, capsys, "--stage", "sft")
    assert [time_of(line) for line in shown] == ["01,000", "03,500", "03,500", "", "05,000", "07,000", "", ""]
    assert [line.count("sft/trainer:") for line in shown[:4]] == [0, 1, 1, 0]
    wording(shown)


def test_level_and_tail_choose_records(run, capsys):
    shown = show(run, capsys, "--stage", "sft", "--level", "warning", "--tail", "2")
    assert [time_of(line) for line in shown] == ["05,000", "07,000", "", ""]
    wording(shown, "WARNING", "ERROR", "Traceback", "File x")
    assert show(run, capsys, "--stage", "sft", "--tail", "0") == []


def test_an_unknown_stage_is_refused_with_the_known_ones(run, capsys):
    assert cli.main(["logs", "first", "--root", str(run.root), "--stage", "stf"]) == 2
    wording(capsys.readouterr().err, "'sft'")
    with pytest.raises(DataError):
        logs.choose([], "sft")


def test_following_shows_what_is_appended_and_new_logs(run, capsys, monkeypatch):
    sft = Path(run.stages[-1]["directory"])
    appended = iter(["2026-11-22 10:00:08,000 INFO half a li", "ne\n", None])

    def sleep(seconds):
        text = next(appended)
        if text is None:
            raise KeyboardInterrupt
        with open(sft / "stage.log", "a") as file:
            file.write(text)
        (sft / "explorer.log").write_text("2026-11-22 10:00:09,000 INFO step 1\n")

    monkeypatch.setattr(logs.time, "sleep", sleep)
    shown = show(run, capsys, "--stage", "sft", "--follow", "--tail", "1")
    assert [time_of(line) for line in shown] == ["07,000", "", "", "09,000", "08,000"]
    wording(shown, "sft/explorer: INFO step", "INFO half", "ERROR")
