"""What the machine of a stage uses, all of its programs together: watched by a thread, and averaged over each step."""

from dataclasses import astuple, dataclass
from threading import Thread

import numpy as np

from ouroboros.pipeline.job import devices

SECONDS = 5  # of a look: the CPUs' load is that of this time


@dataclass(frozen=True)
class Load:
    """Memory in GiB, load from 0 to 1, of all CPUs and of all GPUs that NVIDIA's tool lists; columns of the step
    record. None: not known, or no GPU."""

    host_memory_gib: float | None = None
    host_load: float | None = None
    gpu_memory_gib: float | None = None
    gpu_load: float | None = None


def process_start() -> float:
    """Returns when this process was started, in seconds since 1970."""
    import psutil

    return psutil.Process().create_time()


def look(seconds: float = SECONDS) -> Load:
    """Returns what is used now, and the load of the CPUs in the next `seconds`."""
    import psutil

    memory, gpus = psutil.virtual_memory(), devices.gpus()
    return Load((memory.total - memory.available) / 2**30, psutil.cpu_percent(seconds) / 100,
                sum(one["memory_used_gib"] for one in gpus) if gpus else None,
                sum(one["used"] for one in gpus) / len(gpus) if gpus else None)


def mean(seen: list[Load]) -> Load:
    """Returns the means of what is known."""
    columns = [[value for value in values if value is not None] for values in zip(*map(astuple, seen), strict=True)]
    return Load(*(float(np.mean(values)) if values else None for values in columns))


class Watch:
    """Looks at the machine until this process ends. seen: since the last call of `since`."""

    def __init__(self) -> None:
        self.seen: list[Load] = []
        self._last = Load()
        Thread(target=self._go, name="load", daemon=True).start()

    def _go(self) -> None:
        while True:
            found = look()  # meanwhile `since` may take the list
            self.seen.append(found)

    def since(self) -> Load:
        """Returns the means since the last call; of a step that is shorter than a look, what was seen before it."""
        seen, self.seen = self.seen, []
        self._last = mean(seen) if seen else self._last
        return self._last
