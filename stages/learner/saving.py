"""Writes a trainer's checkpoints during its next steps: from a copy of the state, first under a hidden name, then
visible with one rename.

Each rank writes its own files in the background; rank 0 then waits for the others' (a file each with their hashes, as a
thread must not take part in collectives while the main thread does) and for the rows of the step.
"""

import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ouroboros.operators.algorithm import Algorithm
from ouroboros.pipeline.job import slurm
from ouroboros.pipeline.job.background import Background
from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.job.schedule import first_explored
from ouroboros.pipeline.settings.setting import at
from ouroboros.pipeline.store import checkpoints, files, hashes, routings
from ouroboros.pipeline.store.errors import StageError
from ouroboros.pipeline.store.locations import PER_STEP
from ouroboros.stages.learner.actor import Actor
from ouroboros.stages.learner.critic import Critic
from ouroboros.stages.learner.engine.process import Process
from ouroboros.stages.learner.engine.snapshot import Part, copied, released, reserve, written
from ouroboros.workflows.protocol.prompts import keep_template

POLL_SECONDS = 0.02  # interval of looking for the files of the other ranks
RECENT = 10  # steps, the slowest of which is expected of the next one
LEAST_ROOM = 5.0  # seconds for a stage to end its processes


class Saving:
    """Checkpoints of one rank, one at a time. model: directory of the initial weights. algorithm: whose state they
    keep. saved: called with the seconds that a checkpoint took."""

    def __init__(self, context: Context, model: Path, process: Process, actor: Actor, critic: Critic | None,
                 algorithm: Algorithm, saved: Callable[[float], None]):
        self.context, self.model, self.process = context, model, process
        self.moves = at(context.config, "trainer.reference_update.interval") is not None
        self.actor, self.critic, self.algorithm, self.saved = actor, critic, algorithm, saved
        self._background = Background()
        self._taken: tuple[float, list[Part], dict[str, Any]] = 0.0, [], {}
        self._background.start(reserve, actor.zero.module.parameters(), process.ranks)

    def take(self, step: int, mark: str | None = None) -> None:
        """Copies the state after `step`, once the former checkpoint is complete. Where the memory does not suffice for
        a copy, writes it at once. mark: see checkpoints.keep_newest. Collective."""
        self.finish()
        began, temporary = time.perf_counter(), self._temporary(step)
        self.context.activity.now("saves a checkpoint", f"step {step}")
        if self.process.rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)
            checkpoints.copy_model_files(self.model, temporary / "model")
            keep_template(temporary / "model", self.context.config.model)
        self.process.barrier()
        with _removed_on_error(temporary):
            parts = self.actor.save(temporary) + (self.critic.save(temporary) if self.critic else [])
            if self.moves:
                parts += self.actor.reference_part(temporary)
            if (copies := copied(parts)) is None:
                self.context.log.info("the free host memory does not suffice for a copy of the checkpoint of step %d: "
                                      "it is written before the next step", step)
                copies = [Part(None, lambda _, made=made: made) for made in written(parts).items()]
        manifest = {"step": step, "zero_stage": self.context.config.trainer.zero_stage,
                    "state": self.algorithm.saved(),
                    "token_budget": self.actor.budget.saved(), "packing": self.actor.way.name,
                    **({mark: True} if mark else {})}
        self._taken = began, copies, manifest

    def start(self, step: int, rows: Future | None = None, last: bool = False) -> None:
        """Writes what was taken after `step`, in the background. rows: of the writing of that step's rows, which its
        checkpoint must not precede: a resumed stage does not make them again. last: no other is taken after it."""
        self._background.start(self._complete, step, rows, last, *self._taken)
        self._taken = 0.0, [], {}

    def check(self) -> None:
        """Raises the error of a checkpoint that could not be written."""
        self._background.check()

    def settle(self) -> None:
        """Waits for the checkpoint in progress, of a trainer that fails: once its process ends, no thread can start."""
        self._background.wait(self.context.config.log.grace_seconds)

    def finish(self) -> None:
        """Waits for the checkpoint in progress; raises its error. Collective: afterwards all ranks see it."""
        if not self._background.wait(0.0):
            self.context.activity.now("waits for a checkpoint")
        self._background.finish()
        self.process.barrier()

    def _complete(self, step: int, rows: Future | None, last: bool, began: float, parts: list[Part],
                  manifest: dict[str, Any]) -> None:
        """Writes this rank's files; on rank 0 also makes the checkpoint visible, and deletes old ones."""
        temporary, final = self._temporary(step), checkpoints.checkpoint_directory(self.context.directory, step)
        flags = [temporary.with_suffix(f".rank={rank}.tmp") for rank in range(1, self.process.ranks)]
        with _removed_on_error(temporary):
            known = {str(path.relative_to(temporary)): entry for path, entry in written(parts).items()}
            if last:
                released(parts)
            if whole := self.process.rank == 0 and _all_there(temporary, flags):
                for flag in flags:  # entries of the other ranks
                    known |= files.read_json(flag)
                    flag.unlink()
                manifest |= _hashed(temporary, known)
                if rows:
                    rows.result()
                for home in self.context.directory, *(self.context.directory / table for table in PER_STEP):
                    if home.exists():  # the names of rows
                        files.flush_to_disk(home)
                files.write_json(temporary / files.MANIFEST, manifest)
            with suppress(*[FileNotFoundError] * (not whole)):  # another rank that cannot write deletes them
                files.flush_tree(temporary)
            if self.process.rank > 0:
                files.write_json(flags[self.process.rank - 1], known)
            elif whole:
                files.remove_tree(final)
                temporary.rename(final)
                files.flush_to_disk(final.parent)
                checkpoints.keep_newest(self.context.directory, self.context.config.trainer.max_checkpoints_to_keep)
                if self.context.config.kind.is_online:
                    routings.forget_before(self.context.directory, first_explored(self.context.config, step))
        self.saved(time.perf_counter() - began)

    def _temporary(self, step: int) -> Path:
        return self.context.directory / "checkpoints" / f".step={step:06d}.tmp"


