"""Progress of a running stage: a live bar on a terminal, and one line per step in the stage's log file.

Where standard error is not a terminal (a batch job, a pipe), a line about every ten seconds replaces the bar.
"""

import re
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from ouroboros.pipeline.store.records import Rollout, Score, Step

QUIET_SECONDS = 10.0  # between two lines without a terminal
BEFORE = "{desc}{postfix} [{elapsed}]"
SAMPLED = ("sampled_accuracy", "sampled_reward")  # the summary score of a set, which has one of them
PAIRED = "pair_accuracy"  # the score of a reward model
FILE_ONLY = {"file_only": True}  # `extra` of a log record not shown on the terminal (pipeline/job/context.py)


def duration(seconds: float) -> str:
    """Formats seconds: 0.6 s, 42 s, 2:05, 1:02:05."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def rate(count: float | None, seconds: float | None) -> float | None:
    """Returns count / seconds; None when either is unknown or no time passed."""
    return count / seconds if count is not None and seconds else None


def thousands(value: float) -> str:
    """Formats a number: 950, 8.5k, 21k, 1.2M."""
    for bound, scale, unit in ((1e6, 1e6, "M"), (1e3, 1e3, "k")):
        if value >= bound:
            return f"{value / scale:.1f}{unit}" if value < 10 * scale else f"{value / scale:.0f}{unit}"
    return f"{value:.0f}"


def is_reward(metric: str) -> bool:
    """Returns whether a score is a mean reward rather than a share of tasks."""
    return metric.endswith("_reward")


def interval(score: Score) -> str:
    """Formats `38% [35, 41]`: estimate and 95% interval; for a mean reward `reward 0.412 [0.380, 0.444]`."""
    if is_reward(score.metric):
        return f"reward {score.value:z.3f} [{score.low:z.3f}, {score.high:z.3f}]"
    return f"{score.value:.0%} [{score.low * 100:.0f}, {score.high * 100:.0f}]"


def task_words(tasks: int, rows: int | None) -> str:
    """Formats `35 tasks (40 rows, 5 duplicates merged)`. rows: null if unknown."""
    merged = (rows or tasks) - tasks
    return f"{tasks} tasks" + (f" ({rows} rows, {merged} duplicate{'s' * (merged > 1)} merged)" if merged else "")


def leak_words(score: Score) -> str:
    """Formats `31 of the 35 tasks are in the training data`; empty if none are or it is unknown."""
    return f"{score.trained_tasks} of the {score.tasks} tasks are in the training data" if score.trained_tasks else ""


def score_words(scores: Sequence[Score]) -> str:
    """Formats the summary scores of one evaluation: `test 38% [35, 41] at step 50`."""
    sampled = [s for s in scores if s.metric in (*SAMPLED, PAIRED)]
    return ", ".join(f"{s.taskset} {interval(s)} at step {s.step}" for s in sampled)


def step_line(
    step: Step, total: int | None = None, left_seconds: float | None = None, evaluated: Sequence[Score] = ()
) -> str:
    """Formats one optimizer step on one line, with units; inactive components are left out.

    evaluated: the scores of the last evaluation during training, if any.
    """
    return _joined(
        f"step {step.step}" + (f"/{total}" if total else ""),
        step.reward is not None and f"reward {step.reward:z.3f}",
        step.solve_rate is not None and f"solved {step.solve_rate:.1%}",
        resample_words(step), score_words(evaluated), f"loss {step.loss:z.4f}",
        step.kl is not None and f"KL to rollout policy {step.kl:.1e} nats", f"grad norm {step.grad_norm:.3f}",
        _speed("rollout", step.rollout_tokens, step.rollout_seconds),
        _speed("training", step.trained_tokens, step.train_seconds),
        f"{step.seconds:.2f} s", left_seconds is not None and f"{duration(left_seconds)} left")


def start_words(step: Step) -> str:
    """Describes where the seconds up to the end of the first step went; empty for a later one."""
    ends = {"first rollout": step.rollout_seconds, "first update": step.train_seconds}
    parts = [*step.start, *((name, took) for name, took in ends.items() if took is not None)] if step.start else []
    return ", ".join(f"{name} {took:.1f} s" for name, took in parts)


def rollout_words(rollout: Rollout) -> str:
    """Describes the output of an explorer step, and its speed."""
    return _joined(row_words(rollout), _speed("rollout", rollout.tokens, rollout.rollout_seconds),
                   f"{rollout.rollout_seconds + rollout.other_seconds:.2f} s")


def row_words(rollout: Rollout) -> str:
    """Formats `512 rows (3 failed, 12 groups replaced, 2 missing)`; zero counts are left out."""
    late = rollout.late_groups and f"{rollout.late_groups} groups late"
    aside = _joined(rollout.failed_rows and f"{rollout.failed_rows} failed", resample_words(rollout), late, by=", ")
    return f"{rollout.rows} rows" + (f" ({aside})" if aside else "")


def resample_words(row: Rollout | Step) -> str:
    """Describes how many groups without variance were replaced, and how many places stayed empty."""
    return _joined(row.resampled_groups and f"{row.resampled_groups} groups replaced",
                   row.missing_groups and f"{row.missing_groups} missing", by=", ")


def _speed(what: str, tokens: float | None, seconds: float | None) -> str:
    speed = rate(tokens, seconds)
    return "" if speed is None else f"{what} {thousands(speed)} tokens/s"


def _joined(*parts: Any, by: str = "  ") -> str:
    """Joins the nonempty parts."""
    return by.join(filter(None, parts))


class Bar:
    """Shows progress over `total` units of work: a bar on a terminal and in a notebook, else a line about every 10 s.

    total: 0 for what comes before such units, shown without a bar. unit: plural noun ("steps", "rows"). done: units
    completed before. Also a context manager.
    """

    def __init__(self, total: int, unit: str, label: str, done: int = 0):
        self.total, self.unit, self.label, self.done = total, unit, label, done
        self._last_line = float("-inf")
        self._bar = self._make_bar() if sys.stderr.isatty() or "ipykernel" in sys.modules else None

    def _make_bar(self):
        from tqdm import tqdm

        form = "{l_bar}{bar:10}| {n_fmt}/{total_fmt} " + self.unit + " [{elapsed}<{remaining}]{postfix}"
        return tqdm(total=self.total, initial=self.done, desc=self.label, bar_format=form if self.total else BEFORE,
                    file=sys.stderr, dynamic_ncols=True, mininterval=0.2, leave=bool(self.total))

    def show(self, done: int, line: str, postfix: str) -> None:
        """Moves to `done`. line: what is printed without a bar."""
        self.done = done
        if self._bar is not None:
            self._bar.set_postfix_str(postfix, refresh=False)
            self._bar.update(self.done - self._bar.n)
        elif 0 < self.total <= self.done or time.monotonic() - self._last_line >= QUIET_SECONDS:
            self._last_line = time.monotonic()
            print(f"{self.label}: {line}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leaves the finished bar on the terminal."""
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.close()


