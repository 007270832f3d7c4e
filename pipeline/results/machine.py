"""What this machine has and uses, for the page of runs."""

from typing import Any

from ouroboros.pipeline.job import devices

LOOK = 0.2


def machine() -> dict[str, Any]:
    """Returns what this machine has and uses, in GiB and shares: CPUs, memory, each GPU that NVIDIA's tool lists. CPUs
    are measured for LOOK seconds, as without an interval psutil compares with the last call of the same thread, and a
    request has a thread for itself."""
    import psutil

    memory = psutil.virtual_memory()
    return {"cpus": psutil.cpu_count(), "cpu_used": psutil.cpu_percent(LOOK) / 100, "memory_gib": memory.total / 2**30,
            "memory_used_gib": (memory.total - memory.available) / 2**30, "gpus": devices.gpus()}
