"""The terminal output of `ouro run`: stage progress from the stages' logs. Snakemake's own output goes to a file.

Logs are read instead of the stages' output, so that stages on other machines (SLURM) are shown in the same way.
"""

import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ouroboros.commands.run.sweep import rules
from ouroboros.pipeline.job.ending import INTERRUPTED
from ouroboros.pipeline.job.progress import Bar, duration, read_line
from ouroboros.pipeline.plan.identity import Stage
from ouroboros.pipeline.results import view
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import masked
from ouroboros.pipeline.store.files import near

STARTED = "ouro: the stages start now"  # printed by the Snakefile; without it snakemake only printed an answer
QUIET = 60.0  # seconds without a line of a running stage after which one says so; then twice as long, and so on
KEPT = 10  # snakemake log files kept in a run's view
RECORD = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO|WARNING|ERROR|CRITICAL) (.*)")
COMPLETE = re.compile(r"complete in ([\d.]+) s: ")


class Output:
    """Standard output and error of snakemake and its jobs; copied to a log file once the stages start.

    They are held in memory first, so that the cause of a failure is known even on a full disk, and snakemake can still
    write after this process was killed.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self.stdout, self.stderr = os.memfd_create("stdout"), os.memfd_create("stderr")
        self.log: Path | None = None
        self.problem: OSError | None = None  # why the log file is incomplete
        self._copied = {self.stdout: 0, self.stderr: 0}

    def copy(self) -> None:
        """Appends the new complete lines to the log file, with secrets masked."""
        try:
            if self.log is None and STARTED.encode() in self._read(self.stderr, 0):
                self._open()
            if self.log is not None:
                with open(self.log, "ab", buffering=0) as file:
                    for end, begin in self._copied.items():
                        begin = begin if begin <= os.fstat(end).st_size else 0  # a job truncated it: `> /dev/stderr`
                        lines = self._read(end, begin).rpartition(b"\n")
                        file.write(masked((lines[0] + lines[1]).decode(errors="replace")).encode())
                        self._copied[end] = begin + len(lines[0] + lines[1])
        except OSError as error:
            self.problem = error

    def _open(self) -> None:
        self.log = self.directory / f"snakemake-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
        self.directory.mkdir(parents=True, exist_ok=True)  # in the run's view, which was just written
        for old in sorted(self.directory.glob("snakemake-*.log"))[: 1 - KEPT]:
            old.unlink(missing_ok=True)
        print(f"ouro: all that snakemake and the stages print goes to {near(self.log)}", file=sys.stderr)

    def answer(self) -> None:
        """Prints snakemake's output when no stage started: a dry run, a graph, an error in its arguments (without its
        usage, of a hundred lines)."""
        for end, stream in ((self.stdout, sys.stdout), (self.stderr, sys.stderr)):
            text = self._read(end, 0).decode(errors="replace")
            wrong = re.search(r"^\S+: error: ", text, re.MULTILINE) if text.startswith("usage: ") else None
            stream.write(text[wrong.start():] if wrong else text)
            stream.flush()

    @property
    def place(self) -> str:
        """Returns where the output is kept, for the last line of a failed run."""
        return f"it was not kept ({self.problem.strerror})" if self.problem else near(self.log)

    def errors(self) -> str:
        """Returns all of standard error, where snakemake and the stages report failures."""
        return self._read(self.stderr, 0).decode(errors="replace")

    @staticmethod
    def _read(end: int, begin: int) -> bytes:
        return os.pread(end, max(os.fstat(end).st_size - begin, 0), begin)


@dataclass(frozen=True)
class Ended:
    """The result of snakemake. began: start time, seconds since 1970. signal: the one that requested the stop. output:
    its output, unless the terminal showed it."""

    began: float
    code: int
    signal: int | None = None
    output: Output | None = None


class Console:
    """Follows the logs of incomplete stages. A context manager: leaving it closes the bars."""

    def __init__(self, stages: Sequence[Stage]):
        self.stages, self.number = rules(stages), len(stages)
        self._logs = {name: _Log(Path(stage.directory) / "stage.log") for name, stage in self.stages
                      if not files.is_complete(stage.directory)}
        self._bars: dict[str, Bar] = {}
        self._quiet: dict[str, tuple[float, float]] = {}  # running stage -> time of its last line, next notice after
        self._before: dict[str, tuple[Bar, str]] = {}  # stage without a step yet -> what it does, as last shown
        self._complete = self.number - len(self._logs)

    def poll(self) -> None:
        """Shows what was appended to the logs since the last call."""
        for name, log in self._logs.items():
            for level, text in log.new():
                if name in self._quiet or text.startswith("started: "):
                    self._quiet[name] = time.monotonic(), QUIET
                self._show(name, level, text)
        for name, (since, after) in self._quiet.items():
            if (silent := time.monotonic() - since) > after:
                self._quiet[name] = since, 2 * after
                self._print(f"{name}: no new line for {duration(silent)}; `ouro status` shows what it does")
            if name not in self._bars:
                self._wait(name)

    def _wait(self, name: str) -> None:
        """Shows what the processes of a stage do before its first step, and how many answers and tokens there are."""
        bar, shown = self._before.get(name) or (Bar(0, "", name), "")
        if (doing := "; ".join(view.doing(self._logs[name].path.parent))) and doing != shown:
            bar.show(0, doing, doing)
        self._before[name] = bar, doing

    def _show(self, name: str, level: str, text: str) -> None:
        reached = read_line(text)
        if reached:
            self._bar(name, reached.total, reached.unit, reached.done - 1).show(reached.done, text, reached.words)
        elif done := COMPLETE.match(text):
            self._end(name)
            self._quiet.pop(name, None)
            self._complete += 1
            self._print(f"{name}: complete in {duration(float(done[1]))}; {self._complete} of {self.number} stages are "
                        "complete")
        elif text.startswith("started: "):
            self._print(f"{name}: started")
        elif level == "ERROR":
            self._end(name)
            self._quiet.pop(name, None)
            if not text.startswith("log: "):  # the cause is in the last lines of the run (failure.py)
                failed = f"failed; log: {near(self._logs[name].path)}"
                self._print(f"{name}: {text if text.startswith(INTERRUPTED) else failed}")
        elif not text.startswith("evaluated: "):  # shown by a bar
            self._print(f"{name}: {text}")

    def _bar(self, name: str, total: int, unit: str, done: int) -> Bar:
        if name not in self._bars:
            self._end(name)
            self._bars[name] = Bar(total, unit, name, done)
        return self._bars[name]

    def _end(self, name: str) -> None:
        for bar in filter(None, (self._bars.pop(name, None), *self._before.pop(name, ())[:1])):
            bar.close()

    @staticmethod
    def _print(line: str) -> None:
        from tqdm import tqdm

        tqdm.write(line, file=sys.stderr)  # above the bars

    def __enter__(self) -> "Console":
        return self

    def __exit__(self, *_) -> None:
        for name in [*self._bars, *self._before]:
            self._end(name)


class _Log:
    """Reads records appended to a stage's log; continuation lines of multi-line records are dropped."""

    def __init__(self, path: Path):
        self.path = path
        self._at = path.stat().st_size if path.exists() else 0

    def new(self) -> list[tuple[str, str]]:
        """Returns level and first line of each new record."""
        if not self.path.exists() or self.path.stat().st_size == self._at:
            return []
        with open(self.path, "rb") as file:
            file.seek(self._at)
            lines = file.read().rpartition(b"\n")[0]
        if lines:
            self._at += len(lines) + 1
        found = (RECORD.fullmatch(line) for line in lines.decode(errors="replace").splitlines())
        return [(record[1], record[2]) for record in found if record]
