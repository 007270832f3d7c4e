"""The policy and the critic with their weights held still: the loss and the gradient of a batch, and no step.

Plain torch on one device: what DeepSpeed adds (an optimizer, ranks, checkpoints) is of no use here, and its memory
neither. The loss does not depend on the split into micro-batches and ranks, so neither does the gradient.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.checkpoints import WEIGHTS
from pipeline.config import longest_sequence
from pipeline.errors import ModelError
from stages.learner import policy
from stages.learner.actor import Actor
from stages.learner.critic import Critic, ValueModel
from stages.learner.packing import MicroBatch, Row
from stages.learner.reference import References
from stages.learner.zero import Process, ZeroEngine

CRITIC_STATE = Path("critic") / "state" / "mp_rank_00_model_states.pt"


class StillEngine(ZeroEngine):
    """In place of DeepSpeed: `step` leaves the weights alone, and the gradient behind.

    gradients: of the last step, by name, float32 in host memory.
    """

    def __init__(self, module: nn.Module, process: Process):
        self.process, self.zero_stage = process, 0
        self.module = self.engine = module.to(process.device)
        self.gradients: dict[str, Tensor] = {}

    def step(self, micro_batches: list[MicroBatch], loss_of: Callable[[MicroBatch], Tensor], lr: float) -> float:
        """The gradient norm of the batch. lr is not used."""
        self.module.zero_grad(set_to_none=True)
        for micro in micro_batches:
            loss_of(micro).backward()
        named = [(name, p) for name, p in self.module.named_parameters() if p.grad is not None]
        self.gradients = {name: p.grad.detach().float().cpu() for name, p in named}
        self.module.zero_grad(set_to_none=True)
        return inner(self.gradients, self.gradients) ** 0.5


class StillActor(Actor):
    """The policy with the weights that a stage had at some step."""

    def __init__(self, model: Path, weights: Path | None, config, refers: bool):
        """model: the Hugging Face directory that the stage began with. weights: the directory of a later version or
        checkpoint; None: the model itself. refers: score with the initial weights too."""
        self.process, self.budget = alone(), config.trainer.max_token_len_per_gpu
        device = self.process.device
        dtype = policy.resolve_dtype(config.model.dtype, device.type)
        module = policy.load(model, device.type, dtype, config.trainer, config.model.temperature,
                             longest_sequence(config.model))
        self.initial = {name: p.detach().clone() for name, p in module.model.named_parameters()} if refers else None
        if weights:
            _take(module.model, weights / WEIGHTS)
        self.zero = StillEngine(module, self.process)


class StillCritic(Critic):
    """The critic with the weights that it had at some step; only its values are asked for."""

    def __init__(self, model: Path, checkpoint: Path | None, config):
        """model: the Hugging Face directory that it began with. checkpoint: None before its first step."""
        self.process, self.settings = alone(), config.trainer.critic
        self.budget = config.trainer.max_token_len_per_gpu
        device = self.process.device
        dtype = policy.resolve_dtype(config.model.dtype, device.type)
        found, name = policy.read(model, device.type, dtype, config.trainer, longest_sequence(config.model))
        module = ValueModel(found.model, name)
        if checkpoint:
            module.load_state_dict(torch.load(checkpoint / CRITIC_STATE, "cpu", weights_only=False)["module"])
        self.zero = StillEngine(module, self.process)


class ReadReferences(References):
    """References that are taken from the stage's table where they are there, and else scored, but never written."""

    def _score(self, origin: int, rows: list[Row]) -> dict[str, np.ndarray]:
        scored = self.actor.reference_logprobs(rows)
        return {row.id: values for row, values in zip(rows, scored, strict=True)}


def alone() -> Process:
    """This process by itself, on a GPU if there is one."""
    return Process(torch.device("cuda" if torch.cuda.is_available() else "cpu"), 0, 1)


def inner(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """The inner product of two gradients, in float64; a parameter that one lacks counts as 0."""
    return sum(torch.dot(a[name].flatten().double(), b[name].flatten().double()).item() for name in a.keys() & b.keys())


def _take(model: nn.Module, file: Path) -> None:
    """Loads published weights. Raises ModelError when the file is not whole."""
    from safetensors.torch import load_file

    state = load_file(file)
    wanted = dict(model.named_parameters())
    if absent := wanted.keys() - state.keys():
        raise ModelError(f"{file} lacks {len(absent)} of {len(wanted)} weights of the model, such as {min(absent)}.")
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(state[name])
