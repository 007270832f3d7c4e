"""Which weights version an explorer step begins with: by the schedule, or when one side asks for a hand-over.

`synchronizer.sync_style`: with `fixed` a pure function of the step numbers (`Schedule`). With `trainer_driven` the
trainer publishes after every sync_interval of its steps, and each explorer step begins with the newest version. With
`explorer_driven` the explorer asks before every sync_interval-th of its steps, and the trainer answers with the weights
of its last whole step, however many it has made. In the latter two the version depends on time, within these bounds: it
never falls, and with `synchronizer.max_staleness` an explorer step waits for weights so new that none of its rows is
trained on more than that many trainer steps later; `explorer_driven` then asks sooner too.

    weights/asked.json   written by the explorer: its step, and the least version that it may begin with
    weights/given.json   the answer, step and version; with trainer_driven the explorer's own choice. A step that a kill
                         interrupted begins with the same version again, if that is still there.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ouroboros.pipeline.job.schedule import Schedule
from ouroboros.pipeline.job.waiting import wait_until
from ouroboros.pipeline.settings.trainer import EXPLORER_DRIVEN, is_driven
from ouroboros.pipeline.store import files, tables, versions

ASKED, GIVEN = "asked.json", "given.json"  # in weights/
NONE = -1  # before every version

Check = Callable[[], None]


def syncs_of(stage: Path, schedule: Schedule, config: Any) -> "Scheduled":
    """Returns what decides over the versions of a stage. config: its settings."""
    if config.mode == "explore" or not is_driven(config):
        return Scheduled(stage, schedule)
    return (AtRequest if config.synchronizer.sync_style == EXPLORER_DRIVEN else WhenPublished)(
        stage, schedule, config.synchronizer)


class Unasked:
    """What a trainer sees: here one without an explorer."""

    asks = False  # whether an explorer may ask

    def publishes(self, trainer_step: int) -> bool:
        """Returns whether the weights of trainer step t are published when it ends; 0: before the first. A function
        of t alone."""
        return False

    def awaits(self, trainer_step: int) -> bool:
        """Returns whether a later explorer step needs the weights of the trainer step after which a stage resumes, and
        they are not there: they, or rollouts by them, were damaged, or a shorter stage ended with them."""
        return False

    def is_asked(self, trainer_step: int) -> bool:
        """Returns whether the explorer waits for an answer that the weights of trainer step t are."""
        return False

    def answer(self, trainer_step: int) -> None:
        """Tells an explorer that asked that these weights are published."""


class Scheduled(Unasked):
    """Versions by the schedule."""

    def __init__(self, stage: Path, schedule: Schedule):
        self.stage, self.schedule = stage, schedule

    def begin(self, explorer_step: int, check: Check) -> int:
        """Returns the version of explorer step s, for which it may wait. check: see wait_until."""
        return self.schedule.weights_version(explorer_step)

    def before(self, explorer_step: int) -> int:
        """Returns the version of the step before explorer step s; 0 before the first."""
        return self.schedule.weights_version(explorer_step - 1)

    def kept(self, explorer_step: int, version: int) -> int:
        """Returns the oldest version that is needed once explorer step s, which began with `version`, is written."""
        return self.schedule.weights_version(explorer_step + 1)

    def newer(self, explorer_step: int, version: int) -> int | None:
        """Returns a published version for the rest of explorer step s, newer than the loaded one; None without one.

        Later ones than that of the next step are not loaded, so each step begins with the weights of the schedule.
        """
        following = self.schedule.weights_version(min(explorer_step + 1, self.schedule.explorer_steps))
        return following if following != version and self.is_there(following) else None

    def is_there(self, version: int) -> bool:
        return files.is_complete(versions.version_directory(self.stage, version))

    def publishes(self, trainer_step: int) -> bool:
        return trainer_step == 0 or self.schedule.publishes(trainer_step)

    def awaits(self, trainer_step: int) -> bool:
        # in this order: the explorer deletes weights after it wrote the rollouts that need them no more
        absent = not self.is_there(trainer_step)
        user = max(self.explored() + 1, self.schedule.first_user(trainer_step))
        return absent and self.schedule.requests(user, trainer_step)

    def explored(self) -> int:
        return max(tables.steps_present(self.stage, "rollouts"), default=0)


class WhenPublished(Scheduled):
    """trainer_driven: the newest version that is there."""

    def __init__(self, stage: Path, schedule: Schedule, settings: Any):
        super().__init__(stage, schedule)
        self.settings = settings
        self.last = 0, 0  # explorer step, its version

    def begin(self, explorer_step: int, check: Check) -> int:
        given, least = self._given(), self.least(explorer_step)
        if given["explorer_step"] == explorer_step and given["version"] >= least and self.is_there(given["version"]):
            chosen = given["version"]
        else:
            chosen = self._chosen(explorer_step, least, check)
            files.write_json(self.stage / "weights" / GIVEN, {"explorer_step": explorer_step, "version": chosen})
        self.last = explorer_step, chosen
        return chosen

    def _chosen(self, explorer_step: int, least: int, check: Check) -> int:
        self._wait(lambda: self.newest() >= least, f"weights version {least} of the trainer, or a later one", check)
        return self.newest()

    def before(self, explorer_step: int) -> int:
        if explorer_step == 1 or self.last[0] == explorer_step - 1:
            return self.last[1]
        row, = tables.read_steps(self.stage, "rollouts", [explorer_step - 1])
        return row.weights_version

    def kept(self, explorer_step: int, version: int) -> int:
        return version

    def newer(self, explorer_step: int, version: int) -> int | None:
        newest = self.newest()
        return newest if newest > version else None

    def least(self, explorer_step: int) -> int:
        """Returns the oldest version that explorer step s may begin with."""
        bound = self.settings.max_staleness
        return max(self.before(explorer_step), 0 if bound is None else self.schedule.oldest(explorer_step, bound))

    def newest(self) -> int:
        return max(versions.numbers(self.stage), default=NONE)

    def publishes(self, trainer_step: int) -> bool:
        used = self.schedule.last_explorer_step(trainer_step) < self.schedule.explorer_steps
        return trainer_step % self.settings.sync_interval == 0 and used

    def awaits(self, trainer_step: int) -> bool:
        explored = self.explored()
        return explored < self.schedule.explorer_steps and self.newest() < self.least(explored + 1) <= trainer_step

    def _given(self) -> dict[str, int]:
        path = self.stage / "weights" / GIVEN
        return files.read_json(path) if path.exists() else {"explorer_step": 0, "version": NONE}

    def _wait(self, there: Callable[[], bool], what: str, check: Check) -> None:
        wait_until(there, self.settings.sync_timeout, what, self.stage / "trainer.log", check)


class AtRequest(WhenPublished):
    """explorer_driven: what the trainer has when the explorer asks."""

    asks = True

    def _chosen(self, explorer_step: int, least: int, check: Check) -> int:
        before = self.before(explorer_step)
        is_due = explorer_step > 1 and (explorer_step - 1) % self.settings.sync_interval == 0
        if not is_due and before >= least and (explorer_step == 1 or self.is_there(before)):
            return before
        home = self.stage / "weights"
        files.write_json(home / ASKED, {"explorer_step": explorer_step, "version": least})
        (home / GIVEN).unlink(missing_ok=True)  # in this order: without it, the question is open
        self._wait(lambda: self._is_answered(explorer_step, least), f"the trainer's answer in {home / GIVEN}", check)
        return self._given()["version"]

    def _is_answered(self, explorer_step: int, least: int) -> bool:
        """Returns whether the answer is there; deletes one to an earlier question, which came late."""
        path = self.stage / "weights" / GIVEN
        if not path.exists():
            return False
        given = files.read_json(path)
        if given["explorer_step"] == explorer_step and given["version"] >= least:
            return True
        path.unlink()
        return False

    def publishes(self, trainer_step: int) -> bool:
        return trainer_step == 0

    def awaits(self, trainer_step: int) -> bool:
        """It asks."""
        return False

    def is_asked(self, trainer_step: int) -> bool:
        home = self.stage / "weights"
        if (home / GIVEN).exists() or not (home / ASKED).exists():
            return False
        return files.read_json(home / ASKED)["version"] <= trainer_step

    def answer(self, trainer_step: int) -> None:
        if self.is_asked(trainer_step):
            asked = files.read_json(self.stage / "weights" / ASKED)
            files.write_json(self.stage / "weights" / GIVEN, asked | {"version": trainer_step})


def forget(stage: Path) -> None:
    """Deletes what the sides said to each other."""
    for name in (ASKED, GIVEN):
        (stage / "weights" / name).unlink(missing_ok=True)
