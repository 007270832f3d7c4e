"""Step lines, durations, and where progress goes."""

import io
import sys

import pytest

from ouroboros.pipeline.job.context import open_log
from ouroboros.pipeline.job.progress import Progress, duration, row_words, start_words, step_line, thousands
from ouroboros.pipeline.store.records import Rollout, Score, Step
from tests.factories import row
from tests.golden.messages import wording

RFT = row(Step, step=12, loss=0.01234, grad_norm=0.5, reward=0.6, solve_rate=0.481, kl=3e-4, rollout_tokens=1700,
          rollout_seconds=0.2, trained_tokens=9000, train_seconds=0.3, seconds=0.61)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("shown", "value", "text"), [
    *((duration, seconds, text) for seconds, text in ((0.61, "0.6 s"), (42.4, "42 s"), (59.9, "60 s"), (125, "2:05"),
                                                      (3725, "1:02:05"))),
    *((thousands, value, text) for value, text in ((950, "950"), (8500, "8.5k"), (21000, "21k"), (1.2e6, "1.2M")))])
def test_numbers_read_as_a_person_says_them(shown, value, text):
    assert shown(value) == text


def test_a_step_line_holds_every_number_with_its_unit_and_how_good_the_weights_last_were():
    wording(step_line(RFT, 250, 145), "12/250", "3.0e-04", "8.5k tokens/s", "30k tokens/s")
    scores = [row(Score, taskset="test", metric=metric, step=10, value=0.38, low=0.35, high=0.41)
              for metric in ("greedy_accuracy", "sampled_accuracy")]
    wording(step_line(RFT, evaluated=scores), "48.1%", "38% [35, 41]", "step 10")
    sft = row(Step, step=3, loss=1.5, grad_norm=2.0, trained_tokens=500, train_seconds=1.0, seconds=1.25)
    wording(step_line(sft, 200), "3/200", "1.5000", "2.000", "500 tokens/s")  # parts that took no part are left out


def test_a_start_is_told_by_its_parts_and_ends_with_the_first_update():
    began = row(Step, step=1, start=[("engines: imports", 46.04), ("trainer: imports", 14.0)], rollout_seconds=5.2,
                train_seconds=9.0)
    wording(start_words(began), "46.0", "14.0", "5.2", "9.0")
    assert start_words(RFT) == ""


def test_groups_that_were_replaced_or_are_missing_are_told_where_there_are_any():
    step = row(Step, step=1, resampled_groups=12, resample_rounds=3, missing_groups=2)
    wording(step_line(step), "12 groups", "2 missing")
    assert "missing" not in step_line(row(Step, step=1, resampled_groups=0, missing_groups=0))
    rollout = row(Rollout, rows=512, failed_rows=3, resampled_groups=12, resample_rounds=1, missing_groups=0)
    wording(row_words(rollout), "512", "3 failed", "12 groups", "replaced")
    assert row_words(row(Rollout, rows=8)) == "8 rows"


def test_every_step_is_in_the_log_file_but_few_are_on_a_pipe(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", pipe := io.StringIO())
    log = open_log(tmp_path / "stage.log", "rft", "INFO")
    with Progress(log, total=50, unit="steps", label="rft") as progress:
        for step in range(1, 51):
            progress.step(row(Step, step=step))
    assert (tmp_path / "stage.log").read_text().count("INFO step ") == 50
    shown = pipe.getvalue().splitlines()
    assert [line.split("  ")[0] for line in shown] == ["rft: step 1/50", "rft: step 50/50"]


def test_a_terminal_gets_a_bar_and_no_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    log = open_log(tmp_path / "stage.log", "rft", "INFO")
    with Progress(log, total=2, unit="steps", label="rft") as progress:
        progress.step(row(Step, step=1))
        progress.step(row(Step, step=2))
    assert "2/2 steps" in terminal.getvalue()
    assert "\n" not in terminal.getvalue().rstrip("\n")


def test_time_left_is_judged_by_this_life_of_the_stage(tmp_path, monkeypatch):
    clock = iter([60.0, 62.0])  # a minute to start
    monkeypatch.setattr("ouroboros.pipeline.job.progress.time.monotonic", lambda: next(clock))
    progress = Progress(open_log(tmp_path / "stage.log", "rft", "INFO"), 110, "steps", "rft", done=100)
    progress._move_to(101)
    assert progress.left_seconds() is None
    progress._move_to(103)  # two steps in two seconds: seven are left
    assert progress.left_seconds() == pytest.approx(7.0)
