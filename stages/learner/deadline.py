"""The time limit of a trainer's job of SLURM, against the durations of its steps and checkpoints."""

import time
from collections import deque

from pipeline.job import slurm

RECENT = 10  # steps, the slowest of which is expected of the next one
LEAST_ROOM = 5.0  # seconds for a stage to end its processes


class Deadline:
    """ends_at: of the job, seconds since 1970; None without a limit. save_seconds: of the slowest checkpoint."""

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
