"""The chat models of explorer.auxiliary_models: servers of ours, which judges and workflows ask as any client.

Each is a process (stages/serving/auxiliary.py) that answers with `engine_num` copies at one address of this machine. It
starts when it is first named, and ends with the process that started it.
"""

import json
import secrets
import select
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ouroboros.pipeline.job.context import ending, our_environment
from ouroboros.pipeline.job.devices import visible_gpus
from ouroboros.pipeline.job.shares import auxiliary_gpus
from ouroboros.pipeline.settings.setting import plain
from ouroboros.pipeline.store import launch
from ouroboros.pipeline.store.checkpoints import model_directory
from ouroboros.pipeline.store.digests import resolve
from ouroboros.pipeline.store.errors import ConfigError, StageError
from ouroboros.pipeline.store.model_shape import is_classifier
from ouroboros.workflows.protocol.trajectory import Endpoint

PROCESS = "ouroboros.stages.serving.auxiliary"
START_SECONDS = 3600.0  # for the weights of a model to be loaded

_served: dict[str, "Served"] = {}  # by what it was started with, but its token


@dataclass
class Served:
    """A model that is served, or will be once it is loaded."""

    name: str
    process: subprocess.Popen
    token: str

    @property
    def endpoint(self) -> Endpoint:
        """How it is asked. Waits until it is loaded; raises StageError when it cannot be, or has ended since."""
        found = self._loaded
        self.check()
        return found

    def check(self) -> None:
        """Raises StageError where its process has ended: nobody answers at its address any more."""
        if (code := self.process.poll()) is not None:
            raise StageError(f"{self.name}: its server {ending(code)}; what it wrote into the log of this stage says "
                             "why")

    @cached_property
    def _loaded(self) -> Endpoint:
        if not select.select([self.process.stdout], [], [], START_SECONDS)[0]:
            self.process.kill()
            raise StageError(f"{self.name} was not loaded after {START_SECONDS:g} s")
        if not (said := self.process.stdout.readline()):
            raise StageError(f"{self.name}: its server {ending(self.process.wait())}; the lines above say why")
        found = json.loads(said)
        return Endpoint(found["base_url"], self.token, found["model"])


def served(config, name: str) -> Served:
    """The chat model with that name. Raises ConfigError when there is none."""
    for index, model in enumerate(config.explorer.auxiliary_models):
        if model.name == name and not is_classifier(_place(model)):
            return _start(config, index)
    raise ConfigError(f"judge_model={name}: no chat model of explorer.auxiliary_models has that name.")


def endpoints(config) -> list[Endpoint]:
    """How all chat models are asked, in the order of the setting, but not a teacher. All are loaded at once."""
    started = [_start(config, index) for index, model in enumerate(config.explorer.auxiliary_models)
               if model is not config.own_teacher and not is_classifier(_place(model))]
    return [one.endpoint for one in started]


def _place(model) -> Path:
    """The Hugging Face directory of an auxiliary model, which may be a stage's."""
    return model_directory(resolve(model.model_path))


def _start(config, index: int) -> Served:
    model = config.explorer.auxiliary_models[index]
    directory, gpus = str(_place(model)), visible_gpus(config.cluster.gpu_per_node)
    own = auxiliary_gpus(config, index)
    asked = {"model": directory, "settings": plain(model), "gpus": gpus[own.start : own.stop],
             "trust_remote_code": config.model.trust_remote_code}
    key = json.dumps(asked)
    if key not in _served:
        token = secrets.token_urlsafe(24)
        environment = {"CUDA_VISIBLE_DEVICES": ",".join(asked["gpus"])} if gpus else {}
        process = subprocess.Popen(launch.command(PROCESS), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=sys.stderr, env={**our_environment(), **environment})
        process.stdin.write(json.dumps({**asked, "token": token}).encode())
        process.stdin.close()
        _served[key] = Served(f"explorer.auxiliary_models.{index} ({Path(directory).name})", process, token)
    return _served[key]