class Progress(Bar):
    """The progress of a stage; every line is also written to its log file.

    log: the stage's logger. done: units completed by an earlier launch of the stage; the remaining time is estimated
    from this launch alone.
    """

    def __init__(self, log, total: int, unit: str, label: str, done: int = 0):
        super().__init__(total, unit, label, done)
        self.log = log
        self._moments: deque[tuple[float, int]] = deque(maxlen=50)

    def left_seconds(self) -> float | None:
        """Estimates the remaining time at the pace of the last 50 reports; None before there are two, because the first
        unit includes what a stage needs to start."""
        if not self._moments:
            return None
        (begin, first), (end, last) = self._moments[0], self._moments[-1]
        return (end - begin) / (last - first) * (self.total - last) if last > first else None

    def step(self, step: Step, evaluated: Sequence[Score] = ()) -> None:
        """Reports one optimizer step; steps count from 1. evaluated: scores of the last evaluation, if any."""
        self._move_to(step.step)
        line = step_line(step, self.total, self.left_seconds(), evaluated)
        self._report(line, step_line(step, evaluated=evaluated).split("  ", 1)[1])

    def advance(self, n: int = 1, text: str = "") -> None:
        """Reports `n` more units of work, with a short text about them."""
        self._move_to(self.done + n)
        left = self.left_seconds()
        self._report(_joined(f"{self.done}/{self.total} {self.unit}", text,
                             left is not None and f"{duration(left)} left"), text)

    def _move_to(self, done: int) -> None:
        self.done = done
        self._moments.append((time.monotonic(), done))

    def _report(self, line: str, postfix: str) -> None:
        self.log.info("%s", line, extra=FILE_ONLY)
        self.show(self.done, line, postfix)


@dataclass(frozen=True)
class Reached:
    """The content of a line that `Progress` wrote to a stage's log."""

    done: int
    total: int
    unit: str
    words: str  # shown after the bar


def read_line(line: str) -> Reached | None:
    """Parses a line of `Progress`: `step 3/10  loss 0.1  12 s left`, `12/40 rows  12 s left`; None for others."""
    first, *parts = line.split("  ")
    found = re.fullmatch(r"step (\d+)/(\d+)|(\d+)/(\d+) (\w[\w ]*)", first)
    if not found:
        return None
    done, total = (int(found[a] or found[b]) for a, b in ((1, 3), (2, 4)))
    return Reached(done, total, found[5] or "steps", "  ".join(p for p in parts if not p.endswith(" left")))