@contextmanager
def _removed_on_error(temporary: Path) -> Iterator[None]:
    """Deletes the directory if the block fails, most likely because of a full disk: its space is then free again."""
    try:
        yield
    except Exception:  # any: it is raised again
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _all_there(temporary: Path, flags: list[Path]) -> bool:
    """Waits until the other ranks have written their files; returns whether they could: one that cannot deletes the
    directory, and reports why."""
    while not all(flag.exists() for flag in flags):
        if not temporary.exists():
            return False
        time.sleep(POLL_SECONDS)
    return True


def _hashed(temporary: Path, known: dict[str, hashes.Entry]) -> dict[str, Any]:
    """Returns what the manifest of a checkpoint has of its files: the hash of each, and that of the weights. known: of
    files that were hashed when they were written."""
    checkpoints.write_dtype(temporary / "model")
    entries = hashes.hash_tree(temporary, {name: entry[:2] for name, entry in known.items()})
    if unseen := sorted(known.keys() - entries.keys()):
        raise StageError(f"{temporary / unseen[0]} was written and is not there: does each node see what others write?")
    return {"weights_hash": known[f"model/{checkpoints.WEIGHTS}"][2], hashes.FILES: entries}


class Deadline:
    """The time limit of a trainer's job of SLURM, against the durations of its steps and checkpoints.

    ends_at: of the job, seconds since 1970; None without a limit. save_seconds: of the slowest checkpoint.
    """

    def __init__(self):
        self.ends_at = slurm.ends_at()
        self.save_seconds = 0.0
        self._steps: deque[float] = deque(maxlen=RECENT)

    def saved(self, seconds: float) -> None:
        self.save_seconds = max(self.save_seconds, seconds)

    def stepped(self, seconds: float) -> None:
        self._steps.append(seconds)

    @property
    def is_near(self) -> bool:
        """Whether one more step, and then twice the slowest checkpoint, may pass it."""
        needed = max(self._steps, default=0.0) + 2 * self.save_seconds + LEAST_ROOM
        return self.ends_at is not None and time.time() + needed > self.ends_at
