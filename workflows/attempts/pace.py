"""A limit on the time of an attempt that follows the attempts before it (`explorer.dynamic_timeout`).

An attempt fails once it has taken `ratio` times the mean time of the successful ones, from its start to its end, with
what it waits for engine and tools. Attempts that are replayed after a kill take no time, and do not count. With fewer
places than attempts (`explorer.runner_concurrency`) an attempt starts when it has a place.
"""

from ouroboros.pipeline.job.progress import duration


class Pace:
    """The times of the successful attempts of a stage since it was started, and the limit that follows from them."""

    def __init__(self, ratio: float, warmup_min_steps: int):
        """warmup_min_steps: explorer steps that have no limit, at least."""
        self._ratio, self._without, self._ended, self._seconds = ratio, warmup_min_steps, 0, 0.0

    def begin_step(self) -> None:
        self._without -= 1

    def ended(self, seconds: float) -> None:
        """A successful attempt has taken so long."""
        self._ended += 1
        self._seconds += seconds

    @property
    def limit(self) -> float | None:
        """Seconds; None: no attempt has one yet."""
        return self._ratio * self._mean if self._without < 0 and self._ended else None

    @property
    def _mean(self) -> float:
        return self._seconds / self._ended

    def reason(self, seconds: float) -> str:
        """Why an attempt that has taken so long has failed."""
        return (f"took {duration(seconds)} and was not waited for longer: successful attempts took "
                f"{duration(self._mean)} in the mean (explorer.dynamic_timeout.ratio={self._ratio:g})")
