"""What a person sees while a stage works: a live bar on a terminal, and one line a step in the stage's log file.

Where standard error is no terminal (a batch job, a pipe), a line about every ten seconds takes the bar's place.
"""

import re
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from pipeline.store.records import Rollout, Score, Step

QUIET_SECONDS = 10.0  # between two lines when there is no terminal
SAMPLED = ("sampled_accuracy", "sampled_reward")  # the score that a set is summed up by: it has one of them
FILE_ONLY = {"file_only": True}  # `extra` of a log record that the terminal is spared (pipeline/job/context.py)


def duration(seconds: float) -> str:
    """Seconds as a person reads them: 0.6 s, 42 s, 2:05, 1:02:05."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def rate(count: float | None, seconds: float | None) -> float | None:
    """count / seconds; None when either is unknown or no time passed."""
    return count / seconds if count is not None and seconds else None


def thousands(value: float) -> str:
    """950, 8.5k, 21k, 1.2M."""
    for bound, scale, unit in ((1e6, 1e6, "M"), (1e3, 1e3, "k")):
        if value >= bound:
            return f"{value / scale:.1f}{unit}" if value < 10 * scale else f"{value / scale:.0f}{unit}"
    return f"{value:.0f}"


def is_reward(metric: str) -> bool:
    """Whether a score is a mean reward, and not a share of tasks."""
    return metric.endswith("_reward")


def interval(score: Score) -> str:
    """`38% [35, 41]`: estimate and 95% interval, in percent; of a mean reward `reward 0.412 [0.380, 0.444]`."""
    if is_reward(score.metric):
        return f"reward {score.value:.3f} [{score.low:.3f}, {score.high:.3f}]"
    return f"{score.value:.0%} [{score.low * 100:.0f}, {score.high * 100:.0f}]"


def task_words(tasks: int, rows: int | None) -> str:
    """`35 tasks (40 rows, 5 duplicates merged)`. rows: null where it is not known."""
    merged = (rows or tasks) - tasks
    return f"{tasks} tasks" + (f" ({rows} rows, {merged} duplicate{'s' * (merged > 1)} merged)" if merged else "")


def leak_words(score: Score) -> str:
    """`31 of the 35 tasks are in the training data`; nothing where none is, or it is not known."""
    return f"{score.trained_tasks} of the {score.tasks} tasks are in the training data" if score.trained_tasks else ""


def score_words(scores: Sequence[Score]) -> str:
    """The sampled accuracies or rewards of one evaluation: `test 38% [35, 41] at step 50`."""
    sampled = [s for s in scores if s.metric in SAMPLED]
    return ", ".join(f"{s.taskset} {interval(s)} at step {s.step}" for s in sampled)


def step_line(
    step: Step, total: int | None = None, left_seconds: float | None = None, evaluated: Sequence[Score] = ()
) -> str:
    """One optimizer step in one line, with units; parts that took no part are left out.

    evaluated: the scores of the last evaluation on the way, if there was one.
    """
    rollout, train = rate(step.rollout_tokens, step.rollout_seconds), rate(step.trained_tokens, step.train_seconds)
    parts = [
        f"step {step.step}" + (f"/{total}" if total else ""),
        None if step.reward is None else f"reward {step.reward:.3f}",
        None if step.solve_rate is None else f"solved {step.solve_rate:.1%}",
        resample_words(step),
        score_words(evaluated),
        f"loss {step.loss:.4f}",
        None if step.kl is None else f"KL {step.kl:.1e} nats",
        f"grad norm {step.grad_norm:.3f}",
        None if rollout is None else f"rollout {thousands(rollout)} tokens/s",
        None if train is None else f"training {thousands(train)} tokens/s",
        f"{step.seconds:.2f} s",
        None if left_seconds is None else f"{duration(left_seconds)} left",
    ]
    return "  ".join(p for p in parts if p)


def rollout_words(rollout: Rollout) -> str:
    """What one explorer step made, and how fast."""
    speed = rate(rollout.tokens, rollout.rollout_seconds)
    parts = [
        row_words(rollout),
        None if speed is None else f"rollout {thousands(speed)} tokens/s",
        f"{rollout.rollout_seconds + rollout.other_seconds:.2f} s",
    ]
    return "  ".join(p for p in parts if p)


def row_words(rollout: Rollout) -> str:
    """`512 rows (3 failed, 12 groups replaced, 2 missing)`; what there is none of is left out."""
    failed = f"{rollout.failed_rows} failed" if rollout.failed_rows else ""
    aside = ", ".join(filter(None, [failed, resample_words(rollout)]))
    return f"{rollout.rows} rows" + (f" ({aside})" if aside else "")


def resample_words(row: Rollout | Step) -> str:
    """How many groups without variance were replaced by fresh ones, and how many places stayed without one."""
    replaced = f"{row.resampled_groups} groups replaced" if row.resampled_groups else ""
    missing = f"{row.missing_groups} missing" if row.missing_groups else ""
    return ", ".join(filter(None, [replaced, missing]))


class Bar:
    """Shows `total` units of work as they are done: a bar on a terminal, else a line about every ten seconds.

    unit: plural noun ("steps", "rows"). done: units that were done before. Also a context manager.
    """

    def __init__(self, total: int, unit: str, label: str, done: int = 0):
        self.total, self.unit, self.label, self.done = total, unit, label, done
        self._last_line = float("-inf")
        self._bar = self._make_bar() if sys.stderr.isatty() else None

    def _make_bar(self):
        from tqdm import tqdm

        form = "{l_bar}{bar:10}| {n_fmt}/{total_fmt} " + self.unit + " [{elapsed}<{remaining}]{postfix}"
        return tqdm(total=self.total, initial=self.done, desc=self.label, bar_format=form, file=sys.stderr,
                    dynamic_ncols=True, mininterval=0.2)

    def show(self, done: int, line: str, beside_the_bar: str) -> None:
        """Moves to `done`. line: what is printed where there is no bar."""
        self.done = done
        if self._bar is not None:
            self._bar.set_postfix_str(beside_the_bar, refresh=False)
            self._bar.update(self.done - self._bar.n)
        elif self.done >= self.total or time.monotonic() - self._last_line >= QUIET_SECONDS:
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
    """The progress of a stage, in its log file too: every line goes there.

    log: the stage's logger. done: units that an earlier life of the stage finished; the time left is judged by this
    life alone.
    """

    def __init__(self, log, total: int, unit: str, label: str, done: int = 0):
        super().__init__(total, unit, label, done)
        self.log = log
        self.evaluated: Sequence[Score] = ()  # scores of the last evaluation on the way
        self._moments = deque([(time.monotonic(), done)], maxlen=50)

    def left_seconds(self) -> float | None:
        """Time left at the pace of the last 50 reports; None before there is a pace."""
        (begin, first), (end, last) = self._moments[0], self._moments[-1]
        return (end - begin) / (last - first) * (self.total - last) if last > first else None

    def step(self, step: Step) -> None:
        """Reports one optimizer step; steps count from 1."""
        self._move_to(step.step)
        line = step_line(step, self.total, self.left_seconds(), self.evaluated)
        self._tell(line, step_line(step, evaluated=self.evaluated).split("  ", 1)[1])

    def advance(self, n: int = 1, text: str = "") -> None:
        """Reports `n` more units of work, with a few words about them."""
        self._move_to(self.done + n)
        left = self.left_seconds()
        parts = [f"{self.done}/{self.total} {self.unit}", text, None if left is None else f"{duration(left)} left"]
        self._tell("  ".join(p for p in parts if p), text)

    def _move_to(self, done: int) -> None:
        self.done = done
        self._moments.append((time.monotonic(), done))

    def _tell(self, line: str, beside_the_bar: str) -> None:
        self.log.info("%s", line, extra=FILE_ONLY)
        self.show(self.done, line, beside_the_bar)


@dataclass(frozen=True)
class Reached:
    """What a line that `Progress` left in a stage's log says."""

    done: int
    total: int
    unit: str
    words: str  # shown behind the bar


def read_line(line: str) -> Reached | None:
    """Reads a line of `Progress` back: `step 3/10  loss 0.1  12 s left`, `12/40 rows  12 s left`; None for others."""
    first, *parts = line.split("  ")
    found = re.fullmatch(r"step (\d+)/(\d+)|(\d+)/(\d+) (\w[\w ]*)", first)
    if not found:
        return None
    done, total = (int(found[a] or found[b]) for a, b in ((1, 3), (2, 4)))
    return Reached(done, total, found[5] or "steps", "  ".join(p for p in parts if not p.endswith(" left")))
