"""GPU memory of a benchmark's run: the largest in use by NVML, and what `ouro config check` estimates for it."""

import os
import threading
from pathlib import Path

from ouroboros.pipeline.settings.config import Config


class DeviceMemory:
    """The largest memory in use on a visible GPU while it is open, by NVML, in GiB."""

    def __init__(self):
        import pynvml

        pynvml.nvmlInit()
        seen = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(pynvml.nvmlDeviceGetCount())))
        self._devices = [pynvml.nvmlDeviceGetHandleByIndex(int(index)) for index in seen.split(",")]
        self._read, self.largest, self._over = pynvml.nvmlDeviceGetMemoryInfo, 0.0, threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def _follow(self) -> None:
        while not self._over.wait(0.2):
            self.largest = max([self.largest, *(self._read(one).used / 2**30 for one in self._devices)])

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._over.set()
        self._thread.join()


def estimate(config: Config, model: str | Path, images: bool = False) -> float:
    """What `ouro config check` counts for the fullest GPU of a stage of bfloat16 weights, in GiB."""
    import torch

    from ouroboros.pipeline.check.memory import GIB, beside, engines, training, with_tower
    from ouroboros.stages import recompute
    from ouroboros.stages.model_size import build, measure

    recompute.resolve(config, Path(model), images)
    if not config.kind.engine:
        return recompute.needed(config, Path(model), images) / GIB
    size = measure(build(str(model)), next(iter(config.model.lora_configs), None))
    size = with_tower(size, False, images)
    total = torch.cuda.get_device_properties(0).total_memory
    weights = 2 * size.parameters
    trainer = training(size, config, 2)
    answering = engines(config, total, weights)
    if config.mode == "both":
        return max(trainer.peak, answering) / GIB
    return max(trainer.peak + beside(config, total, weights), trainer.idle + answering) / GIB
