"""The steps of a stage between two changes of its settings (settings/changes.py), each made by processes that start
with those settings and end after the last of them, as a stage does that is interrupted there and resumes.
"""

from pathlib import Path

from ouroboros.pipeline.job.schedule import rft_schedule
from ouroboros.pipeline.settings import changes
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.store import checkpoints, files, tables

SEGMENT = "segment.json"  # the trainer step after which the settings of the processes began


def choose(stage: Path, config: Config) -> int | None:
    """Decides which settings the processes of a stage are to start with, by the steps that it has, trainer's and
    explorer's; returns the trainer step after which they change, None where they do not. config: its settings."""
    if not (steps := [step for step, _ in changes.of(config)]):
        return None
    trained = max(checkpoints.complete_checkpoints(stage), default=0)
    explored = max(tables.steps_present(stage, "rollouts"), default=0)
    needed = rft_schedule(config, 1).last_explorer_step if config.kind.is_online else lambda step: 0
    began = max((step for step in steps if step <= trained and needed(step) <= explored), default=0)
    files.write_json(stage / SEGMENT, {"after": began})
    return next((step for step in steps if step > began), None)


def chosen(stage: Path, config: Config) -> tuple[Config, int | None]:
    """Returns the settings that were chosen for the processes of a stage, and the step after which they change."""
    began = files.read_json(stage / SEGMENT)["after"] if (stage / SEGMENT).exists() else 0
    for step, values in changes.of(config):
        if step > began:
            return config, step
        config = changes.changed(config, values)
    return config, None
