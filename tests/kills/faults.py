"""Faults that the system produces: each must be named, with completed steps kept, or make no difference."""

import contextlib
import dataclasses
import errno
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ouroboros.pipeline.plan.plan import Plan
from ouroboros.pipeline.store import files, tables
from tests.kills.cases import Case
from tests.kills.chain import Chain, differences
from tests.kills.shim import shimmed

STAGE = Case("faults", 0, ("trainer.max_checkpoints_to_keep=2",))
RUN = Case("faults of a run", 0, ("stages.sft.buffer.total_steps=6", "buffer.total_steps=4"), "")
LATE, TOO_LATE = 3, 600  # seconds; snakemake waits five for the file of a job
ADDRESSES = 5 * 2**29  # torch can be imported, and threads get no memory
DISK = "14m"  # the stages before rft fit, and some of its steps

UNTESTED = [
    "a disk that loses power: kill -9 keeps what the kernel holds, so flushing is only traced, not tested",
    "a network file system: late visibility is simulated for files, not for attributes or cached content",
    "a quota (EDQUOT): worded as a full disk", "an engine that finds no GPU memory",
]


@dataclass
class Faults:
    """place: of the runs. source: complete stages. expected: what undisturbed ones made, by case."""

    place: Path
    source: Plan
    expected: dict[str, Chain] = dataclasses.field(default_factory=dict)

    def undisturbed(self, case: Case) -> Chain:
        if case.name not in self.expected:
            root = self.place / f"whole-{case.name.replace(' ', '-')}"
            made = self.expected[case.name] = Chain(case, root, self.source)
            assert made.launch(None) == 0, made.output()
        return self.expected[case.name]

    def chain(self, case: Case, name: str) -> Chain:
        return Chain(case, self.place / name, self.source)

    # ------------------------------------------------------------------------------------------------------ faults

    def no_flock(self, number: int) -> str:
        """A file system without flock: said before anything runs."""
        chain = self.chain(RUN, f"flock-{number}")
        code, output = run(chain, no_flock=number)
        started = list((chain.root / "store").glob("*/stage.log"))
        return wrong(code == 0, "it ran", output) or wrong(bool(started), f"{started} were started", output) or wrong(
            "cannot be locked" not in output, "flock is not named", output)

    def late(self) -> str:
        """Every file appears some seconds after its rename to the processes that did not write it."""
        return self._goes_on(RUN, "late", late=LATE)

    def never(self) -> str:
        """Files do not appear in time: the run ends and names the file."""
        chain = self.chain(RUN, "never")
        code, output = run(chain, late=TOO_LATE)
        return wrong(code == 0, "it ran", output) or wrong(files.MANIFEST not in output, "no file is named", output)

    def clock(self) -> str:
        """The clock goes back by an hour while a stage runs."""
        return self._goes_on(STAGE, "clock", clock=3600, clock_after=6) or self._no_negative_seconds("clock")

    def _no_negative_seconds(self, name: str) -> str:
        for manifest in (self.place / name / "store").glob(f"*/{files.MANIFEST}"):
            if files.read_json(manifest).get("seconds", 0) < 0:
                return f"{manifest} has negative seconds"
        return ""

    def _goes_on(self, case: Case, name: str, **shim: object) -> str:
        expected, chain = self.undisturbed(case), self.chain(case, name)
        code, output = run(chain, **shim)
        return wrong(code != 0, f"exit code {code}", output) or "; ".join(differences(case, chain, expected))

    def full_disk(self) -> str:
        """The disk is full, twice; with more space the stage goes on, and ends as if undisturbed."""
        expected = self.undisturbed(STAGE)
        with mounted(self.place / "disk", DISK) as disk:
            chain = Chain(STAGE, disk / "root", self.source)
            for time in ("first", "second"):
                code, output = run(chain)
                if words := wrong(code == 0, f"the {time} time it was not full", output) or wrong(
                        "no space left" not in output and "MiB are free" not in output, f"{time}: not named", output):
                    return words
            kept = len(tables.steps_present(chain.case.directories(chain.plan)[0], "steps"))
            subprocess.run(["mount", "-o", "remount,size=200m", disk], check=True)
            code, output = run(chain)
            return wrong(code != 0, f"with space: exit code {code} ({kept} steps were kept)", output) or "; ".join(
                differences(STAGE, chain, expected))

    def read_only(self) -> str:
        """The store is mounted read-only; writable again, the stage goes on."""
        expected = self.undisturbed(STAGE)
        with mounted(self.place / "readonly", "200m") as disk:
            chain = Chain(STAGE, disk / "root", self.source)
            subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
            code, output = run(chain)
            if words := wrong(code == 0, "it ran", output) or wrong("read-only" not in output, "not named", output):
                return words
            subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
            code, output = run(chain)
            return wrong(code != 0, f"exit code {code}", output) or "; ".join(differences(STAGE, chain, expected))

    def few_addresses(self) -> str:
        """A child gets no more memory (`ulimit -v`), which is named; without the limit the stage goes on."""
        expected, chain = self.undisturbed(STAGE), self.chain(STAGE, "addresses")
        code, output = run(chain, addresses=ADDRESSES)
        if words := wrong(code == 0, "it ran", output) or wrong("ulimit -v" not in output, "not named", output):
            return words
        code, output = run(chain)
        return wrong(code != 0, f"exit code {code}", output) or "; ".join(differences(STAGE, chain, expected))

    def all(self) -> dict[str, Callable[[], str]]:
        return {
            "no flock (ENOLCK)": lambda: self.no_flock(errno.ENOLCK),
            "no flock (EOPNOTSUPP)": lambda: self.no_flock(errno.EOPNOTSUPP),
            f"files visible after {LATE} s": self.late, "files never visible": self.never,
            "clock set back an hour": self.clock, "disk full, twice": self.full_disk, "store read-only": self.read_only,
            "ulimit -v": self.few_addresses}


def run(chain: Chain, addresses: int | None = None, **shim: object) -> tuple[int, str]:
    """Starts the run with the shim; returns its exit code and output. addresses: limit of each process, bytes."""
    limit = (lambda: resource.setrlimit(resource.RLIMIT_AS, (addresses, addresses))) if addresses else None
    done = subprocess.run(chain.command, env=shimmed(chain.root, **shim), cwd=files.HOME, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900, check=False, preexec_fn=limit)
    return done.returncode, done.stdout


def wrong(holds: bool, words: str, output: str) -> str:
    return f"{words}: {output[-700:]}" if holds else ""


@contextlib.contextmanager
def mounted(place: Path, size: str) -> Iterator[Path]:
    """A small file system in memory; needs root."""
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def try_all(place: Path, source: Plan, only: str = "") -> list[tuple[str, str]]:
    """Returns each fault, and what was wrong; empty where nothing was."""
    shutil.rmtree(place, ignore_errors=True)
    faults, found = Faults(place, source), []
    for name, fault in faults.all().items():
        if only not in name:
            continue
        if os.geteuid() and name in ("disk full, twice", "store read-only"):
            found.append((name, "untested: needs root"))
            continue
        found.append((name, fault()))
        print(f"{name}: {found[-1][1] or 'right'}", flush=True)
    return found
